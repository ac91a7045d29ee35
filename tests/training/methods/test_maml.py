import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

from afield.training.inner_loop import split_batch
from afield.training.methods.arith import Arith
from afield.training.methods.maml import MAML
from tests.training.methods.reference import (
    agree,
    followed,
    random_batches,
    seeded_order,
    slope,
    theta,
)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_optimiser_gets_the_gradient_at_the_end_of_the_inner_loop_alone(n, model, task):
    model.double()
    method, batches, at = MAML(inner_rate=20.0), random_batches(n), theta(model)
    learner = method.setup(copy.deepcopy(model), task)
    order = seeded_order(4, n)
    for i in order[:-1]:
        at = at - 0.2 * slope(model, at, batches[i])
    method.update(learner, batches)
    agree(followed(learner.model), slope(model, at, batches[order[-1]]))


@pytest.mark.parametrize("k", [2, 3])
def test_with_several_steps_a_domain_it_gets_those_of_the_last_domain(k, model, task):
    model.double()
    method, batches, at = MAML(inner_rate=20.0, steps_per_domain=k), random_batches(3), theta(model)
    learner = method.setup(copy.deepcopy(model), task)
    order, last = seeded_order(4, 3), 0
    for i in order:
        last = torch.zeros_like(at)
        for piece in split_batch(batches[i], k):
            gradient = slope(model, at, piece)
            at, last = at - 0.2 * gradient, last + gradient
    method.update(learner, batches)
    agree(followed(learner.model), last)


def test_it_is_arith_with_all_the_weight_at_the_end(model, task):
    result = []
    for method in (MAML(), Arith(shares=(0.0, 0.0, 1.0))):
        learner = method.setup(copy.deepcopy(model).double(), task)
        torch.manual_seed(0)
        for n in (3, 4, 5):
            method.update(learner, random_batches(n)[:3])
        result.append(theta(learner.model))
    assert torch.equal(*result)


def test_the_others_matter_only_by_where_the_inner_loop_ends(model, task):
    """Under gradient descent without a rate inside, what comes first is nothing."""
    descent = replace(task, optimizer=partial(torch.optim.SGD, lr=0.1))
    method, batches, result = MAML(inner_rate=0.0), random_batches(3), []
    for others in (batches, random_batches(4)):
        learner = method.setup(copy.deepcopy(model).double(), descent)
        last = seeded_order(2, 3)[-1]
        mixed = [batches[i] if i == last else others[i] for i in range(3)]
        method.update(learner, mixed)
        result.append(theta(learner.model))
    assert torch.equal(*result)
