import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam

from afield.errors import SpecError
from afield.hyperparameters import build
from afield.reporting.benchmarking import bench
from afield.studies.benchmark import make_benchmark
from afield.training.inner_loop import split_batch
from afield.training.method import risks
from afield.training.methods.arith import Arith
from afield.training.methods.erm import ERM
from afield.training.methods.fish import Fish
from tests.pairs import every_pair
from tests.training.methods.reference import (
    agree,
    arith,
    arith_batches,
    arith_begun,
    fix_order,
    precise,
    random_batches,
    seeded_order,
    slope,
    theta,
)

# The reference has 0.1 inside and 0.01 outside.
INNER, RATE = 0.1, 0.01
OUTERS = {"plain": "plain", "adam_div_alpha": "divided", "adam_raw": "raw"}
WEIGHTS = {
    "arith_sum1": Arith(),
    "arith_eps1": Arith(eps=1.0),
    "arith_eps0": Arith(eps=0.0),
    "fish_third": Arith(shares=(1 / 3, 1 / 3, 1 / 3)),
    "fish_half": Arith(shares=(0.5, 0.5, 0.5)),
}


@pytest.fixture
def in_order(monkeypatch):
    """Domains come as they are, as in the reference."""
    fix_order(monkeypatch, (0, 1, 2))


def updates(method, optimizer, where):
    """Two updates that end in the weights of the reference; yields the gradient of each."""
    learner = arith_begun(method, optimizer)
    for update in (1, 2):
        method.update(learner, arith_batches(update - 1))
        agree(learner.model.weight.detach(), arith(f"{where}/W{update}"))
        agree(learner.model.bias.detach(), arith(f"{where}/b{update}"))
        yield learner.model.weight.grad


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_two_updates_equal_the_reference(weights, outer):
    method = replace(WEIGHTS[weights], outer=OUTERS[outer], inner_rate=INNER / RATE)
    where = f"k1/{weights}/{outer}"
    for update, gradient in enumerate(updates(method, partial(Adam, lr=RATE), where), 1):
        if outer != "plain":
            agree(gradient, arith(f"{where}/pseudo_grad_W{update}"))


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize(("weights", "meta_lr"), [("fish_third", 1 / 3), ("fish_half", 0.5)])
def test_fish_in_the_same_form_equals_the_reference_too(weights, meta_lr, outer):
    method = Fish(inner="sgd", meta_lr=meta_lr, outer=OUTERS[outer], inner_rate=INNER / RATE)
    assert list(updates(method, partial(Adam, lr=RATE), f"k1/{weights}/{outer}"))


@pytest.mark.usefixtures("in_order")
def test_the_inner_loop_visits_the_positions_of_the_reference():
    method = Arith(outer="plain", inner_rate=INNER / RATE)
    learner, met = arith_begun(method, partial(Adam, lr=RATE)), []
    learner.model.register_forward_pre_hook(
        lambda model, _: met.append((model.weight.detach().clone(), model.bias.detach().clone()))
    )
    places = ["k1/traj_from_W0/theta", "k1/arith_sum1/plain/t2_theta"]
    for update, place in enumerate(places):
        method.update(learner, arith_batches(update))
        for i in (2, 3):
            weight, bias = met[3 * update + i - 1]
            agree(weight, arith(f"{place}{i}_W"))
            agree(bias, arith(f"{place}{i}_b"))


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("i", [1, 2, 3])
def test_weights_of_one_and_nothing_stop_at_each_position_of_the_inner_loop(i):
    shares = tuple(1.0 if j < i else 0.0 for j in range(3))
    method = Arith(shares=shares, outer="plain", inner_rate=INNER / RATE)
    learner = arith_begun(method, partial(Adam, lr=RATE))
    method.update(learner, arith_batches(0))
    agree(learner.model.weight.detach(), arith(f"k1/traj_from_W0/theta{i + 1}_W"))
    agree(learner.model.bias.detach(), arith(f"k1/traj_from_W0/theta{i + 1}_b"))


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("i", [1, 2, 3])
def test_what_a_domain_moves_is_that_of_the_reference(i):
    """With all the weight on domain i, the raw step is gᵢ."""
    shares = tuple(float(j == i - 1) for j in range(3))
    method = Arith(shares=shares, outer="raw", inner_rate=INNER / RATE)
    learner = arith_begun(method, partial(Adam, lr=RATE))
    method.update(learner, arith_batches(0))
    agree(learner.model.weight.grad, arith(f"k1/traj_from_W0/g{i}_W"))
    agree(learner.model.bias.grad, arith(f"k1/traj_from_W0/g{i}_b"))


MEDIC = {"eta_half_third_sixth": (1 / 2, 1 / 3, 1 / 6), "eta_default_1.5_1_0.5": (1.5, 1.0, 0.5)}


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("outer", ["plain", "divided"])
@pytest.mark.parametrize("eta", MEDIC)
def test_the_authors_code_under_gradient_descent_is_ours_at_the_square_of_the_rate(eta, outer):
    """Their gradient is 1/α times ours, so that their α² is our α."""
    method = Arith(shares=MEDIC[eta], outer=outer)
    where = f"medic/{eta}/sgd_lr_alpha2"
    for update, gradient in enumerate(updates(method, partial(SGD, lr=INNER), where), 1):
        if outer == "divided":
            agree(gradient / INNER, arith(f"{where}/accum_grad_W{update}"))


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("eta", MEDIC)
def test_the_authors_code_under_adam_is_ours_with_a_smaller_eps(eta):
    """Adam takes a gradient and its eps that are both 1/α times as large for the same."""
    method = Arith(shares=MEDIC[eta], inner_rate=INNER / RATE)
    optimizer, where = partial(Adam, lr=RATE, eps=1e-8 * INNER), f"medic/{eta}/adam_lr1e-2"
    for update, gradient in enumerate(updates(method, optimizer, where), 1):
        agree(gradient / INNER, arith(f"{where}/accum_grad_W{update}"))


