"""Freezing the beginning of a network."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier, network
from afield.networks.freezing import freeze_blocks, has_unfrozen_batchnorm, update_batchnorm
from tests.networks.inputs import inputs, statistics
from tests.texts import write_encoder


def trained(net):
    return [name for name, parameter in net.named_parameters() if parameter.requires_grad]


def test_embeddings_and_the_first_blocks_are_frozen(tmp_path):
    folder = write_encoder(tmp_path, blocks=3)
    for count, frozen in ((1, ("0",)), (3, ("0", "1", "2"))):
        net = network(f"hf:{folder}", (8,), 2)
        freeze_blocks(net.features, count, "hf")
        blocks = [f"features.encoder.encoder.layer.{number}." for number in frozen]
        expected = [
            name
            for name, _ in net.named_parameters()
            if not name.startswith(("features.encoder.embeddings.", *blocks))
        ]
        assert trained(net) == expected
        assert "head.weight" in expected


def test_the_blocks_of_a_vision_transformer_and_of_the_small_text_network_are_found():
    vit = network("small:vit", (3, 16, 16), 2)
    freeze_blocks(vit.features, 4, "small:vit")
    after = [name for name in trained(vit) if name.startswith("features")]
    assert {name.split(".")[1] for name in after} == {"fc_norm"}
    text = network("small:text", (16,), 2)
    freeze_blocks(text.features, 2, "small:text")
    assert {".".join(name.split(".")[:3]) for name in trained(text)[:-2]} == {"features.blocks.2"}


def test_more_blocks_than_there_are_is_refused():
    with pytest.raises(SpecError, match=r"freeze_blocks=4: small:text has 3 block\(s\)"):
        freeze_blocks(network("small:text", (16,), 2).features, 4, "small:text")
    with pytest.raises(SpecError, match=r"has 0 block\(s\)"):
        freeze_blocks(network("small:cnn", (3, 16, 16), 2).features, 1, "small:cnn")


def normed() -> nn.Sequential:
    """A small network with both kinds of BatchNorm."""
    torch.manual_seed(0)
    picture = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(picture, nn.Linear(4 * 36, 6), nn.BatchNorm1d(6))


def norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def deep() -> Classifier:
    """Two BatchNorm layers, the second after the first, and dropout before and between."""
    torch.manual_seed(0)
    first = nn.Dropout(0.5), nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=0.2), nn.ReLU()
    second = nn.Dropout(0.5), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)
    return Classifier(nn.Sequential(*first, *second), 3, 2)


@pytest.mark.parametrize("freeze_bn", [True, False])
def test_statistics_of_batchnorm_move_unless_they_are_frozen(freeze_bn):
    model = Classifier(normed(), 6, 3, freeze_bn=freeze_bn)
    before = statistics(model)
    assert len(before) == 4
    for _ in range(3):
        # Nested, as in a method with several networks.
        nn.ModuleDict({"one": model}).train()
        model(5 + 3 * inputs((3, 8, 8)))
    moved = [not torch.equal(*pair) for pair in zip(before, statistics(model), strict=True)]
    assert moved == [not freeze_bn] * 4
    assert model.features[0][0].training
    assert model.features[0][1].training is not freeze_bn


def test_frozen_statistics_are_used_in_training_and_their_weights_still_train():
    model = Classifier(normed(), 6, 3, freeze_bn=True)
    x = 5 + 3 * inputs((3, 8, 8))
    torch.testing.assert_close(model.train()(x), copy.deepcopy(model).eval()(x))
    model(x).square().sum().backward()
    for norm in (model.features[0][1], model.features[2]):
        assert all(part.grad.abs().sum() > 0 for part in (norm.weight, norm.bias))


def test_renewed_statistics_are_the_means_over_the_batches_each_alike():
    model = deep()
    # Of unequal size, and each far from the others: weights by size would be seen.
    batches = [i + (i + 1) * inputs((5,), n) for i, n in enumerate((4, 30, 11))]
    for x in batches:
        model.train()(100 * x)
    update_batchnorm(model, iter(batches))
    linear, norm, other, last = (model.features[i] for i in (1, 2, 5, 6))
    first = [linear(x) for x in batches]
    # In depth as in training: normalised by the batch, but nothing dropped.
    second = [
        other(F.batch_norm(x, None, None, norm.weight, norm.bias, True).relu()) for x in first
    ]
    for layer, hidden in ((norm, first), (last, second)):
        mean = torch.stack([x.mean(dim=0) for x in hidden]).mean(dim=0)
        var = torch.stack([x.var(dim=0) for x in hidden]).mean(dim=0)
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_var, var)
        assert layer.num_batches_tracked == 3


@pytest.mark.parametrize("training", [True, False])
def test_renewing_statistics_changes_nothing_else(training):
    model = deep().train(training)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    update_batchnorm(model, [inputs((5,), 9)] * 2)
    for name, value in model.state_dict().items():
        buffer = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(value, state[name]) != buffer
    assert torch.equal(torch.get_rng_state(), random)
    assert [norm.momentum for norm in norms(model)] == [0.2, None]
    assert {module.training for module in model.modules()} == {training}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_renewing_a_second_time_forgets_the_first():
    model = deep()
    update_batchnorm(model, [100 + inputs((5,), 9)] * 3)
    update_batchnorm(model, [inputs((5,), 9)])
    expected = deep()
    update_batchnorm(expected, [inputs((5,), 9)])
    pairs = zip(statistics(model), statistics(expected), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_frozen_statistics_are_not_renewed():
    model = Classifier(normed(), 6, 3, freeze_bn=True)
    before = statistics(model)
    update_batchnorm(model, [5 + 3 * inputs((3, 8, 8))])
    assert all(torch.equal(*pair) for pair in zip(before, statistics(model), strict=True))
    assert not any(norm.training for norm in norms(model))
    assert model.features[0][0].training


@pytest.mark.parametrize(
    ("build", "free"),
    [
        (lambda: Classifier(normed(), 6, 3), True),
        (lambda: Classifier(normed(), 6, 3, freeze_bn=True), False),
        (lambda: nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), False),
        (lambda: nn.Sequential(nn.LayerNorm(2)), False),
        (lambda: network("small:cnn", (3, 16, 16), 2), False),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_statistics_are_free_where_they_would_follow_the_data_in_training(build, free, training):
    model = build().train(training)
    before = [module.training for module in model.modules()]
    assert has_unfrozen_batchnorm(model) is free
    assert [module.training for module in model.modules()] == before
