"""Seed categories: the groups, when they are made, and the weights that follow them."""

import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.data.domains import Domain
from afield.data.samples import pool_domains
from afield.data.stream import Stream
from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.runs.store import Store
from afield.training.averages.last import Last
from afield.training.learner import Task
from afield.training.loop import checkpoints
from afield.training.method import risks
from afield.training.methods.groupdro import GroupDRO
from afield.training.methods.seed_category import Grouping, SeedCategory
from tests.files import GOLDEN
from tests.runs.interruption import interrupt
from tests.runs.small_runs import regrouping_run
from tests.training.methods.reference import batch_of, theta

REFERENCE = np.load(GOLDEN / "seed_categories.npz")


def reference(name):
    return torch.from_numpy(REFERENCE[name])


def grouped(method, model, task, samples):
    """The first groups, as lists."""
    groups = method.regroup(method.setup(model, task), samples)
    return [group.tolist() for group in groups]


def trained(method, model, task, samples, *, steps, **settings):
    """The weights of the network and of the groups after every step, and at last the learner."""
    learner, average = method.setup(copy.deepcopy(model), task), Last()
    average.setup(learner.model, steps=task.steps)
    stream = Stream(samples, seed=0, **{"batch": 8} | settings)
    steps_done = checkpoints(method, learner, average, stream, lambda _: {}, steps=steps, every=1)
    return [(theta(learner.model), learner.memory["q"].clone()) for _ in steps_done], learner


def loss_of(model, samples):
    """The loss of every sample, as the groups should see it."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        logits = model(samples.prepare(samples.x.in_memory))
        return F.cross_entropy(logits, samples.y, reduction="none")


def identity(classes=4, width=6):
    """A network whose features are its inputs."""
    return Classifier(nn.Identity(), width, classes)


# Reference numbers


class Given(nn.Module):
    """A network of two classes whose cross-entropy, for the first, is the number put in."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        z = torch.log(torch.expm1(x))
        return torch.cat([torch.zeros_like(z), z], dim=1) + self.unused


def given_task(steps=100):
    optimizer = partial(torch.optim.SGD, lr=0.0)
    return Task(("a", "b", "c"), ("0", "1"), steps, lambda _: Given(), optimizer)


def given_samples():
    losses = [reference(f"domain{d}/losses") for d in range(3)]
    made = {
        str(d): Domain(x=x[:, None], y=torch.zeros(len(x)).long()) for d, x in enumerate(losses)
    }
    return pool_domains(made)


def test_groups_by_loss_equal_the_reference():
    result = grouped(SeedCategory(), Given(), given_task(), given_samples())
    labels = [reference(f"domain{d}/seed_category_ascending") for d in range(3)]
    label = torch.cat([4 * d + each for d, each in enumerate(labels)])
    assert result == [(label == number).nonzero().flatten().tolist() for number in range(12)]


def test_three_updates_of_the_groups_weights_equal_the_reference():
    method = SeedCategory(eta=0.01)
    learner = method.setup(Given(), given_task())
    stream = Stream(given_samples(), batch=4, seed=0)
    stream.regroup(method.regroup(learner, stream.samples))
    assert len(stream.groups) == 12
    for step in (1, 2, 3):
        losses = reference(f"q/losses_step{step}")
        label = torch.zeros(1, dtype=torch.int64)
        batches = [batch_of(loss.view(1, 1), label, c) for c, loss in enumerate(losses)]
        logs = method.update(learner, batches)
        learner.step += 1
        agree = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
        agree(learner.memory["q"], reference(f"q/q_step{step}"))
        agree(logs["loss"], reference(f"q/weighted_loss_step{step}"))


# Limits


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 1},
        {"count": 1, "grouping": "kmeans"},
        {"grouping": "domain"},
        {"count": 2, "grouping": "domain", "period": 7},
        {"grouping": "graph", "radius": 1e6, "period": 60},
    ],
    ids=str,
)
@pytest.mark.parametrize("per_step", [0, 2])
def test_domains_that_are_left_whole_are_group_dro_to_the_last_bit(
    model, task, samples, settings, per_step
):
    # With five periods in these steps; the groups of `graph` are made anew, so it has one.
    method = SeedCategory(**{"eta": 0.1, "period": 0.1} | settings)
    result, _ = trained(method, model, task, samples, steps=50, per_step=per_step)
    expected, _ = trained(GroupDRO(eta=0.1), model, task, samples, steps=50, per_step=per_step)
    assert len(result) == len(expected) == 50
    for (weights, q), (its_weights, its_q) in zip(result, expected, strict=True):
        assert torch.equal(weights, its_weights)
        assert torch.equal(q, its_q)
    assert result[-1][1].max() > 1.01 / 3, "the weights hardly move: the test has lost its point"


