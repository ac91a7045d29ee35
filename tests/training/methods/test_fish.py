import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from afield.errors import SpecError
from afield.hyperparameters import build
from afield.training.inner_loop import split_batch
from afield.training.methods.fish import Fish
from tests.training.methods.reference import (
    agree,
    batches,
    begun,
    expected,
    precise,
    random_batches,
    seeded_order,
    slope,
    theta,
)


@pytest.mark.parametrize("meta_lr", [0.5, 0.05])
def test_three_updates_equal_the_reference(meta_lr):
    method = Fish(meta_lr=meta_lr)
    learner, name, visited = begun(method), f"Fish_meta{meta_lr}", []
    linear = learner.model
    learner.optimizers["inner"].register_step_post_hook(
        lambda *_: visited.append((linear.weight.detach().clone(), linear.bias.detach().clone()))
    )
    for update in (1, 2, 3):
        method.update(learner, batches(update - 1))
        agree(linear.weight.detach(), expected(name, update, "W"))
        agree(linear.bias.detach(), expected(name, update, "b"))
        # The inner loop ends with its third step.
        weight, bias = visited[3 * update - 1]
        agree(weight, expected(name, update, "inner_W"))
        agree(bias, expected(name, update, "inner_b"))
    assert len(visited) == 9


def by_hand(model: nn.Module, task, steps, *, meta_lr: float, k: int = 1) -> nn.Module:
    """DomainBed's Fish: train a copy, keep its optimizer, and move part of the way to it."""
    model = copy.deepcopy(model)
    copied = copy.deepcopy(model)
    optimizer = task.optimizer(copied.parameters())
    for domains in steps:
        copied.load_state_dict(model.state_dict())
        for batch in domains:
            for piece in split_batch(batch, k):
                optimizer.zero_grad()
                F.cross_entropy(copied(piece.x), piece.y).backward()
                optimizer.step()
        before, after = model.state_dict(), copied.state_dict()
        mixed = {n: before[n] + meta_lr * (after[n] - before[n]) for n in before}
        counted = {n: after[n] for n in after if not after[n].is_floating_point()}
        model.load_state_dict(mixed | counted)
    return model


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(
    "optimizer", [partial(Adam, lr=0.02), partial(SGD, lr=0.1, momentum=0.9)], ids=["adam", "sgd"]
)
def test_the_inner_loop_has_an_optimizer_that_keeps_its_state(k, optimizer, model, task, stream):
    task, steps = replace(task, optimizer=optimizer), [precise(next(stream)) for _ in range(4)]
    method = Fish(meta_lr=0.3, steps_per_domain=k)
    right = by_hand(model.double(), task, steps, meta_lr=0.3, k=k)
    learner = method.setup(model, task)
    for each in steps:
        method.update(learner, each)
    agree(theta(model), theta(right))


def test_statistics_of_batch_norm_come_part_of_the_way_too(task):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4)).double()
    steps = [random_batches(n)[:3] for n in (3, 4)]
    right = by_hand(model, task, steps, meta_lr=0.3).state_dict()
    method = Fish(meta_lr=0.3)
    learner, start = method.setup(model, task), copy.deepcopy(model.state_dict())
    for each in steps:
        method.update(learner, each)
    result = model.state_dict()
    agree(dict(result), dict(right))
    assert result["1.num_batches_tracked"] == 6
    assert not torch.equal(result["1.running_mean"], start["1.running_mean"])


def test_the_inner_rate_is_a_multiple_of_that_of_the_run(model, task, stream):
    steps = [precise(next(stream)) for _ in range(3)]
    result = []
    for inner_rate, lr in ((1.0, 0.03), (3.0, 0.01)):
        method = Fish(inner_rate=inner_rate)
        own = replace(task, optimizer=partial(Adam, lr=lr))
        learner = method.setup(copy.deepcopy(model).double(), own)
        for each in steps:
            method.update(learner, each)
        result.append(theta(learner.model))
    agree(*result)


