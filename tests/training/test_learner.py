"""A scaled loss has the same gradients, and a step that is not finite is left out."""

from pathlib import Path

import pytest
import torch
from torch import nn

from afield import registry
from afield.runs.run_setup import Machine, set_up
from afield.studies.planning import plan_run
from afield.training.learner import FIRST_SCALE, STEPS_UNTIL_DOUBLED, LossScale
from afield.training.loop import checkpoints
from tests.pairs import small_problem


def test_gradients_are_accumulated_like_those_of_a_backward_pass():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(5, 4, requires_grad=True)
    tensors = [layer.weight, layer.bias, x]
    for _ in range(2):
        layer(x).square().mean().backward()
    expected = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    for _ in range(2):
        LossScale().accumulate(layer(x).square().mean())
    torch.testing.assert_close([tensor.grad for tensor in tensors], expected)
    LossScale().accumulate(layer(x).mean(), [layer.bias])
    torch.testing.assert_close(layer.weight.grad, expected[0])
    assert not torch.equal(layer.bias.grad, expected[1])


def test_the_scale_follows_what_is_finite():
    scale, good, bad = LossScale(), torch.ones(2), torch.tensor([1.0, torch.inf])
    assert scale.accepts([good, None])
    assert not scale.accepts([good, bad])
    assert scale.scale == FIRST_SCALE / 2
    for _ in range(STEPS_UNTIL_DOUBLED):
        assert scale.scale == FIRST_SCALE / 2
        assert scale.accepts([good])
    assert scale.scale == FIRST_SCALE
    other = LossScale()
    scale.accepts([bad])
    scale.accepts([good])
    other.load_state_dict(scale.state_dict())
    assert (other.scale, other.finite_steps) == (FIRST_SCALE / 2, 1)


def test_a_step_that_is_not_finite_moves_nothing():
    learner = started("erm").learner
    learner.loss_scale = LossScale()
    before = [value.clone() for value in learner.parameters()]
    learner.descend(torch.inf * sum(value.sum() for value in learner.parameters()))
    assert all(map(torch.equal, before, learner.parameters()))
    assert learner.state_dict()["loss_scale"]["scale"] == FIRST_SCALE / 2


# Augmented images leave gradients of nearly zero, whose signs Adam follows and a scale may change.
SMALL = {"steps": 3, "batch": 4, "augment": "none"}


def started(method):
    dataset, target, settings = small_problem(method)
    run = plan_run(dataset, method, target=target, settings={**SMALL, **settings})
    torch.manual_seed(0)
    return set_up(run, Machine(torch.device("cpu"), 1, Path()))


def trained(method, *, scaled):
    state = started(method)
    if scaled:
        state.learner.loss_scale = LossScale()
    parts = (state.method, state.learner, state.average, state.stream, lambda _: {})
    list(checkpoints(*parts, steps=3, every=3))
    return state.learner.model.state_dict()


@pytest.mark.slow
def test_no_method_sees_the_scale():
    for method in registry.names("methods"):
        expected, result = (trained(method, scaled=scaled) for scaled in (False, True))
        for name, value in result.items():
            torch.testing.assert_close(value, expected[name], atol=1e-4, rtol=1e-3, msg=method)