def test_two_groups_a_domain_are_something_else(model, task, samples):
    result, _ = trained(SeedCategory(eta=0.1, count=2), model, task, samples, steps=2)
    expected, _ = trained(GroupDRO(eta=0.1), model, task, samples, steps=2)
    assert not torch.equal(result[-1][0], expected[-1][0])


@pytest.mark.parametrize("grouping", get_args(Grouping))
def test_without_a_rate_it_is_the_mean_over_groups(grouping, model, task, samples):
    method = SeedCategory(eta=0.0, grouping=grouping)
    learner, stream = method.setup(model, task), Stream(samples, batch=30, seed=0)
    stream.regroup(method.regroup(learner, samples))
    for _ in range(3):
        batches = next(stream)
        assert len(batches) == len(stream.groups)
        loss, _ = method.loss(learner, batches)
        torch.testing.assert_close(loss, risks(model, batches).mean())


# Groups


def assert_all_once(groups, samples):
    assert sorted(i for group in groups for i in group) == list(range(len(samples)))
    assert all(groups)
    assert all(a < b for group in groups for a, b in pairwise(group))


@pytest.mark.parametrize("grouping", get_args(Grouping))
def test_every_sample_is_in_one_group_and_groups_are_of_one_domain(grouping, model, task, samples):
    for count in (1, 3, 4):
        groups = grouped(SeedCategory(grouping=grouping, count=count), model, task, samples)
        assert_all_once(groups, samples)
        domains = [samples.domain[group].unique().tolist() for group in groups]
        if grouping == "class":
            assert domains == [[0, 1, 2]] * 4, count
        else:
            assert sorted(domains) == domains, count
            assert {len(each) for each in domains} == {1}, count
            assert {each[0] for each in domains} == {0, 1, 2}, count
        parts = 3 * count
        numbers = {"loss": parts, "kmeans": parts, "domain": 3, "class": 4, "domain_class": 12}
        assert len(groups) == numbers.get(grouping, len(groups)), count


def test_groups_by_loss_are_the_ranking_in_equal_parts(model, task, samples):
    groups = grouped(SeedCategory(count=3), model, task, samples)
    losses = loss_of(model, samples)
    for domain in range(3):
        mine = groups[3 * domain : 3 * domain + 3]
        sizes = [len(group) for group in mine]
        assert max(sizes) - min(sizes) <= 1
        for easier, harder in pairwise(mine):
            assert losses[easier].max() <= losses[harder].min()


def test_groups_by_class_are_the_classes_and_those_of_every_domain(model, task, samples):
    classes = grouped(SeedCategory(grouping="class"), model, task, samples)
    both = grouped(SeedCategory(grouping="domain_class"), model, task, samples)
    assert [samples.y[group].unique().tolist() for group in classes] == [[0], [1], [2], [3]]
    cells = [(samples.domain[group].unique(), samples.y[group].unique()) for group in both]
    assert [(int(d), int(c)) for d, c in cells] == [(d, c) for d in range(3) for c in range(4)]


@pytest.mark.parametrize("grouping", get_args(Grouping))
def test_small_domains_and_classes_that_are_missing_leave_no_empty_group(grouping, task):
    torch.manual_seed(0)
    labels = {"a": [0], "b": [3, 3, 1], "c": [1] * 9}
    samples = pool_domains(
        {name: Domain(x=torch.randn(len(y), 6), y=torch.tensor(y)) for name, y in labels.items()}
    )
    method = SeedCategory(grouping=grouping, count=4)
    model = identity()
    groups = grouped(method, model, task, samples)
    assert_all_once(groups, samples)
    if grouping in ("loss", "kmeans"):
        assert len(groups) == 1 + 3 + 4
    assert len(groups) == {"domain": 3, "class": 3, "domain_class": 4}.get(grouping, len(groups))
    # And it trains: as many weights as groups.
    result, _ = trained(method, model, task, samples, steps=3)
    assert len(result[-1][1]) == len(groups)


