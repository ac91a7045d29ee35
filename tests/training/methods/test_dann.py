"""DANN: gradients that are turned round, the schedule, and its limits."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.hyperparameters import defaults, without_neutral
from afield.training.learner import Learner
from afield.training.method import pool
from afield.training.methods.dann import DANN
from afield.training.methods.erm import ERM
from tests.training.methods.gradient_reference import REFERENCE
from tests.training.methods.reference import agree, followed, theta

STEPS = 50_000


def at_step(method, model, task, step: int) -> Learner:
    torch.manual_seed(0)
    learner = method.setup(copy.deepcopy(model), task)
    learner.step = step
    return learner


@pytest.mark.parametrize(
    ("method", "name"),
    [(DANN(), "lambda_ganin_gamma10"), (DANN(gamma=15.0, delay=0.04), "lambda_code")],
    ids=["paper", "dan"],
)
def test_the_schedule_is_that_of_the_reference(method, name):
    values = [method.strength(int(step), STEPS) for step in REFERENCE["dan/steps"]]
    assert values == pytest.approx(REFERENCE[f"dan/{name}"].tolist(), abs=1e-12)


def test_the_weight_is_reached_at_the_end_and_at_once_with_a_large_gamma():
    assert DANN(weight=3.0).strength(100, 100) == pytest.approx(3.0, rel=1e-3)
    assert DANN(weight=3.0, gamma=1e6).strength(1, 100) == pytest.approx(3.0)
    assert DANN(weight=3.0).strength(0, 100) == 0


def test_features_follow_the_labels_minus_lambda_times_the_domains(model, task, stream):
    method = DANN(weight=0.7, gamma=5.0)
    learner, batches = at_step(method, model, task, 60), next(stream)
    batch, net = pool(batches), copy.deepcopy(learner.model)
    discriminator = copy.deepcopy(learner.parts["domain"])
    features = net.features(batch.x)
    label = F.cross_entropy(net.head(features), batch.y)
    domain = F.cross_entropy(discriminator(features), batch.domain)
    strength = method.strength(60, task.steps)
    assert 0.5 < strength < 0.7
    inner, head = [*net.features.parameters()], [*net.head.parameters()]
    of_label = torch.autograd.grad(label, inner, retain_graph=True)
    of_domain = torch.autograd.grad(domain, inner, retain_graph=True)
    expected = [a - strength * b for a, b in zip(of_label, of_domain, strict=True)]
    expected += torch.autograd.grad(label, head, retain_graph=True)
    logs = method.update(learner, batches)
    flat = torch.cat([each.reshape(-1) for each in expected])
    torch.testing.assert_close(followed(learner.model), flat)
    # The discriminator itself follows its own loss, at full strength.
    own = torch.autograd.grad(domain, [*discriminator.parameters()])
    flat = torch.cat([each.reshape(-1) for each in own])
    torch.testing.assert_close(followed(learner.parts["domain"]), flat)
    torch.testing.assert_close(logs["loss"], (label + domain).detach())
    torch.testing.assert_close(logs["label loss"], label.detach())
    accuracy = (discriminator(features).argmax(1) == batch.domain).float().mean()
    assert logs["domain accuracy"] == accuracy


@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"delay": 1.0}])
def test_without_reversal_it_is_erm(settings, model, task, stream):
    method = DANN(**settings)
    ours = at_step(method, model, task, 50)
    plain = at_step(ERM(), model, task, 50)
    for _ in range(3):
        batches = next(stream)
        method.update(ours, batches)
        ERM().update(plain, batches)
    assert torch.equal(theta(ours.model), theta(plain.model))


@pytest.mark.slow
def test_domains_are_harder_to_tell_from_its_features(model, task, stream):
    """After training, a fresh classifier of domains finds less in them than in ERM's."""

    def left(method) -> float:
        learner = at_step(method, model, task, 0)
        for _ in range(300):
            method.update(learner, next(stream))
            learner.step = min(learner.step + 1, task.steps)
        batch = stream.samples.batch(torch.arange(len(stream.samples)))
        result = learner.model.features(batch.x).detach()
        result = (result - result.mean(0)) / result.std(0).clamp(min=1e-6)
        torch.manual_seed(1)
        probe = nn.Linear(result.shape[1], len(task.sources))
        optimizer = torch.optim.Adam(probe.parameters(), lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            loss = F.cross_entropy(probe(result), batch.domain)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    assert left(DANN(weight=3.0)) > left(DANN(weight=0.0)) + 0.1


def test_the_domain_classifier_has_the_layers_that_are_asked_for(model, task):
    for hidden in ((12, 7, 5), (1,), ()):
        learner = DANN(hidden=hidden).setup(model, task)
        layers = [m for m in learner.parts["domain"] if isinstance(m, nn.Linear)]
        widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
        assert widths == [model.width, *hidden, len(task.sources)]


def test_the_generator_begins_and_has_one_turn_in_each_round(model, task, stream):
    method = DANN(turns=2, hidden=(5,))
    learner, moved = method.setup(copy.deepcopy(model), task), []
    for learner.step in range(6):
        before = theta(learner.model), theta(learner.parts)
        method.update(learner, next(stream))
        after = theta(learner.model), theta(learner.parts)
        moved.append([not torch.equal(*pair) for pair in zip(before, after, strict=True)])
    # DomainBed counts from 1: at 1 mod 3 and 0 mod 3 < 2 the discriminator learns.
    features, domain = [True, False], [False, True]
    assert moved == [domain, features, domain, domain, features, domain]


def test_in_turns_without_weight_the_features_are_those_of_erm(model, task, stream):
    method = DANN(turns=1, weight=0.0)
    ours, plain = at_step(method, model, task, 0), at_step(ERM(), model, task, 0)
    plain.optimizer = torch.optim.Adam(plain.parameters(), lr=0.01, betas=(0.5, 0.9))
    for ours.step in range(4):
        batches = next(stream)
        method.update(ours, batches)
        if ours.step % 2 == 0:
            ERM().update(plain, batches)
    agree(theta(ours.model), theta(plain.model))


def test_without_turns_the_settings_of_turns_keep_a_run_its_key():
    assert without_neutral(DANN, defaults(DANN)) == {
        name: value
        for name, value in defaults(DANN).items()
        if name in ("weight", "gamma", "delay", "hidden")
    }
