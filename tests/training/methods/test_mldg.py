import copy
from dataclasses import replace
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from afield.errors import SpecError
from afield.hyperparameters import build
from afield.reporting.benchmarking import bench
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import plan_run
from afield.tensors import flatten
from afield.training.learner import Task
from afield.training.methods.erm import ERM
from afield.training.methods.mldg import MLDG
from tests.training.methods.reference import (
    agree,
    assert_equals_the_reference,
    batch_of,
    expected,
    fix_order,
    followed,
    random_batches,
    risk,
    seeded_order,
    slope,
    theta,
)

RATE = 0.1
# The two orders; a step on domain i is a plain one in both.
FIRST, SECOND = MLDG(inner="sgd"), MLDG(inner="sgd", second_order=True)


@pytest.fixture
def descent(task):
    return replace(task, optimizer=partial(SGD, lr=RATE))


@pytest.mark.parametrize(
    ("tests", "name"), [(1, "MLDG_ntest1"), (2, "MLDG_ntest2"), (0, "MLDG_oldpairs")]
)
def test_three_updates_equal_the_reference(tests, name, monkeypatch):
    def use_order(update):
        fix_order(monkeypatch, expected(name, update, "perm").tolist())

    def gradients(learner):
        linear = learner.model
        own = {"accum_gradW": linear.weight.grad, "accum_gradb": linear.bias.grad}
        # Of the ring, the reference has none.
        return own if tests else {}

    method = MLDG(tests=tests)
    assert_equals_the_reference(method, name, before_update=use_order, further=gradients)


def test_in_a_ring_every_domain_is_trained_on_once_and_tested_on_once():
    for n in range(2, 7):
        order = torch.randperm(n).tolist()
        pairs = MLDG().pairs(order)
        assert len(pairs) == n
        assert [i for i, _ in pairs] == order
        assert sorted(j for _, j in pairs) == list(range(n))
        assert all(i != j for i, j in pairs)


@pytest.mark.parametrize(
    ("tests", "order", "pairs"),
    [
        (0, [2, 0, 1], [(2, 0), (0, 1), (1, 2)]),
        (0, [1, 0], [(1, 0), (0, 1)]),
        (1, [2, 0, 1], [(2, 1), (0, 1)]),
        (2, [2, 0, 1], [(2, 0)]),
        (2, [4, 2, 0, 1, 3], [(4, 1), (2, 3), (0, 1)]),
    ],
)
def test_pairs_are_these(tests, order, pairs):
    assert MLDG(tests=tests).pairs(order) == pairs


def test_with_two_test_domains_one_of_three_goes_unused(model, task):
    result = []
    for other in (3, 4):
        order = seeded_order(0, 3)
        domains = random_batches(3)
        domains[order[-1]] = random_batches(other)[order[-1]]
        learner = MLDG(tests=2).setup(copy.deepcopy(model).double(), task)
        MLDG(tests=2).update(learner, domains)
        result.append(theta(learner.model))
    assert torch.equal(*result)


def both_losses(model, at, train, test, *, rate, beta):
    """The loss of a pair, with the step between the two written out."""
    moved = at - rate * slope(model, at, train)
    return risk(model, at, train) + beta * risk(model, moved, test)


def whole(model, domains, pairs, *, rate, beta):
    """The loss of a step, as a function of all weights."""

    def loss(at: torch.Tensor) -> torch.Tensor:
        each = [
            both_losses(model, at, domains[i], domains[j], rate=rate, beta=beta) for i, j in pairs
        ]
        return torch.stack(each).sum() / len(domains)

    return loss


@pytest.mark.parametrize("tests", [0, 1, 2])
@pytest.mark.parametrize(("beta", "inner_rate"), [(1.0, 1.0), (0.3, 20.0), (5.0, 5.0)])
def test_the_second_order_is_the_derivative_through_the_step(
    tests, beta, inner_rate, model, descent
):
    model.double()
    method = replace(SECOND, tests=tests, beta=beta, inner_rate=inner_rate)
    learner, domains = method.setup(copy.deepcopy(model), descent), random_batches(3)
    pairs = method.pairs(seeded_order(6, 3))
    loss = whole(model, domains, pairs, rate=inner_rate * RATE, beta=beta)
    agree(method.update(learner, domains)["loss"], loss(theta(model)))
    agree(followed(learner.model), torch.func.grad(loss)(theta(model)))
    agree(theta(learner.model), theta(model) - RATE * followed(learner.model))


