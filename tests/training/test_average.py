"""The contract of every average."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from afield import registry
from afield.data.samples import Rows
from afield.data.stream import Stream
from afield.hyperparameters import build, defaults, extremes, ranges
from afield.networks.backbone import Classifier
from afield.training.averages.last import Last
from afield.training.loop import checkpoints
from afield.training.methods.erm import ERM
from afield.training.scores import Checkpoint, Score, Scores
from tests.pairs import OF_IMAGES

NAMES = registry.names("averages")
HYPERPARAMETERS = [(n, h) for n in NAMES for h in ranges(registry.find("averages", n))]
# A checkpoint comes every so many steps.
EVERY = 5
# They fall, with a short rest on the way, stay about 0.7, and leave: so a valley begins earlier or
# later, reaches more or less far, and ends sooner or later, as an average is set.
LOSSES = (1.5, 1.2, 0.9, 0.92, 0.7, 0.71, 0.74, 0.75, 0.8, 0.72, 0.85, 0.8, 1.0, *[1.1] * 11)


def checkpoint(task, step):
    """How a model does on the sources after so many steps, whatever it has learned."""
    score = Score(0.5, 0.5, LOSSES[step // EVERY - 1], 10)
    return Checkpoint(step, dict.fromkeys(task.sources, Scores(probe=score)), {"loss": 1.0})


def begun(average, model, task, *, steps=100):
    learner = ERM().setup(copy.deepcopy(model), task)
    average.setup(learner.model, steps=steps)
    return learner


def train(average, learner, stream, *, steps):
    """As the loop does it: until so many steps are done, or the average has seen enough."""
    while learner.step < steps and not average.done:
        ERM().update(learner, next(stream))
        average.after_step(learner.model)
        learner.step += 1
        if learner.step % EVERY == 0:
            average.after_checkpoint(checkpoint(learner.task, learner.step))


def weights(module):
    return parameters_to_vector(module.parameters()).detach().clone()


@pytest.fixture(params=NAMES)
def average(request):
    return build(registry.find("averages", request.param), {})


def again(average):
    """Another with the same settings."""
    kind = type(average)
    return kind(**{name: getattr(average, name) for name in defaults(kind)})


def test_over_a_constant_model_it_is_that_model(average, model, task):
    expected = weights(model)
    average.setup(model, steps=100)
    for step in range(1, len(LOSSES) * EVERY + 1):
        average.after_step(model)
        if step % EVERY == 0:
            average.after_checkpoint(checkpoint(task, step))
        torch.testing.assert_close(weights(average.model), expected)
        if average.done:
            break
    assert torch.equal(weights(model), expected)


def test_it_does_not_disturb_training(average, model, task, samples):
    learners = []
    for each in (average, Last()):
        learner = begun(each, model, task)
        train(each, learner, Stream(samples, batch=8, seed=0), steps=40)
        learners.append(learner)
    assert learners[0].step == 40
    assert torch.equal(*(weights(learner.model) for learner in learners))


def test_it_draws_no_random_numbers(average, model, task, stream):
    learner = begun(average, model, task)
    before = torch.get_rng_state()
    train(average, learner, stream, steps=40)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_deployed_is_of_the_trained_models_own_type(average, model, task, stream):
    train(average, begun(average, model, task), stream, steps=40)
    assert type(average.model) is type(model)
    assert average.model.state_dict().keys() == model.state_dict().keys()


def test_buffers_are_those_of_the_trained_model(average, task):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average.setup(model, steps=100)
    for step in range(1, 6):
        model(torch.randn(4, 2))
        average.after_step(model)
        average.after_checkpoint(checkpoint(task, step * EVERY))
    assert torch.equal(average.model[1].running_mean, model[1].running_mean)


def test_what_is_deployed_has_learned(average, model, task, stream, samples):
    train(average, begun(average, model, task), stream, steps=100)
    x, y = samples.x.take(torch.arange(len(samples))), samples.y
    assert (average.model(x).argmax(dim=1) == y).float().mean() > 0.8


@pytest.mark.parametrize(("name", "hyperparameter"), HYPERPARAMETERS)
def test_every_setting_matters(name, hyperparameter, model, task, samples):
    kind = registry.find("averages", name)
    result = []
    for value in extremes(kind, hyperparameter):
        average = build(kind, {hyperparameter: value})
        learner = begun(average, model, task, steps=len(LOSSES) * EVERY)
        stream = Stream(samples, batch=8, seed=0)
        train(average, learner, stream, steps=len(LOSSES) * EVERY)
        result.append(weights(average.model))
    assert not torch.equal(*result)


# Before and after what an average waits for, at a checkpoint and between two.
@pytest.mark.parametrize("cut", [0, 3, 10, 33, 52, 77])
def test_its_state_survives_a_round_trip(average, model, task, samples, tmp_path, cut):
    learner, stream = begun(average, model, task), Stream(samples, batch=8, seed=0)
    train(average, learner, stream, steps=cut)
    parts = {"average": average, "learner": learner, "stream": stream}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save(state, tmp_path / "state.pt")
    second, fresh = again(average), task.network(4)
    resumed = {"learner": begun(second, fresh, task), "average": second}
    resumed["stream"] = Stream(samples, batch=8, seed=0)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, part in resumed.items():
        part.load_state_dict(saved[name])
    assert torch.equal(weights(second.model), weights(average.model))
    for steps in range(learner.step + 1, len(LOSSES) * EVERY + 1):
        train(average, learner, stream, steps=steps)
        train(second, resumed["learner"], resumed["stream"], steps=steps)
        assert second.done == average.done
        assert torch.equal(weights(second.model), weights(average.model))


def test_a_state_says_all_that_is_not_a_setting(average, model, task, stream, tmp_path):
    """Nothing that was seen before it was loaded is left."""
    learner, before = begun(average, model, task), again(average)
    train(average, learner, stream, steps=42)
    torch.save(average.state_dict(), tmp_path / "state.pt")
    # A model that was trained further in the meantime.
    other = begun(before, model, task)
    train(before, other, stream, steps=63)
    other.load_state_dict(learner.state_dict())
    before.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in range(43, 61):
        for each, its in ((average, learner), (before, other)):
            with torch.no_grad():
                for parameter in its.model.parameters():
                    parameter.mul_(0.9).add_(0.01)
            each.after_step(its.model)
            if step % EVERY == 0:
                each.after_checkpoint(checkpoint(task, step))
        assert torch.equal(weights(before.model), weights(average.model))
        assert before.done == average.done


# Every method with one average; every average with a plain method, one with an inner loop,
# and one with a further network.
PAIRS = [(method, "ema") for method in registry.names("methods")] + [
    (method, name)
    for name in NAMES
    for method in ("erm", "mldg", "dann")
    if name not in ("ema", "last")
]


@pytest.mark.parametrize(("method", "name"), PAIRS)
def test_it_combines_with_every_method(method, name, model, task, samples):
    """It follows the training without changing it, and what it deploys is finite."""
    if method in OF_IMAGES:
        samples = replace(samples, x=Rows([samples.x.in_memory.unflatten(1, (1, 2, 3))]))
        layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.Flatten()
        model = Classifier(nn.Sequential(*layers), 16, len(task.classes))
        task = replace(task, shape=(1, 2, 3))
    scores = dict.fromkeys(task.sources, Scores(probe=Score(0.5, 0.5, 1.0, 1)))
    ends = []
    for kind in (registry.find("averages", name), Last):
        torch.manual_seed(0)
        trained = build(registry.find("methods", method), {})
        learner = trained.setup(copy.deepcopy(model), task)
        stream, each = Stream(samples, batch=8, seed=0), kind()
        each.setup(learner.model, steps=12)
        for _ in checkpoints(trained, learner, each, stream, lambda _: scores, steps=12, every=3):
            pass
        assert weights(each.model).isfinite().all()
        ends.append(weights(learner.model))
    assert torch.equal(*ends)
