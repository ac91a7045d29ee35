"""The inner loop: what it visits, in which order, and what it leaves behind."""

import copy
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.data.lookup import find_dataset
from afield.data.samples import Batch
from afield.runs.run_setup import make_stream
from afield.studies.settings import resolve_run
from afield.tensors import flatten
from afield.training.inner_loop import InnerLoop, split_batch
from afield.training.learner import Task
from afield.training.method import Method, pool
from afield.training.methods.arith import Arith
from afield.training.methods.fish import Fish
from afield.training.methods.maml import MAML
from afield.training.methods.mldg import MLDG
from afield.training.methods.reptile import Reptile
from tests.training.methods.reference import (
    agree,
    batch_of,
    fix_order,
    followed,
    precise,
    random_batches,
    seeded_order,
    slope,
    theta,
)

SGD_FISH = Fish(inner="sgd", meta_lr=1 / 3)
FIRST_ORDER = [Arith(), SGD_FISH, Fish(), MAML(), Reptile()]
OUTERS = ["divided", "raw", "plain"]
IN_ORDER = (0, 1, 2)


def named(method: Method) -> str:
    """A method by its name and what is not its default."""
    usual = vars(type(method)())
    options = [f"{name}={value}" for name, value in vars(method).items() if value != usual[name]]
    return ",".join([type(method).__name__, *options])


@pytest.fixture
def descent(task) -> Task:
    """Plain gradient descent in place of Adam."""
    return replace(task, optimizer=partial(torch.optim.SGD, lr=0.1))


class Normed(nn.Module):
    """A network with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)).relu())


class Partial(nn.Module):
    """A network with a layer that is frozen and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.frozen(x).relu())


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def inner_loop_by_hand(model: nn.Module, batches: list[Batch], *, rate: float) -> nn.Module:
    """A copy of the model after plain steps on these batches, one after the other."""
    model = copy.deepcopy(model)
    for batch in batches:
        model.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(rate * parameter.grad)
    return model