def test_the_second_order_is_what_small_differences_say(model, descent):
    model.double()
    # Without kinks, differences are as exact as they can be.
    model = nn.Sequential(model.features[0], nn.Tanh(), model.head)
    method = replace(SECOND, inner_rate=10.0)
    learner, domains = method.setup(copy.deepcopy(model), descent), random_batches(3)
    loss = whole(model, domains, method.pairs(seeded_order(6, 3)), rate=1.0, beta=1.0)
    method.update(learner, domains)
    at, gradient = theta(model), followed(learner.model)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        way = torch.randn(at.shape, generator=generator, dtype=torch.float64)
        rise = (loss(at + 1e-5 * way) - loss(at - 1e-5 * way)) / 2e-5
        agree(gradient @ way, rise, atol=1e-7)


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("tests", [0, 1, 2])
def test_the_first_order_is_the_gradient_here_and_the_gradient_there(tests, beta, model, descent):
    model.double()
    method = replace(FIRST, tests=tests, beta=beta, inner_rate=10.0)
    learner, domains, at = (
        method.setup(copy.deepcopy(model), descent),
        random_batches(3),
        theta(model),
    )
    total = torch.zeros_like(at)
    for i, j in method.pairs(seeded_order(6, 3)):
        here = slope(model, at, domains[i])
        total += (here + beta * slope(model, at - 1.0 * here, domains[j])) / 3
    method.update(learner, domains)
    agree(followed(learner.model), total)


def test_both_orders_log_the_same_loss_and_differ_in_the_gradient(model, descent):
    domains, logs, gradients = random_batches(3), [], []
    for method in (FIRST, SECOND):
        learner = method.setup(copy.deepcopy(model).double(), descent)
        torch.manual_seed(0)
        logs.append(method.update(learner, domains)["loss"])
        gradients.append(followed(learner.model))
    agree(*logs)
    assert (gradients[0] - gradients[1]).norm() > 1e-3 * gradients[0].norm()


def test_the_second_order_tends_to_the_first_as_the_inner_rate_does_to_nothing(model, descent):
    domains, apart = random_batches(3), []
    for inner_rate in (1e-1, 1e-2, 1e-3, 1e-7):
        gradients = []
        for order in (FIRST, SECOND):
            method = replace(order, inner_rate=inner_rate)
            learner = method.setup(copy.deepcopy(model).double(), descent)
            torch.manual_seed(0)
            method.update(learner, domains)
            gradients.append(followed(learner.model))
        apart.append((gradients[0] - gradients[1]).norm().item())
    assert 8 < apart[0] / apart[1] < 12
    assert 8 < apart[1] / apart[2] < 12
    assert apart[3] < 1e-7


@pytest.mark.parametrize("method", [FIRST, SECOND, MLDG()], ids=["first", "second", "optimizer"])
def test_in_a_ring_without_a_rate_it_is_erm_twice(method, model, descent, task):
    """Each domain's gradient counts once as trained on, and beta times as tested on."""
    model.double()
    method = replace(method, inner_rate=0.0, beta=0.5)
    learner, domains = method.setup(copy.deepcopy(model), descent), random_batches(3)
    plain = ERM().setup(copy.deepcopy(model), descent)
    logs, expected_logs = method.update(learner, domains), ERM().update(plain, domains)
    agree(followed(learner.model), 1.5 * followed(plain.model))
    agree(logs["loss"], 1.5 * expected_logs["loss"])


@pytest.mark.parametrize("method", [FIRST, SECOND, MLDG()], ids=["first", "second", "optimizer"])
def test_nothing_of_the_inner_steps_is_left(method, model, descent):
    method = replace(method, inner_rate=30.0)
    learner = method.setup(model.double(), descent)
    for n in (3, 4):
        before = theta(model)
        method.update(learner, random_batches(n)[:3])
        agree(theta(model), before - RATE * followed(model), atol=1e-15)


def test_the_optimiser_of_the_inner_step_is_fresh_in_every_pair(model, task):
    """A first step of Adam is as long as its rate, whatever came before."""
    method, domains, moved = MLDG(inner_rate=7.0), random_batches(3), []
    learner, met = method.setup(model.double(), task), []
    model.register_forward_pre_hook(lambda *_: met.append(theta(model)))
    for _ in range(3):
        method.update(learner, domains)
    for before, after in zip(met[::2], met[1::2], strict=True):
        steps = (after - before).abs()
        moved.append(steps[steps > 1e-6])
    assert len(moved) == 9
    for steps in moved:
        torch.testing.assert_close(steps, torch.full_like(steps, 0.07), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
        partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=False),
        partial(torch.optim.RMSprop, lr=0.1),
    ],
    ids=["adamw", "momentum", "nesterov", "rmsprop"],
)
def test_the_inner_step_of_any_optimiser_leaves_the_first_gradient_alone(optimizer, model, task):
    model.double()
    method, domains, at = MLDG(), random_batches(3), theta(model)
    learner = method.setup(copy.deepcopy(model), replace(task, optimizer=optimizer))
    total = torch.zeros_like(at)
    for i, j in method.pairs(seeded_order(6, 3)):
        moved = copy.deepcopy(model)
        F.cross_entropy(moved(domains[i].x), domains[i].y).backward()
        optimizer(moved.parameters()).step()
        total += (slope(model, at, domains[i]) + slope(model, theta(moved), domains[j])) / 3
    method.update(learner, domains)
    agree(followed(learner.model), total)