def test_a_whole_step_ends_where_the_inner_loop_ends(model, task, stream):
    """Then it is one step after the other, as if there were no meta-learning."""
    plain = copy.deepcopy(model).double()
    optimizer, method = task.optimizer(plain.parameters()), Fish(meta_lr=1.0)
    learner = method.setup(model.double(), task)
    for _ in range(3):
        domains = precise(next(stream))
        losses = []
        for batch in domains:
            optimizer.zero_grad()
            losses.append(F.cross_entropy(plain(batch.x), batch.y))
            losses[-1].backward()
            optimizer.step()
        logs = method.update(learner, domains)
        agree(theta(model), theta(plain))
        agree(logs["loss"], torch.stack(losses).mean().detach())


def test_none_of_the_way_is_to_stay(model, task, stream):
    method = Fish(meta_lr=0.0)
    learner, before = method.setup(model, task), theta(model)
    method.update(learner, next(stream))
    assert torch.equal(theta(model), before)


def test_the_order_is_fixed_with_an_optimiser_and_random_without(model, task):
    domains = random_batches(3)
    for inner, count in (("optimizer", 1), ("sgd", 6)):
        method, result = Fish(inner=inner), set()
        for seed in range(40):
            learner = method.setup(copy.deepcopy(model).double(), task)
            torch.manual_seed(seed)
            method.update(learner, domains)
            result.add(tuple(theta(learner.model).tolist()))
        assert len(result) == count


def test_an_inner_loop_with_an_optimizer_may_mix_domains(model, task):
    result = []
    for by_domain in (True, False):
        method = Fish(by_domain=by_domain)
        learner = method.setup(copy.deepcopy(model).double(), task)
        torch.manual_seed(0)
        method.update(learner, random_batches(3))
        result.append(theta(learner.model))
    assert not torch.allclose(*result)


@pytest.mark.parametrize("k", [1, 3])
def test_with_plain_steps_it_moves_part_of_the_way_to_the_end_of_the_inner_loop(k, model, task):
    model.double()
    method = Fish(inner="sgd", meta_lr=0.4, steps_per_domain=k, inner_rate=20.0)
    domains, start = random_batches(3), theta(model)
    learner, at = method.setup(copy.deepcopy(model), task), start
    for i in seeded_order(1, 3):
        for piece in split_batch(domains[i], k):
            at = at - 0.2 * slope(model, at, piece)
    method.update(learner, domains)
    agree(theta(learner.model), start + 0.4 * (at - start), atol=1e-13)


def test_with_plain_descent_for_an_optimiser_both_forms_are_one(model, task, monkeypatch):
    descent = replace(task, optimizer=partial(SGD, lr=0.1))
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    result = []
    for inner in ("optimizer", "sgd"):
        method = Fish(inner=inner, steps_per_domain=2)
        learner = method.setup(copy.deepcopy(model).double(), descent)
        for n in (3, 4):
            method.update(learner, random_batches(n)[:3])
        result.append(theta(learner.model))
    agree(*result)


def test_plain_steps_need_no_optimiser_of_their_own(model, task):
    assert Fish(inner="sgd").setup(model, task).optimizers == {}
    assert set(Fish().setup(model, task).optimizers) == {"inner"}


@pytest.mark.parametrize(
    "options", [{"outer": "raw"}, {"outer": "divided"}, {"momentum": 0.9}], ids=str
)
def test_what_goes_with_plain_steps_only_is_refused_without_them(options):
    with pytest.raises(SpecError, match=r"^fish.outer and fish.momentum need fish.inner=sgd$"):
        build(Fish, options)
    build(Fish, options | {"inner": "sgd"})


def test_the_inner_rate_follows_the_schedule_once(model, task):
    """Its first rate is the run's, not what a warm-up leaves of it."""
    shares = replace(task, schedule=lambda step: (step + 1) / 10)
    learner = Fish(inner_rate=2.0).setup(model, shares)
    inner = learner.optimizers["inner"].param_groups[0]
    for learner.step in (0, 4, 9):
        learner.apply_schedule()
        assert inner["lr"] == pytest.approx(2 * learner.lr)
