"""LabelGrad: the reference numbers and its limits."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.training.learner import Learner, Task
from afield.training.methods.crossgrad import CrossGrad
from afield.training.methods.erm import ERM
from afield.training.methods.labelgrad import LabelGrad
from tests.training.methods.gradient_reference import (
    CASES,
    REFERENCE,
    batch,
    linear,
    number,
    task_of,
)
from tests.training.methods.reference import agree, theta

SGD = partial(torch.optim.SGD, lr=0.1)


def begun(method: LabelGrad) -> Learner:
    model = linear(3)
    model.load_state_dict({"weight": number("Wl"), "bias": number("bl")})
    return method.setup(model, task_of(3, 4, rate=float(REFERENCE["eta"])))


@pytest.mark.parametrize("case", CASES)
def test_the_reference_step(case):
    # Its inputs are those of the domain net there: X moved along the label's gradient.
    _, epsilon, alpha = REFERENCE[f"{case}/eps_l_eps_d_alpha"].tolist()
    method = LabelGrad(epsilon=epsilon, alpha=alpha, clip=CASES[case])
    learner = begun(method)
    method.update(learner, [batch()])
    agree(learner.model.weight.detach(), number(f"{case}/labelgrad_Wl1"))
    agree(learner.model.bias.detach(), number(f"{case}/labelgrad_bl1"))


def test_the_reference_gradient_on_the_inputs():
    bare = LabelGrad(epsilon=1.0, clip=0.0)
    shift = bare.perturbed_inputs(begun(bare), batch()) - number("X")
    agree(shift, number("paper_eps1_noclip_a0.5/grad_x_Jl"))


@pytest.mark.parametrize("settings", [{"epsilon": 0.0}, {"alpha": 0.0, "epsilon": 500.0}])
def test_without_moved_inputs_it_is_erm(settings):
    ours, plain = begun(LabelGrad(**settings)), begun(LabelGrad())
    for _ in range(3):
        LabelGrad(**settings).update(ours, [batch()])
        ERM().update(plain, [batch()])
    agree(theta(ours.model), theta(plain.model))


def test_a_share_of_one_follows_moved_inputs_only():
    method = LabelGrad(alpha=1.0, epsilon=3.0)
    ours, plain = begun(method), begun(method)
    moved = batch()._replace(x=method.perturbed_inputs(plain, batch()))
    method.update(ours, [batch()])
    ERM().update(plain, [moved])
    agree(theta(ours.model), theta(plain.model))


def test_where_labels_are_the_domains_crossgrad_moves_inputs_in_the_same_way():
    torch.manual_seed(0)
    method = CrossGrad(domain_net="same", epsilon_label=7.0, epsilon_domain=7.0, clip=0.0)
    model = linear(4)
    both = method.setup(model, task_of(4, 4))
    both.parts["domain"].load_state_dict(model.state_dict())
    twin = batch()._replace(y=batch().domain)
    own = LabelGrad(epsilon=7.0, clip=0.0)
    learner = own.setup(copy.deepcopy(model), task_of(4, 4))
    agree(own.perturbed_inputs(learner, twin), method.perturbed_inputs(both, twin))
    method.update(both, [twin])
    own.update(learner, [twin])
    agree(theta(learner.model), theta(both.model))


def test_whole_numbers_cannot_be_moved():
    learner = LabelGrad().setup(nn.Linear(5, 3), Task(("a",), ("0",), 1, linear, SGD))
    with pytest.raises(SpecError, match="int32 inputs have none"):
        LabelGrad().update(learner, [batch()._replace(x=torch.zeros(8, 5, dtype=torch.int32))])