def marked(n: int, *, size: int) -> list[Batch]:
    """Batches of n domains, in which every sample has a number of its own."""
    numbers = torch.arange(n * size).view(n, size)
    return [batch_of(row[:, None].float(), row % 4, d) for d, row in enumerate(numbers)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_pieces_together_are_the_whole_batch(count):
    (batch,) = random_batches(1)
    result = split_batch(batch, count)
    assert len(result) == count
    assert all(torch.equal(a, b) for a, b in zip(pool(result), batch, strict=True))
    sizes = [len(piece.y) for piece in result]
    assert max(sizes) - min(sizes) <= 1


def test_a_small_batch_has_fewer_pieces_and_none_is_empty():
    (batch,) = random_batches(1, size=3)
    assert [len(piece.y) for piece in split_batch(batch, 5)] == [1, 1, 1]


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_each_domain_has_k_batches_which_together_are_its_own(k):
    torch.manual_seed(0)
    batches = marked(4, size=10)
    stages = Arith(steps_per_domain=k).rounds(batches)
    assert [len(stage) for stage in stages] == [k] * 4
    together = [pool(stage) for stage in stages]
    assert all(len(set(whole.domain.tolist())) == 1 for whole in together)
    result = {whole.domain[0].item(): whole.x.flatten().tolist() for whole in together}
    assert result == {d: batch.x.flatten().tolist() for d, batch in enumerate(batches)}


@pytest.mark.parametrize("k", [1, 3])
def test_an_inner_loop_that_is_not_by_domain_uses_every_sample_once_and_mixes_domains(k):
    torch.manual_seed(0)
    batches = marked(3, size=12)
    stages = Arith(steps_per_domain=k, by_domain=False).rounds(batches)
    assert [[len(batch.y) for batch in stage] for stage in stages] == [[12 // k] * k] * 3
    whole = pool([batch for stage in stages for batch in stage])
    assert sorted(whole.x.flatten().tolist()) == list(range(36))
    # A sample keeps its class and its domain.
    assert torch.equal(whole.y, whole.x.flatten().long() % 4)
    assert torch.equal(whole.domain, whole.x.flatten().long() // 12)
    assert all(len(set(pool(stage).domain.tolist())) == 3 for stage in stages)


def test_mixtures_differ_from_step_to_step():
    torch.manual_seed(0)
    method, batches = Arith(by_domain=False), marked(3, size=12)
    first, second = (pool(method.rounds(batches)[0]).x.flatten().tolist() for _ in range(2))
    assert set(first) != set(second)


@pytest.mark.parametrize("k", [1, 4])
def test_a_run_draws_a_batch_for_each_inner_step(k, samples):
    spirals = find_dataset("spirals")
    settings = {"batch": 5, "arith.steps_per_domain": k}
    run = resolve_run(spirals, "arith", spirals.domains[:3], settings=settings)
    stream = make_stream(run, samples, times=Arith(steps_per_domain=k).batches_per_group)
    stages = Arith(steps_per_domain=k).rounds(next(stream))
    assert [[len(batch.y) for batch in stage] for stage in stages] == [[5] * k] * 3


def test_all_orders_occur_and_equally_often():
    torch.manual_seed(0)
    method, batches, steps = Arith(), marked(3, size=2), 600
    result = Counter(
        tuple(stage[0].domain[0].item() for stage in method.rounds(batches)) for _ in range(steps)
    )
    assert set(result) == set(permutations(range(3)))
    # Five standard deviations of a share of a sixth.
    slack = 5 * (steps * 1 / 6 * 5 / 6) ** 0.5
    assert all(abs(count - steps / 6) < slack for count in result.values())


def seen_domains(model, method, task, batches, *, steps: int) -> list[int]:
    """The domains that the model meets, one number for each forward pass."""
    result, whole = [], pool(batches)
    of = dict(zip(whole.x[:, 0].tolist(), whole.domain.tolist(), strict=True))
    handle = model.register_forward_pre_hook(lambda _, x: result.append(of[x[0][0, 0].item()]))
    learner = method.setup(model, task)
    for _ in range(steps):
        method.update(learner, batches)
    handle.remove()
    return result


@pytest.mark.parametrize("method", [Arith(), SGD_FISH, MAML(), Reptile(), MLDG()], ids=named)
def test_the_order_comes_from_the_generator_of_torch(method, model, task, stream):
    batches = next(stream)
    result = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        result.append(seen_domains(copy.deepcopy(model), method, task, batches, steps=10))
    assert result[0] == result[1] != result[2]


def test_every_step_visits_all_domains_in_the_order_that_torch_draws(model, task, stream):
    batches = next(stream)
    torch.manual_seed(3)
    expected = [i for _ in range(20) for i in torch.randperm(3).tolist()]
    torch.manual_seed(3)
    assert seen_domains(model, Arith(), task, batches, steps=20) == expected


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("k", [1, 2])
def test_an_inner_loop_of_weight_0_leaves_nothing_behind(outer, k, model, task, stream):
    method = Arith(shares=(0.0, 0.0, 0.0), outer=outer, steps_per_domain=k, inner_rate=50.0)
    learner = method.setup(model, task)
    before = theta(model)
    for _ in range(3):
        method.update(learner, next(stream))
    assert torch.equal(theta(model), before)


@pytest.mark.parametrize("method", [Arith(), MAML(), Reptile()], ids=named)
def test_weights_end_at_the_start_plus_the_outer_step(method, model, descent, stream):
    learner = method.setup(model.double(), descent)
    for _ in range(3):
        before = theta(model)
        method.update(learner, precise(next(stream)))
        agree(theta(model), before - 0.1 * followed(model), atol=1e-15)


@pytest.mark.parametrize("kind", [Arith, MAML, Reptile])
@pytest.mark.parametrize("k", [1, 3])
def test_with_gradient_descent_outside_the_divided_step_is_the_plain_one(kind, k, model, descent):
    batches, result = random_batches(3), []
    for outer in ("divided", "plain"):
        method = kind(outer=outer, steps_per_domain=k)
        learner = method.setup(copy.deepcopy(model).double(), descent)
        torch.manual_seed(0)
        for _ in range(3):
            method.update(learner, batches)
        result.append(theta(learner.model))
    agree(*result, atol=1e-14)
    assert not torch.allclose(result[0], theta(model.double()))


@pytest.mark.parametrize("kind", [Arith, MAML, Reptile])
def test_raw_is_the_divided_step_times_the_inner_rate(kind, model, task):
    batches, result = random_batches(3), {}
    for outer in ("divided", "raw"):
        method = kind(outer=outer, inner_rate=3.0)
        learner = method.setup(copy.deepcopy(model).double(), task)
        torch.manual_seed(0)
        method.update(learner, batches)
        result[outer] = followed(learner.model)
    agree(result["raw"], 3.0 * 0.01 * result["divided"], atol=1e-15)


@pytest.mark.parametrize("outer", OUTERS)
def test_the_loss_that_is_logged_is_the_mean_over_the_inner_loop(
    outer, model, descent, monkeypatch
):
    fix_order(monkeypatch, IN_ORDER)
    model.double()
    batches, method = random_batches(3), Arith(steps_per_domain=2, inner_rate=2.0, outer=outer)
    start = copy.deepcopy(model)
    steps = [piece for batch in batches for piece in split_batch(batch, 2)]
    met = [inner_loop_by_hand(start, steps[:i], rate=0.2) for i in range(len(steps))]
    losses = [F.cross_entropy(m(b.x), b.y) for m, b in zip(met, steps, strict=True)]
    logs = method.update(method.setup(model, descent), batches)
    agree(logs["loss"], torch.stack(losses).mean().detach())


@pytest.mark.parametrize(
    "first_order",
    [Arith(), Arith(shares=(0.2, 0.3, 0.5)), MAML(), replace(SGD_FISH, outer="divided")],
    ids=named,
)
def test_without_a_rate_every_inner_loop_is_the_weighted_mean_gradient(first_order, model, task):
    batches, missed = random_batches(3), []
    model.double()
    for inner_rate in (1e-1, 1e-2, 1e-3, 1e-6):
        method = replace(first_order, inner_rate=inner_rate)
        learner = method.setup(copy.deepcopy(model), task)
        order = seeded_order(5, 3)
        method.update(learner, batches)
        weights = method.weights(3)
        assert sum(weights) == pytest.approx(1.0)
        mean = sum(
            w * slope(model, theta(model), batches[i]) for w, i in zip(weights, order, strict=True)
        )
        missed.append((followed(learner.model) - mean).norm().item())
    assert missed[-1] < 1e-6
    # The remaining difference shrinks with the inner rate.
    assert all(8 < more / less < 12 for more, less in pairwise(missed[:3]))


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_momentum_is_an_average_that_is_carried_over_updates(beta, k, model, descent, monkeypatch):
    fix_order(monkeypatch, IN_ORDER)
    model.double()
    method = Arith(momentum=beta, steps_per_domain=k, outer="plain")
    learner, at = method.setup(model, descent), theta(model)
    velocity = torch.zeros_like(at)
    for update in range(3):
        batches = random_batches(3 + update)[:3]
        position, total = at.clone(), torch.zeros_like(at)
        for weight, batch in zip((1 / 2, 1 / 3, 1 / 6), batches, strict=True):
            for piece in split_batch(batch, k):
                velocity = beta * velocity + (1 - beta) * slope(model, position, piece)
                position = position - 0.1 * velocity
                total = total + weight * velocity
        at = at - 0.1 * total
        method.update(learner, batches)
        agree(theta(model), at)
        agree(flatten(list(learner.memory.values())), velocity)


def test_without_momentum_nothing_is_carried(model, task, stream):
    learner = Arith().setup(model, task)
    Arith().update(learner, next(stream))
    assert learner.memory == {}


@pytest.mark.parametrize("kind", [Arith, Reptile])
def test_momentum_survives_a_round_trip(kind, model, task, stream):
    method, batches = kind(momentum=0.9), [next(stream) for _ in range(4)]
    learner = method.setup(copy.deepcopy(model), task)
    torch.manual_seed(0)
    for each in batches[:2]:
        method.update(learner, each)
    state, random = copy.deepcopy(learner.state_dict()), torch.get_rng_state()
    for each in batches[2:]:
        method.update(learner, each)
    again = method.setup(model, task)
    again.load_state_dict(state)
    torch.set_rng_state(random)
    for each in batches[2:]:
        method.update(again, each)
    assert torch.equal(flatten(again.parameters()), flatten(learner.parameters()))


@pytest.mark.parametrize("k", [1, 2])
def test_statistics_come_from_the_inner_loop_and_stay(k, descent, monkeypatch):
    fix_order(monkeypatch, IN_ORDER)
    torch.manual_seed(0)
    model, batches = Normed().double(), random_batches(3)
    method = Arith(steps_per_domain=k, inner_rate=2.0)
    steps = [piece for batch in batches for piece in split_batch(batch, k)]
    expected = buffers(inner_loop_by_hand(model, steps, rate=0.2))
    method.update(method.setup(model, descent), batches)
    result = buffers(model)
    agree(result, expected)
    assert result["norm.num_batches_tracked"] == 3 * k


def test_statistics_of_parallel_inner_loops_come_from_all_of_them(descent, monkeypatch):
    fix_order(monkeypatch, IN_ORDER)
    torch.manual_seed(0)
    model, batches = Normed().double(), random_batches(3)
    expected = copy.deepcopy(model)
    for batch in batches:
        copied = copy.deepcopy(model)
        copied.load_state_dict(expected.state_dict() | dict(model.named_parameters()))
        copied = inner_loop_by_hand(copied, split_batch(batch, 2), rate=0.1)
        expected.load_state_dict(expected.state_dict() | buffers(copied))
    Reptile().update(Reptile().setup(model, descent), batches)
    agree(buffers(model), buffers(expected))


@pytest.mark.parametrize(
    "method", [*FIRST_ORDER, MLDG(), MLDG(inner="sgd", second_order=True)], ids=named
)
def test_frozen_statistics_stay(method, task):
    torch.manual_seed(0)
    model = Normed().double()
    model.norm.eval()
    before = buffers(model)
    method.update(method.setup(model, task), random_batches(3))
    assert all(torch.equal(buffer, before[name]) for name, buffer in buffers(model).items())


@pytest.mark.parametrize(
    "method",
    [
        *FIRST_ORDER,
        Arith(momentum=0.9),
        Arith(outer="plain"),
        Arith(by_domain=False),
        MLDG(),
        MLDG(inner="sgd"),
        MLDG(inner="sgd", second_order=True),
    ],
    ids=named,
)
def test_what_is_frozen_or_unused_stays_and_the_rest_moves(method, task):
    torch.manual_seed(0)
    model = Partial().double()
    before = copy.deepcopy(model.state_dict())
    learner = method.setup(model, task)
    for n in (3, 4):
        method.update(learner, random_batches(n)[:3])
    moved = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert moved == {"last.weight", "last.bias"}


@pytest.mark.parametrize("method", FIRST_ORDER, ids=named)
def test_a_step_may_be_over_a_few_of_many_domains(method, model, task):
    many = replace(task, sources=tuple(f"domain{i}" for i in range(9)))
    learner = method.setup(model.double(), many)
    before = theta(model)
    for count in (2, 1, 4):
        method.update(learner, random_batches(count))
    assert not torch.equal(theta(model), before)


def test_an_inner_loop_without_weights_is_refused():
    with pytest.raises(NotImplementedError, match="InnerLoop does not override weights"):
        InnerLoop().weights(3)
