"""The contract of every method, whatever it does."""

import copy
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

from afield import registry, training
from afield.data.samples import Batch, Rows
from afield.data.stream import Stream
from afield.hyperparameters import build, defaults, draw_values, extremes, ranges
from afield.networks.backbone import Classifier
from afield.networks.inference import BatchPredictor
from afield.runs.run import Run
from afield.training.averages.last import Last
from afield.training.learner import Learner
from afield.training.loop import checkpoints
from afield.training.method import Method, pool, risks
from afield.training.optimizers import make_schedule, optimizer_factory

NAMES = registry.names("methods")
# Settings that say something of one form of a method only.
NEEDS = {
    ("seed_category", "radius"): {"grouping": "graph"},
    **{
        (name, setting): {"turns": 1}
        for name in ("dann", "cdann")
        for setting in ("gradient_penalty", "domain_rate", "beta1")
    },
    **{("urm", f"critic_{name}"): {"weight": 0.2} for name in ("layers", "width", "rate")},
    ("urm", "smoothing"): {"weight": 0.2},
    ("transfer", "radius"): {"weight": 10.0, "ascents": 10, "ascent_rate": 10.0},
}
# Methods that need maps. They get the same samples as images of two by three pixels.
OF_IMAGES = {"mixstyle", "efdmix", "sagnet", "arm"}
# Penalties whose defaults, for thousands of steps, leave little of the risk in a hundred.
GENTLE = {
    "fishr": {"penalty": 10.0},
    "ib_erm": {"penalty": 0.1},
    "ib_irm": {"penalty": 1.0, "bottleneck": 0.1},
    "iga": {"penalty": 0.1},
    "irm": {"penalty": 1.0},
    "mmd": {"penalty": 0.1},
    "rdm": {"lr_factor": 1.0},
}
# Methods that replace the head.
OWN_HEAD = {"multi_head", "adrmx", "mtl"}
STEPS = 30


def convolutional(outputs: int) -> Classifier:
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.ReLU()]
    return Classifier(nn.Sequential(*layers, nn.Flatten()), 16, outputs)


def wide(outputs: int) -> Classifier:
    """Its head of three layers has a quarter of the features in between."""
    return Classifier(nn.Sequential(nn.Linear(6, 32), nn.ReLU()), 32, outputs)


def named(request) -> str:
    values = getattr(request.node, "callspec", None)
    return values.id if values else ""


@pytest.fixture
def samples(request, samples):
    if named(request) not in OF_IMAGES:
        return samples
    return replace(samples, x=Rows([samples.x.in_memory.unflatten(1, (1, 2, 3))]))


@pytest.fixture
def task(request, task):
    if named(request) in OF_IMAGES:
        return replace(task, network=convolutional, shape=(1, 2, 3))
    return replace(task, network=wide) if named(request) == "adrmx" else task


def learned(method: Method, model, task, stream: Stream, *, steps: int = STEPS) -> Learner:
    torch.manual_seed(1)
    learner = method.setup(copy.deepcopy(model), task)
    average = Last()
    average.setup(learner.model, steps=learner.task.steps)
    for _ in checkpoints(method, learner, average, stream, lambda _: {}, steps=steps, every=steps):
        pass
    return learner


def weights(learner: Learner) -> torch.Tensor:
    return parameters_to_vector(learner.model.parameters()).detach()


def fresh(stream: Stream) -> Stream:
    return Stream(stream.samples, batch=8, seed=0)


@pytest.fixture(params=NAMES)
def method(request) -> Method:
    return build(registry.find("methods", request.param), {})


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(name, model, task, stream):
    method = build(registry.find("methods", name), GENTLE.get(name, {}))
    everything = stream.samples.batch(torch.arange(len(stream.samples)))
    before = F.cross_entropy(model(everything.x), everything.y)
    logits = learned(method, model, task, stream, steps=100).model.eval()(everything.x)
    assert F.cross_entropy(logits, everything.y) < 0.5 * before
    assert (logits.argmax(1) == everything.y).float().mean() > 0.9


def test_it_repeats_itself_bit_for_bit(method, model, task, stream):
    first = learned(method, model, task, fresh(stream))
    second = learned(method, model, task, fresh(stream))
    assert torch.equal(weights(first), weights(second))


@pytest.mark.parametrize("name", [n for n in NAMES if ranges(registry.find("methods", n))])
def test_every_hyperparameter_matters(name, model, task, stream):
    kind = registry.find("methods", name)
    ends = {h: extremes(kind, h) for h in ranges(kind)}
    plain = {h: low for h, (low, _) in ends.items()}

    @cache
    def trained(**changes):
        return weights(learned(build(kind, plain | changes), model, task, fresh(stream)))

    for hyperparameter, (_, high) in ends.items():
        needed = NEEDS.get((name, hyperparameter), {})
        same = torch.equal(trained(**needed), trained(**needed | {hyperparameter: high}))
        assert not same, f"{name}.{hyperparameter} changes nothing"