def test_where_all_losses_are_the_same_groups_still_are(model, task, samples):
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    groups = grouped(SeedCategory(), model, task, samples)
    assert_all_once(groups, samples)
    assert [len(group) for group in groups] == [10] * 4 + [13, 13, 12, 12] + [15] * 4


def test_kmeans_finds_what_lies_apart_in_each_domain(task):
    torch.manual_seed(0)
    # The classes lie apart, elsewhere in every domain.
    y = torch.arange(60) % 4
    domains = {
        str(d): Domain(x=50 * torch.randn(4, 6)[y] + torch.randn(60, 6), y=y) for d in range(3)
    }
    samples = pool_domains(domains)
    kmeans = grouped(SeedCategory(grouping="kmeans"), identity(), task, samples)
    classes = grouped(SeedCategory(grouping="domain_class"), identity(), task, samples)
    assert sorted(kmeans) == sorted(classes)


def test_clusters_and_seeds_are_of_features_as_they_are_in_evaluation(task, samples):
    class Far(nn.Module):
        """In training all samples are alike."""

        def forward(self, x):
            return torch.zeros_like(x) if self.training else x

    def prepare(x):
        return x / torch.tensor([1.0, 1, 1, 1, 1, 100])

    far, plain = Classifier(Far(), 6, 4).train(), identity()
    # What is stored has one large number, which is not what the network sees.
    stored = samples.x.in_memory * torch.tensor([1.0, 1, 1, 1, 1, 100])
    ready = pool_domains({"all": Domain(x=prepare(stored), y=samples.y)})
    raw = pool_domains({"all": Domain(x=stored, y=samples.y)})
    for method in (SeedCategory(grouping="kmeans"), SeedCategory(grouping="graph", radius=0.7)):
        torch.manual_seed(0)
        result = grouped(method, far, task, replace(samples, x=raw.x, prepare=prepare))
        torch.manual_seed(0)
        assert result == grouped(method, plain, task, replace(samples, x=ready.x))
        assert len(result) > 3


@pytest.mark.parametrize("grouping", ["kmeans", "graph"])
def test_the_same_seed_of_torch_gives_the_same_groups(grouping, model, task, samples):
    method = SeedCategory(grouping=grouping, radius=1.2)
    result = []
    for seed in (5, 5, 6, 7, 8):
        torch.manual_seed(seed)
        result.append(grouped(method, model, task, samples))
    assert result[0] == result[1]
    assert any(other != result[0] for other in result[2:])


# Around seeds


def adjacent(x, radius):
    """Which samples of a domain are nearer than `radius` deviations; in float64, pair by pair."""
    x = x.double()
    spread = (x - x.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    return (x[:, None] - x[None]).square().sum(dim=2).sqrt() < radius * spread


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("radius", [0.3, 0.7, 1.0, 1.5])
def test_every_group_has_a_sample_to_which_all_others_of_it_are_adjacent(
    offset, radius, task, samples
):
    x = samples.x.in_memory + offset
    moved = replace(samples, x=pool_domains({"all": Domain(x=x, y=samples.y)}).x)
    groups = grouped(SeedCategory(grouping="graph", radius=radius), identity(), task, moved)
    assert_all_once(groups, samples)
    for group in map(torch.tensor, groups):
        domain = (samples.domain == samples.domain[group[0]]).nonzero().flatten()
        near = adjacent(x[domain], radius)
        mine = torch.isin(domain, group)
        assert near[mine][:, mine].all(dim=1).any()


def test_the_larger_the_radius_the_fewer_the_groups(task, samples):
    counts = [
        len(grouped(SeedCategory(grouping="graph", radius=radius), identity(), task, samples))
        for radius in (1e-6, 0.5, 1.0, 2.0, 1e6)
    ]
    assert counts == sorted(counts, reverse=True)
    # From each sample alone to each domain whole.
    assert (counts[0], counts[-1]) == (len(samples), 3)
    assert len(set(counts)) >= 4


@pytest.mark.parametrize(("radius", "count"), [(1.9, 2), (2.1, 1)])
def test_the_radius_is_in_root_mean_square_distances_from_the_mean(radius, count, task):
    # Two places at a distance of two, thus one from their mean, in one of six features.
    x = torch.zeros(40, 6)
    x[:, 2] = 7.0 + 2 * (torch.arange(40) % 2)
    samples = pool_domains({"only": Domain(x=x, y=torch.zeros(40).long())})
    method = SeedCategory(grouping="graph", radius=radius)
    groups = grouped(method, identity(), replace(task, sources=("only",)), samples)
    assert sorted(groups) == (
        [list(range(40))] if count == 1 else [[*range(0, 40, 2)], [*range(1, 40, 2)]]
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 1e6 / 3])
def test_features_without_any_spread_are_one_group_whatever_the_rounding(task, samples, value):
    class Same(nn.Module):
        def forward(self, x):
            return torch.full_like(x, value)

    method = SeedCategory(grouping="graph")
    groups = grouped(method, Classifier(Same(), 6, 4), task, samples)
    assert groups == [group.tolist() for group in samples.by_domain()]


