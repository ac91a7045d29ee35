import copy

import pytest
import torch

from afield.training.methods.erm import ERM
from afield.training.methods.vrex import VREx


def test_loss_is_the_formula(model, task, stream):
    learner, batches = VREx().setup(model, task), next(stream)
    learner.step = 7
    losses = [torch.nn.functional.cross_entropy(model(b.x), b.y) for b in batches]
    mean = sum(losses) / len(losses)
    variance = sum((loss - mean) ** 2 for loss in losses) / len(losses)
    loss, logs = VREx(penalty=3.0, warmup=0.07).loss(learner, batches)
    torch.testing.assert_close(loss, mean + 3 * variance)
    torch.testing.assert_close(logs["variance"], variance.detach())


def test_during_the_warm_up_the_penalty_is_one(model, task, stream):
    learner, batches = VREx().setup(model, task), next(stream)
    learner.step = 6
    early, _ = VREx(penalty=50.0, warmup=0.07).loss(learner, batches)
    plain, _ = VREx(penalty=1.0, warmup=0).loss(learner, batches)
    torch.testing.assert_close(early, plain)


def test_equal_domains_leave_only_the_mean(model, task, stream):
    same = [next(stream)[0]] * 3
    loss, _ = VREx(penalty=100.0, warmup=0).loss(VREx().setup(model, task), same)
    torch.testing.assert_close(loss, ERM().loss(ERM().setup(model, task), same)[0])


@pytest.mark.parametrize("warmup", [0.03, 0.1])
def test_the_optimiser_starts_afresh_when_the_warm_up_ends(model, task, stream, warmup):
    method = VREx(warmup=warmup)
    learner = method.setup(copy.deepcopy(model), task)
    for learner.step in range(5):
        method.update(learner, next(stream))
    steps = {int(state["step"]) for state in learner.optimizer.state.values()}
    assert steps == {5 - 3 if warmup == 0.03 else 5}