def test_every_hyperparameter_has_a_range_and_every_draw_is_valid():
    for name in NAMES:
        kind = registry.find("methods", name)
        assert set(ranges(kind)) == set(defaults(kind)), name
        for draw in range(20):
            values = draw_values(kind, draw=draw, trial=1)
            assert vars(build(kind, values)) == values, f"{name}, draw {draw}"


def test_no_hyperparameter_has_the_name_of_a_setting_of_runs():
    for name in NAMES:
        shared = set(defaults(registry.find("methods", name))) & set(Run.__dataclass_fields__)
        assert not shared, f"{name}: {shared}"


def test_its_state_survives_a_round_trip(method, model, task, stream, tmp_path):
    straight = learned(method, model, task, fresh(stream))
    broken = fresh(stream)
    half = learned(method, model, task, broken, steps=STEPS // 2)
    torch.save(
        {"learner": half.state_dict(), "stream": broken.state_dict(), "rng": torch.get_rng_state()},
        tmp_path / "state.pt",
    )
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    torch.manual_seed(2)
    learner, rest = method.setup(task.network(len(task.classes)), task), fresh(stream)
    learner.load_state_dict(state["learner"])
    rest.load_state_dict(state["stream"])
    torch.set_rng_state(state["rng"])
    average = Last()
    average.setup(learner.model, steps=learner.task.steps)
    for _ in checkpoints(method, learner, average, rest, lambda _: {}, steps=STEPS, every=STEPS):
        pass
    assert torch.equal(weights(learner), weights(straight))


def test_it_logs_detached_tensors(method, model, task, stream):
    learner = method.setup(model, task)
    groups = method.regroup(learner, stream.samples)
    if groups is not None:
        stream.regroup(groups)
    logs = method.update(learner, next(stream))
    assert logs
    assert all(v.ndim == 0 and not v.requires_grad for v in logs.values())


def test_it_draws_from_the_generators_of_torch_only(method, model, task, stream):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the global generator is what is watched
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    learned(method, model, task, stream)
    after = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert before == after


def test_what_it_trains_is_a_plain_module_that_scores_samples_one_by_one(
    method, model, task, stream
):
    trained = learned(method, model, task, stream).model.eval()
    assert method.predicts_from_batches == isinstance(trained, BatchPredictor)
    if method.predicts_from_batches:
        return
    x = stream.samples.x.in_memory[:5]
    alone = torch.cat([trained(row[None]) for row in x])
    torch.testing.assert_close(trained(x), alone)


def test_risks_are_the_mean_losses_of_the_batches(model, stream):
    batches = next(stream)
    alone = torch.stack([F.cross_entropy(model(b.x), b.y) for b in batches])
    torch.testing.assert_close(risks(model, batches), alone)


def test_risks_of_batches_of_unequal_size_are_their_means(model, stream):
    first, second, third = next(stream)
    batches = [Batch(*(part[:3] for part in first)), second, Batch(*(part[:5] for part in third))]
    alone = torch.stack([F.cross_entropy(model(b.x), b.y) for b in batches])
    torch.testing.assert_close(risks(model, batches), alone)


def test_pooling_keeps_every_sample_and_its_domain(stream):
    batches = next(stream)
    pooled = pool(batches)
    assert torch.equal(pooled.x, torch.cat([b.x for b in batches]))
    assert pooled.domain.tolist() == [i for i, b in enumerate(batches) for _ in b.y]


def test_a_method_without_a_loss_says_so(model, task, stream):
    with pytest.raises(NotImplementedError, match="Method overrides neither"):
        Method().update(Method().setup(model, task), next(stream))


def test_it_is_a_frozen_dataclass_of_its_own():
    """Without the decorator its hyperparameters would be silently dead."""
    for name in NAMES:
        kind = registry.find("methods", name)
        assert "__dataclass_fields__" in vars(kind), name
        assert kind.__dataclass_params__.frozen, name
        assert set(vars(kind).get("__annotations__", {})) <= set(kind.__dataclass_fields__), name


# It has no step of an optimiser.
STEPPING = [name for name in NAMES if name != "linear_probe"]


def scheduled(task, text="cosine:warmup=2", **changed):
    return replace(task, schedule=make_schedule(text, task.steps), **changed)


def test_learning_rates_keep_the_time_of_the_schedule(model, task):
    learner = Learner(model, scheduled(replace(task, steps=6)))
    rates = []
    for step in range(6):
        learner.step = step
        learner.apply_schedule()
        # Twice is once.
        learner.apply_schedule()
        rates.append(learner.lr)
    expected = [0.005, 0.01, 0.01, 0.00853553, 0.005, 0.00146447]
    assert rates == pytest.approx(expected, abs=1e-8)


def test_a_methods_own_pace_goes_on_top_of_the_schedule_and_of_the_rates(model, task):
    learner = Learner(
        model, scheduled(replace(task, steps=4), "cosine"), lr_multipliers={"head": 10.0}
    )
    learner.step = 2
    learner.scale_lr(0.5, 0.1)
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    assert rates == pytest.approx([0.01 * 0.5 * 0.5, 0.1 * 0.1 * 0.5])
    learner.step = 0
    learner.apply_schedule()
    rates = [group["lr"] for group in learner.optimizer.param_groups]
    assert rates == pytest.approx([0.01 * 0.5, 0.1 * 0.1])


def test_learning_rates_come_back_with_the_state(model, task):
    learner = Learner(model, scheduled(replace(task, steps=8)))
    for learner.step in range(5):
        learner.apply_schedule()
    learner.scale_lr(0.5)
    other = Learner(copy.deepcopy(model), learner.task)
    other.load_state_dict(learner.state_dict())
    for learner.step in range(5, 8):
        other.step = learner.step
        learner.apply_schedule()
        other.apply_schedule()
        assert other.lr == learner.lr


def test_an_optimiser_that_starts_afresh_in_the_middle_keeps_the_time(model, task):
    learner = Learner(model, scheduled(replace(task, steps=8), "cosine"))
    learner.step = 7
    learner.apply_schedule()
    before = learner.lr
    learner.reset_optimizer()
    assert learner.lr == before


def test_a_gradient_that_is_too_long_is_cut_and_no_other(model, task):
    plain = replace(task, optimizer=optimizer_factory("sgd", lr=1.0, weight_decay=0.0))
    moves = {}
    for clip in (0.0, 0.1, 1e6):
        learner = Learner(copy.deepcopy(model), replace(plain, clip_norm=clip))
        before = weights(learner).clone()
        learner.descend(learner.model(torch.ones(3, 6)).square().mean())
        moves[clip] = weights(learner) - before
    assert moves[0.0].norm() > 0.2
    assert moves[0.1].norm() == pytest.approx(0.1, rel=1e-4)
    torch.testing.assert_close(F.normalize(moves[0.1], dim=0), F.normalize(moves[0.0], dim=0))
    torch.testing.assert_close(moves[1e6], moves[0.0])


@pytest.mark.parametrize("name", STEPPING)
def test_the_schedule_reaches_every_method(name, model, task, stream):
    built = build(registry.find("methods", name), {})
    short = replace(task, steps=10)
    plain = learned(built, model, short, fresh(stream), steps=10)
    slow = replace(short, schedule=lambda step: 1e-9)
    start = learned(built, model, slow, fresh(stream), steps=0)
    still = learned(built, model, slow, fresh(stream), steps=10)
    moved = (weights(plain) - weights(start)).norm()
    assert (weights(still) - weights(start)).norm() < 0.01 * moved


@pytest.mark.parametrize("name", STEPPING)
def test_clipping_reaches_every_method(name, model, task, stream):
    sgd = replace(task, steps=10, optimizer=optimizer_factory("sgd", lr=0.1, weight_decay=0.0))
    built = build(registry.find("methods", name), {})
    start = learned(built, model, sgd, fresh(stream), steps=0)
    cut = learned(built, model, replace(sgd, clip_norm=1e-6), fresh(stream), steps=10)
    assert (weights(cut) - weights(start)).norm() < 1e-5


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN_HEAD])
def test_a_frozen_head_stays_with_every_method(name, model, task, stream):
    method = build(registry.find("methods", name), {})
    model.head.requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in model.head.state_dict().items()}
    features = parameters_to_vector(model.features.parameters()).clone()
    learner = learned(method, model, replace(task, steps=10), stream, steps=10)
    after = learner.model.state_dict()
    for name, value in before.items():
        (own,) = [v for key, v in after.items() if key.endswith(f"head.{name}")]
        assert torch.equal(own, value)
    if hasattr(learner.model, "features") and name in STEPPING:
        assert not torch.equal(parameters_to_vector(learner.model.features.parameters()), features)


