"""Networks for texts: padding does not matter, and embedded tokens can be moved."""

import pytest
import torch

from afield.networks.backbone import network
from afield.networks.text_features import TextFeatures
from tests.texts import write_encoder

IDS = torch.tensor([[2, 4, 13, 3, -1, -1], [2, 9, 3, -1, -1, -1]], dtype=torch.int32)


@pytest.fixture(scope="module", params=["small:text", "mean", "first"])
def features(request, tmp_path_factory) -> TextFeatures:
    name = request.param
    if name != "small:text":
        folder = write_encoder(tmp_path_factory.mktemp("encoder"))
        name = f"hf:{folder}?pooling={name}"
    torch.manual_seed(0)
    return network(name, (16,), 2).features.eval()


def test_more_padding_does_not_change_the_features(features):
    wider = torch.nn.functional.pad(IDS, (0, 7), value=-1)
    with torch.no_grad():
        expected = torch.cat([features(IDS[:1, :4]), features(IDS[1:, :3])])
        for ids in (IDS, wider):
            torch.testing.assert_close(features(ids), expected)


def test_every_token_changes_the_features(features):
    with torch.no_grad():
        expected = features(IDS[:1])
        for position in range(4):
            changed = IDS[:1].clone()
            changed[0, position] = 7
            assert not torch.allclose(features(changed), expected)


def test_embedded_tokens_give_the_features_of_their_ids(features):
    with torch.no_grad():
        torch.testing.assert_close(features(features.embed(IDS)), features(IDS))


def test_the_gradient_of_embedded_tokens_is_zero_for_padding(features):
    embedded = features.embed(IDS).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(features(embedded).square().sum(), embedded)
    assert (gradient[0, 4:] == 0).all()
    assert (gradient[..., -1] == 0).all()
    assert (gradient[0, :4, :-1] != 0).any(dim=1).all()


def test_the_features_can_be_differentiated_twice(features):
    weight = next(features.parameters())
    loss = features(IDS).square().sum()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), weight)[0].abs().sum() > 0


def test_the_small_network_has_as_many_features_as_it_says():
    model = network("small:text", (16,), 2).eval()
    assert model.features(IDS).shape == (len(IDS), model.features.width)
