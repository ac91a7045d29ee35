"""T3A against the authors' numbers, and its limits."""

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.adaptations.t3a import T3A
from tests.training.methods.references import Reference


def adapted(reference: Reference, keep: int):
    model = reference.network()
    model.load_state_dict(reference.below("init/"))
    return T3A(keep=keep).predictor(model.eval())


def in_class_order(labels, entropy, supports):
    """The authors keep supports by class, and within a class by entropy."""
    order = torch.argsort(entropy)
    order = order[labels[order].argmax(dim=1).argsort(stable=True)]
    return labels[order], entropy[order], supports[order]


def test_two_batches_are_those_of_the_authors_code():
    reference = Reference("t3a")
    predictor = adapted(reference, reference.settings["filter_K"])
    first = predictor.labels, predictor.entropy
    for result, name in zip(first, ("labels", "entropy"), strict=True):
        torch.testing.assert_close(result, reference[f"first/{name}"], rtol=0, atol=1e-10)
    for step in (1, 2):
        out = predictor(reference[f"x/step{step}/0"])
        torch.testing.assert_close(out, reference[f"step{step}/out"], rtol=0, atol=1e-10)
        state = in_class_order(predictor.labels, predictor.entropy, predictor.supports)
        theirs = [reference[f"step{step}/{name}"] for name in ("labels", "entropy", "supports")]
        for result, expected in zip(state, in_class_order(*theirs), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)


def test_keeping_all_drops_no_support():
    reference = Reference("t3a")
    predictor = adapted(reference, 0)
    predictor(reference["x/step1/0"])
    predictor(reference["x/step2/0"])
    assert len(predictor.supports) == 3 + 24 + 8


def test_only_the_head_is_left_if_one_support_is_kept_and_the_head_is_surest():
    head = nn.Linear(4, 3)
    model = Classifier(nn.Flatten(), 4, 3).double()
    head.weight.data = 50.0 * torch.eye(4)[:3]
    head.bias.data = torch.zeros(3)
    model.head.load_state_dict(head.double().state_dict())
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).double().clamp(-1, 1)
    torch.testing.assert_close(T3A(keep=1).predictor(model)(x), x[:, :3])


def test_reset_forgets_all_samples():
    reference = Reference("t3a")
    predictor = adapted(reference, 2)
    first = predictor(reference["x/step1/0"])
    assert not torch.equal(predictor(reference["x/step1/0"]), first)
    predictor.reset()
    assert torch.equal(predictor(reference["x/step1/0"]), first)


def test_a_class_without_supports_has_a_prototype_of_zeros():
    model = Classifier(nn.Flatten(), 2, 2)
    model.head.weight.data = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    model.head.bias.data = torch.zeros(2)
    out = T3A().predictor(model)(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    assert torch.equal(out[:, 0], torch.zeros(2))


def test_what_cannot_be_adapted_is_refused():
    with pytest.raises(SpecError, match="one linear head"):
        T3A().check(nn.Linear(2, 2))
    with pytest.raises(SpecError, match="keep=-1"):
        T3A(keep=-1)
    adapted_once = T3A().predictor(Classifier(nn.Flatten(), 2, 2))
    with pytest.raises(SpecError, match="already adapts"):
        T3A().check(adapted_once)
