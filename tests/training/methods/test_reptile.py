import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

from afield.training.inner_loop import split_batch
from afield.training.methods.erm import ERM
from afield.training.methods.reptile import Reptile
from tests.training.methods.reference import agree, followed, precise, random_batches, slope, theta


def test_with_one_step_a_domain_it_is_erm_on_the_mean_of_the_domains(model, task, stream):
    method = Reptile(steps_per_domain=1)
    learner = method.setup(copy.deepcopy(model).double(), task)
    plain = ERM().setup(model.double(), task)
    for _ in range(5):
        batches = precise(next(stream))
        logs, expected = method.update(learner, batches), ERM().update(plain, batches)
        agree(theta(learner.model), theta(plain.model))
        agree(logs["loss"], expected["loss"])


@pytest.mark.parametrize("inner_rate", [1e-3, 1.0, 50.0])
def test_with_one_step_a_domain_the_inner_rate_is_nothing(inner_rate, model, task):
    model.double()
    method, batches = Reptile(steps_per_domain=1, inner_rate=inner_rate), random_batches(3)
    learner = method.setup(copy.deepcopy(model), task)
    method.update(learner, batches)
    mean = sum(slope(model, theta(model), batch) for batch in batches) / 3
    agree(followed(learner.model), mean)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_plain_step_ends_in_the_mean_of_the_domains_own_weights(n, k, model, task):
    model.double()
    method = Reptile(steps_per_domain=k, outer="plain", inner_rate=20.0)
    batches, start, ends = random_batches(n), theta(model), []
    for batch in batches:
        at = start
        for piece in split_batch(batch, k):
            at = at - 0.2 * slope(model, at, piece)
        ends.append(at)
    learner = method.setup(copy.deepcopy(model), task)
    method.update(learner, batches)
    agree(theta(learner.model), sum(ends) / n, atol=1e-13)


def test_the_order_of_the_domains_is_nothing(model, task):
    batches, result = random_batches(3), []
    for order in ((0, 1, 2), (2, 0, 1)):
        learner = Reptile().setup(copy.deepcopy(model).double(), task)
        for seed in range(3):
            torch.manual_seed(seed)
            Reptile().update(learner, [batches[i] for i in order])
        result.append(theta(learner.model))
    agree(*result)


def test_several_steps_a_domain_are_more_than_erm(model, task):
    """With two steps or more it differs, and the more so the greater the inner rate."""
    descent = replace(task, optimizer=partial(torch.optim.SGD, lr=0.1))
    model.double()
    batches, missed = random_batches(3), []
    halves = [piece for batch in batches for piece in split_batch(batch, 2)]
    total = sum(slope(model, theta(model), half) for half in halves) / 3
    for inner_rate in (0.01, 0.1, 1.0):
        method = Reptile(inner_rate=inner_rate)
        learner = method.setup(copy.deepcopy(model), descent)
        method.update(learner, batches)
        missed.append((followed(learner.model) - total).norm())
    assert 0 < missed[0] < missed[1] < missed[2]
    assert missed[0] < 0.02 * total.norm()