def test_methods_get_gradients_from_the_learner_alone():
    room = Path(training.__file__).parent
    for path in room.rglob("*.py"):
        # An adaptation has no learner: nothing is trained, and no run repeats its steps.
        own = (room / "learner.py", room / "loss_scale.py")
        if path not in own and path.parent.name != "adaptations":
            assert not re.search(r"\.backward\(|autograd\.grad\(", path.read_text()), path


def test_gradients_are_those_that_descending_leaves_on_the_parameters(model, task):
    learner = Learner(model, task, {"unused": nn.Linear(2, 1)})
    gradients = learner.gradients(model(torch.ones(3, 6)).square().mean())
    learner.accumulate_gradients(model(torch.ones(3, 6)).square().mean())
    for parameter, gradient in zip(learner.parameters(), gradients, strict=True):
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.equal(gradient, expected)
    x = torch.ones(2, requires_grad=True)
    (slope,) = learner.gradients((x**3).sum(), [x], create_graph=True)
    (curvature,) = learner.gradients(slope.sum(), [x])
    assert curvature.tolist() == [6.0, 6.0]


def test_a_separate_part_is_moved_by_its_own_optimizer_only(model, task):
    part = nn.Linear(8, 2)
    learner = Learner(model, task, {"critic": part}, separate=["critic"])
    learner.add_optimizer("critic", part.parameters(), lr_multiplier=3.0)
    before = part.weight.detach().clone()
    learner.descend(part(model.features(torch.ones(3, 6))).square().mean())
    assert torch.equal(part.weight, before)
    learner.descend(part(torch.ones(3, 8)).square().mean(), learner.optimizers["critic"])
    # The first step of Adam is as long as the learning rate.
    torch.testing.assert_close((part.weight - before).abs(), torch.full_like(before, 0.03))