def test_an_optimiser_that_writes_to_its_gradients_takes_the_same_step(model, task):
    """Nesterov's momentum does so where it handles all tensors at once."""
    ends = []
    for at_once in (False, True):
        optimizer = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=at_once)
        learner = MLDG().setup(copy.deepcopy(model).double(), replace(task, optimizer=optimizer))
        torch.manual_seed(0)
        MLDG().update(learner, random_batches(3))
        ends.append(theta(learner.model))
    agree(*ends)


@pytest.mark.parametrize("method", [FIRST, SECOND, MLDG()], ids=["first", "second", "optimizer"])
def test_statistics_of_batch_norm_are_those_of_all_passes(method, descent, monkeypatch):
    fix_order(monkeypatch, (0, 1, 2))
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(norm, nn.Linear(6, 4)).double()
    domains, right = random_batches(3), copy.deepcopy(norm)
    # The first layer sees the same, wherever the weights are.
    for i in (0, 1, 1, 2, 2, 0):
        right(domains[i].x)
    method.update(method.setup(model, descent), domains)
    agree(dict(norm.named_buffers()), dict(right.named_buffers()))


@pytest.mark.parametrize(
    ("tests", "domains", "message"),
    [
        (0, 1, r"^mldg needs 2 or more source domains per step to make a pair, not 1"),
        (1, 1, r"^mldg needs 2 or more source domains .*, not 1 \(mldg\.tests=1\)$"),
        (2, 2, r"^mldg needs 3 or more .*, not 2 \(mldg\.tests=2\); use mldg\.tests=0$"),
        (2, 1, r"^mldg needs 3 or more source domains .*, not 1 \(mldg\.tests=2\)$"),
    ],
)
def test_too_few_domains_for_a_pair_are_refused(tests, domains, message, model, task):
    method = MLDG(tests=tests)
    with pytest.raises(SpecError, match=message):
        method.check(domains)
    learner, before = method.setup(model.double(), task), theta(model)
    with pytest.raises(SpecError, match=message):
        method.update(learner, random_batches(domains))
    assert torch.equal(theta(model), before)


@pytest.mark.parametrize(("tests", "least"), [(0, 2), (1, 2), (2, 3), (3, 4)])
def test_as_many_domains_as_make_a_pair_are_enough(tests, least, model, task):
    method = MLDG(tests=tests)
    method.check(least)
    learner, before = method.setup(model.double(), task), theta(model)
    method.update(learner, random_batches(least))
    assert not torch.equal(theta(model), before)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(SpecError, match=r"^mldg\.second_order needs mldg\.inner=sgd$"):
        build(MLDG, {"second_order": True})
    with pytest.raises(SpecError, match=r"^mldg\.tests=-1: must not be below 0$"):
        build(MLDG, {"tests": -1}, "mldg")


def test_twins_with_too_few_domains_are_refused_before_anything_is_trained(tmp_path):
    options = {"settings": {"mldg.tests": 2}, "rules": "all"}
    message = "3 or more source domains .* not 2"
    with pytest.raises(SpecError, match=message):
        make_benchmark("spirals", ["erm", "mldg"], **options).runs()
    with pytest.raises(SpecError, match=message):
        bench("spirals", ["erm", "mldg"], store=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_what_can_be_is_planned():
    settings = {"mldg.tests": 2, "mldg.inner": "sgd", "mldg.second_order": True}
    assert plan_run("spirals", "mldg", target="turn0", settings=settings).params["tests"] == 2
    # The twins of the second rule have two source domains: enough for a ring.
    assert len(make_benchmark("spirals", "mldg", trials=1, rules="all").runs()) == 4 + 6


def test_gradients_reach_the_inner_optimiser_in_the_layout_of_the_weights():
    """Networks that standardise their weights give gradients in another layout."""

    class Standardised(nn.Conv2d):
        def forward(self, x):
            weight = self.weight.reshape(1, len(self.weight), -1)
            weight = F.batch_norm(weight, None, None, training=True).reshape_as(self.weight)
            return self._conv_forward(x, weight, self.bias)

    torch.manual_seed(0)
    layers = (
        Standardised(3, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    batches = [batch_of(torch.randn(5, 3, 6, 6), torch.randint(3, (5,)), i) for i in range(3)]
    ends = []
    for fused in (False, True):
        optimizer = partial(torch.optim.Adam, lr=0.05, fused=fused)
        task = Task(tuple("abc"), tuple("012"), 1, nn.Linear, optimizer)
        learner = MLDG().setup(copy.deepcopy(model), task)
        torch.manual_seed(0)
        for _ in range(3):
            MLDG().update(learner, batches)
        ends.append(flatten(list(learner.model.parameters())))
    torch.testing.assert_close(*ends)


def test_the_second_order_goes_through_attention(task):
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4, depth=1)
    batches = [batch_of(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]), i) for i in range(2)]
    method = MLDG(inner="sgd", second_order=True)
    assert method.update(method.setup(model, task), batches)["loss"].isfinite()