def test_the_weights_are_those_of_the_paper():
    assert Arith().weights(3) == pytest.approx([1 / 2, 1 / 3, 1 / 6])
    assert Arith().weights(5) == pytest.approx([1 / 3, 4 / 15, 1 / 5, 2 / 15, 1 / 15])
    assert Arith(eps=1.0).weights(3) == pytest.approx([3 / 4, 1 / 2, 1 / 4])
    assert Arith(shares=(0.3, 0.3, 0.4)).weights(3) == (0.3, 0.3, 0.4)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_weights_sum_to_one_by_default_and_fall_evenly(n):
    weights = Arith().weights(n)
    assert sum(weights) == pytest.approx(1.0)
    assert [round(w / weights[-1]) for w in weights] == list(range(n, 0, -1))


@pytest.mark.parametrize(
    ("n", "eps", "k"), every_pair([1, 2, 3, 5], [None, 0.0, 1.0, 2.5], [1, 2, 3])
)
def test_the_step_ends_in_the_centroid_of_what_was_visited(n, eps, k, model, task):
    """Eq. 5 of the paper is its Eq. 6."""
    model.double()
    method = Arith(eps=eps, steps_per_domain=k, outer="plain", inner_rate=7.0)
    start, batches = theta(model), random_batches(n)
    learner = method.setup(copy.deepcopy(model), task)
    order = seeded_order(n + k, n)
    visited, position = [], start.clone()
    for i in order:
        for piece in split_batch(batches[i], k):
            position = position - 0.07 * slope(model, position, piece)
        visited.append(position)
    weight = n * (n - 1) / 2 if eps is None else eps
    method.update(learner, batches)
    agree(theta(learner.model), (weight * start + sum(visited)) / (n + weight), atol=1e-13)
    assert (position - start).norm() > 1e-2


def test_one_domain_and_no_inertia_is_gradient_descent(model, task, stream):
    descent = replace(task, optimizer=partial(SGD, lr=0.1))
    method = Arith(eps=0.0, outer="plain")
    learner = method.setup(copy.deepcopy(model).double(), descent)
    plain = ERM().setup(model.double(), descent)
    for _ in range(5):
        only = precise(next(stream))[:1]
        logs, expected = method.update(learner, only), ERM().update(plain, only)
        agree(logs["loss"], expected["loss"])
        agree(theta(learner.model), theta(plain.model), atol=1e-14)


@pytest.mark.parametrize("outer", ["divided", "plain", "raw"])
@pytest.mark.parametrize("k", [1, 3])
def test_equal_weights_are_fish_with_plain_steps(k, outer, model, task):
    batches, result = random_batches(3), []
    options = {"outer": outer, "steps_per_domain": k, "inner_rate": 5.0}
    for method in (Arith(shares=(0.3,) * 3, **options), Fish(inner="sgd", meta_lr=0.3, **options)):
        learner = method.setup(copy.deepcopy(model).double(), task)
        torch.manual_seed(0)
        for _ in range(3):
            method.update(learner, batches)
        result.append(theta(learner.model))
    assert torch.equal(*result)


def test_a_great_eps_stays_where_it_is(model, task):
    method = Arith(eps=1e9, outer="plain")
    learner, before = method.setup(model.double(), task), theta(model)
    method.update(learner, random_batches(3))
    agree(theta(model), before, atol=1e-9)


def test_the_first_domain_moves_the_step_most(model, task, monkeypatch):
    batches = random_batches(3)
    before, moved = risks(model.double(), batches).detach(), []
    for order in ((0, 1, 2), (2, 1, 0)):
        fix_order(monkeypatch, order)
        method = Arith(outer="plain")
        learner = method.setup(copy.deepcopy(model), task)
        method.update(learner, batches)
        moved.append(before - risks(learner.model, batches).detach())
    assert moved[0][0] > moved[1][0]
    assert moved[1][2] > moved[0][2]


@pytest.mark.parametrize("eps", [-1, -1e-9])
def test_an_eps_below_zero_is_refused(eps):
    with pytest.raises(SpecError, match=r"^arith\.eps=-\S+: must not be below 0$"):
        build(Arith, {"eps": eps}, "arith")


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.25,) * 4])
def test_weights_of_the_wrong_number_are_refused(shares):
    message = rf"^arith\.shares: {len(shares)} weights for 3 source domain\(s\) per step; give one"
    with pytest.raises(SpecError, match=message):
        Arith(shares=shares).check(3)
    Arith(shares=shares).check(len(shares))


def test_any_number_of_domains_will_do_without_weights_of_ones_own():
    for domains in (1, 2, 10):
        Arith().check(domains)


def test_twins_have_a_domain_less_and_weights_for_all_do_not_fit_them():
    settings = {"arith.shares": "0.5,0.3,0.2"}
    assert len(make_benchmark("spirals", "arith", trials=1, settings=settings).runs()) == 4
    with pytest.raises(SpecError, match="3 weights for 2 source domain"):
        make_benchmark("spirals", "arith", trials=1, settings=settings, rules="all").runs()


def test_weights_in_a_record_are_found_again(tmp_path):
    settings = {"steps": 3, "arith.shares": "0.5, 0.3, 0.2"}
    first = bench("spirals", "arith", trials=1, settings=settings, store=tmp_path)
    again = bench("spirals", "arith", trials=1, settings=settings, store=tmp_path)
    assert [record.run.params["shares"] for record in first] == [(0.5, 0.3, 0.2)] * 4
    assert again == first