# When


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        (0.2, range(0, 100, 20)),
        (0.3, range(0, 100, 30)),
        (0.5, (0, 50)),
        (0.001, range(100)),
        (1, range(100)),
        (25, range(0, 100, 25)),
        (40.0, (0, 40, 80)),
        (99, (0, 99)),
        (1000, (0,)),
    ],
)
def test_groups_are_made_first_and_then_every_period(model, task, samples, period, expected):
    method = SeedCategory(period=period, count=2)
    learner, made = method.setup(model, task), []
    for learner.step in range(task.steps):
        used = learner.memory["q"] = torch.tensor([0.5, 0.2, 0.3])
        groups = method.regroup(learner, samples)
        if groups is None:
            assert learner.memory["q"] is used
        else:
            made.append(learner.step)
            assert torch.equal(learner.memory["q"], torch.ones(6))
            assert len(groups) == 6
    assert made == list(expected)


@pytest.mark.parametrize("grouping", ["kmeans", "graph"])
def test_groups_of_features_are_made_as_often_and_have_a_weight_each(
    grouping, model, task, samples
):
    method = SeedCategory(grouping=grouping, period=0.25, radius=0.7)
    learner, made = method.setup(model, task), []
    for learner.step in range(task.steps):
        groups = method.regroup(learner, samples)
        if groups is not None:
            made.append(learner.step)
            assert torch.equal(learner.memory["q"], torch.ones(len(groups)))
    assert made == [0, 25, 50, 75]


@pytest.mark.parametrize("grouping", ["domain", "class", "domain_class"])
def test_groups_that_stay_are_made_once_and_so_are_their_weights(grouping, model, task, samples):
    method = SeedCategory(grouping=grouping, period=0.1)
    learner = method.setup(model, task)
    made = []
    for learner.step in range(task.steps):
        if method.regroup(learner, samples) is not None:
            made.append(learner.step)
    assert made == [0]


def test_in_training_groups_follow_the_network_and_weights_start_anew(model, task, samples):
    method = SeedCategory(eta=0.2, period=10)
    result, _ = trained(method, model, task, samples, steps=30)
    stream, learner = Stream(samples, batch=8, seed=0), method.setup(copy.deepcopy(model), task)
    expected = []
    for learner.step in range(30):
        groups = method.regroup(learner, samples)
        if groups is not None:
            losses = loss_of(learner.model, samples)
            index = (samples.domain == 0).nonzero().flatten()
            hardest = index[losses[index].argsort(stable=True)[-10:]].sort().values
            assert torch.equal(groups[3], hardest)
            expected.append(hardest.tolist())
            stream.regroup(groups)
        batches = next(stream)
        if groups is not None:
            # One update from ones.
            anew = (0.2 * risks(learner.model, batches).detach()).softmax(dim=0)
            torch.testing.assert_close(result[learner.step][1], anew)
        method.update(learner, batches)
        assert torch.equal(theta(learner.model), result[learner.step][0])
    assert len({tuple(each) for each in expected}) > 1, "the groups stay: the test tells nothing"