def test_a_frozen_part_is_never_trained_and_stays_in_evaluation_mode(model, task):
    part = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))
    learner = Learner(model, task, {"first": part}, frozen=["first"])
    learner.train()
    assert model.training
    assert not part[1].training
    assert not {id(p) for p in part.parameters()} & {id(p) for p in learner.parameters()}
    assert not any(p.requires_grad for p in part.parameters())


def test_a_part_can_have_a_learning_rate_of_its_own(model, task):
    learner = Learner(model, task, {"spread": nn.Linear(1, 1)}, {"parts.spread": 10.0})
    assert [group["lr"] for group in learner.optimizer.param_groups] == pytest.approx([0.01, 0.1])


def test_parameters_without_a_turn_keep_even_their_momentum(model, task):
    learner = Learner(model, task)
    learner.descend(model(torch.ones(3, 6)).square().mean())
    before = model.head.weight.detach().clone(), model.features[0].weight.detach().clone()
    only = [*model.features.parameters()]
    learner.descend(model(torch.ones(3, 6)).square().mean(), only=only)
    assert torch.equal(model.head.weight, before[0])
    assert not torch.equal(model.features[0].weight, before[1])


def test_settings_replace_those_of_an_optimizer_that_knows_them(model, task):
    betas = {"betas": (0.5, 0.9)}
    learner = Learner(model, task, settings=betas)
    assert learner.optimizer.param_groups[0]["betas"] == (0.5, 0.9)
    sgd = replace(task, optimizer=optimizer_factory("sgd", lr=0.1, weight_decay=0.0))
    assert "betas" not in Learner(model, sgd, settings=betas).optimizer.param_groups[0]


def test_other_optimizers_are_clipped_by_the_gradients_of_their_own_parameters(model, task):
    sgd = optimizer_factory("sgd", lr=1.0, weight_decay=0.0)
    part = nn.Linear(4, 4)
    learner = Learner(
        model, replace(task, optimizer=sgd, clip_norm=0.1), {"critic": part}, separate=["critic"]
    )
    learner.add_optimizer("critic", part.parameters())
    before = parameters_to_vector(part.parameters()).detach().clone()
    learner.descend(100 * part(torch.ones(3, 4)).sum(), learner.optimizers["critic"])
    moved = parameters_to_vector(part.parameters()).detach() - before
    assert moved.norm() == pytest.approx(0.1, rel=1e-4)


def test_pooled_batches_are_those_of_the_stream_and_have_gradients_of_their_own(stream):
    batches = next(Stream(stream.samples, batch=8, seed=0))
    pooled, copied = pool(batches), pool(list(batches))
    assert all(map(torch.equal, pooled, copied))
    assert pooled.x.stride() == copied.x.stride()
    pooled.x.requires_grad_().sum().backward()
    assert not any(batch.x.requires_grad for batch in batches)
    assert pool(batches).x.grad is None
    assert list(batches[1:]) == [batches[i] for i in range(1, len(batches))]
