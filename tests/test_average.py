"""The contract of every average."""

import copy

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from afield import catalog
from afield.evaluation import Checkpoint
from afield.methods.erm import ERM
from afield.space import build, defaults, extremes, ranges

NAMES = catalog.names("averages")
HYPERPARAMETERS = [(n, h) for n in NAMES for h in ranges(catalog.find("averages", n))]


def followed(average, model, task, stream, *, steps=40):
    torch.manual_seed(0)
    learner = ERM().setup(copy.deepcopy(model), task)
    average.follow(learner.model, steps=learner.task.steps)
    for learner.step in range(steps):
        ERM().update(learner, next(stream))
        average.after_step(learner.model)
    average.after_checkpoint(Checkpoint(steps, {}, {}))
    return learner


def weights(module):
    return parameters_to_vector(module.parameters()).detach()


@pytest.fixture(params=NAMES)
def average(request):
    return build(catalog.find("averages", request.param), {})


def test_over_a_constant_model_it_is_that_model(average, model):
    average.follow(model, steps=100)
    for _ in range(30):
        average.after_step(model)
    torch.testing.assert_close(weights(average.model), weights(model))


def test_it_does_not_disturb_training(average, model, task, stream, samples):
    from afield.averages.last import Last

    learner = followed(average, model, task, stream)
    alone = followed(Last(), model, task, type(stream)(samples, batch=8, seed=0))
    assert torch.equal(weights(learner.model), weights(alone.model))


def test_what_is_deployed_is_of_the_trained_models_own_type(average, model, task, stream):
    followed(average, model, task, stream)
    assert type(average.model) is type(model)
    assert average.model.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(("name", "hyperparameter"), HYPERPARAMETERS)
def test_every_setting_matters(name, hyperparameter, model, task, samples, stream):
    kind = catalog.find("averages", name)
    found = []
    for value in extremes(kind, hyperparameter):
        average = build(kind, {hyperparameter: value})
        followed(average, model, task, type(stream)(samples, batch=8, seed=0), steps=120)
        found.append(weights(average.model))
    assert not torch.equal(*found)


def test_its_state_survives_a_round_trip(average, model, task, stream, tmp_path):
    learner = followed(average, model, task, stream)
    torch.save(average.state_dict(), tmp_path / "state.pt")
    again = type(average)(**{name: getattr(average, name) for name in defaults(type(average))})
    again.follow(copy.deepcopy(learner.model), steps=100)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(weights(again.model), weights(average.model))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1.0)
    for each in (average, again):
        if each.model is not learner.model:
            each.after_step(learner.model)
    if average.model is not learner.model:
        assert torch.equal(weights(again.model), weights(average.model))