def test_losses_are_read_in_evaluation_mode_and_without_augmentation(task, samples):
    def refuse(x, generator):
        raise AssertionError("augmented")

    torch.manual_seed(0)
    frozen = nn.BatchNorm1d(6)
    features = nn.Sequential(frozen, nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    model = Classifier(features, 8, 4).train()
    frozen.eval()
    before = copy.deepcopy(model.state_dict())
    # As stored, samples are another thing than what a network sees.
    samples = replace(samples, prepare=lambda x: 0.5 - 2 * x, augment=refuse)
    expected = loss_of(model, samples)
    groups = grouped(SeedCategory(count=2), model, task, samples)
    for domain in range(3):
        index = (samples.domain == domain).nonzero().flatten()
        order = index[expected[index].argsort(stable=True)]
        halves = [half.sort().values.tolist() for half in order.tensor_split(2)]
        assert groups[2 * domain : 2 * domain + 2] == halves
    assert model.training
    assert [m.training for m in features] == [False, True, True, True]
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    for grouping in ("kmeans", "graph"):
        grouped(SeedCategory(grouping=grouping), model, task, samples)
        assert model.training


# Batches and their weights


@pytest.mark.parametrize("grouping", get_args(Grouping))
@pytest.mark.parametrize("per_step", [0, 2])
def test_the_whole_batch_keeps_its_size(grouping, per_step, model, task, samples):
    method = SeedCategory(grouping=grouping, period=5)
    learner = method.setup(model, task)
    stream = Stream(samples, batch=8, seed=0, per_step=per_step)
    for learner.step in range(12):
        groups = method.regroup(learner, samples)
        if groups is not None:
            stream.regroup(groups)
        batches = next(stream)
        sizes = [len(batch.y) for batch in batches]
        assert sum(sizes) == 8 * (per_step or 3)
        assert max(sizes) - min(sizes) <= 1
        method.update(learner, batches)


@pytest.mark.parametrize(
    ("batch", "per_step", "width"), [(4, 2, 8), (4, 1, 4), (2, 0, 6), (1, 0, 3), (8, 0, 12)]
)
def test_the_weights_follow_the_groups_that_a_step_draws_from(
    batch, per_step, width, model, task, samples
):
    learner, method = SeedCategory().setup(model, task), SeedCategory(eta=0.3, period=6)
    stream = Stream(samples, batch=batch, seed=0, per_step=per_step)
    rows = {tuple(x): i for i, x in enumerate(samples.x.in_memory.tolist())}
    for learner.step in range(11):
        groups = method.regroup(learner, samples)
        if groups is not None:
            stream.regroup(groups)
            group_of = {int(i): number for number, group in enumerate(groups) for i in group}
            q = torch.ones(12, dtype=torch.float64)
        batches = next(stream)
        assert len(batches) == width
        loss, _ = method.loss(learner, batches)
        risk = risks(model, batches).detach().double()
        drawn = []
        for each in batches:
            (number,) = {group_of[rows[tuple(x)]] for x in each.x.tolist()}
            drawn.append(number)
        assert len(set(drawn)) == width
        q[drawn] *= (0.3 * risk).exp()
        q /= q.sum()
        torch.testing.assert_close(learner.memory["q"].double(), q, rtol=1e-5, atol=0)
        expected = 12 / width * (q[drawn] @ risk)
        torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-5, atol=0)


def test_hard_samples_get_heavier(model, task, samples):
    result, learner = trained(SeedCategory(eta=0.5), model, task, samples, steps=20)
    assert learner.step == 20
    q = result[-1][1].view(3, 4)
    assert (q[:, 3] > 1.2 * q[:, 0]).all()


# Settings


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["period", "count", "radius"])
def test_a_setting_that_must_be_above_nothing_is_refused_otherwise(name, value):
    with pytest.raises(SpecError, match=rf"seed_category\.{name}={value}: must be above 0"):
        SeedCategory(**{name: value})


@pytest.mark.parametrize("grouping", ["kmeans", "graph"])
def test_a_network_without_features_of_its_own_is_refused_where_they_are_asked_for(
    grouping, task, samples
):
    method, model = SeedCategory(grouping=grouping), nn.Linear(6, 4)
    with pytest.raises(
        SpecError, match=r"Linear has no `features`; use seed_category\.grouping=loss"
    ):
        grouped(method, model, task, samples)
    assert len(grouped(SeedCategory(), model, task, samples)) == 12


# Interruptions


@pytest.mark.parametrize("grouping", ["loss", "kmeans", "graph", "class"])
def test_a_snapshot_has_the_groups_of_its_step(grouping, tmp_path):
    run, store = regrouping_run(grouping), Store(tmp_path)
    for after, made in ((14, 1), (35, 2), (70, 3)):
        interrupt(run, store, after=after)
        state, _ = store.snapshot(run)
        assert state["learner"]["step"] == after
        assert len(state["learner"]["memory"]["q"]) == len(state["stream"]["groups"])
        # Classes stay.
        assert state["stream"]["generation"] == (1 if grouping == "class" else made)
