"""Linear probing: the head is the optimum of what is stated, and nothing else changes."""

import copy
import logging
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import hessian, jacobian

from afield.data.lookup import find_dataset
from afield.data.samples import Samples
from afield.errors import SpecError
from afield.hyperparameters import build
from afield.runs.run_setup import Machine, set_up
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from afield.studies.settings import resolve_run
from afield.training.averages.last import Last
from afield.training.loop import checkpoints
from afield.training.methods import linear_probe
from afield.training.methods.linear_probe import ABSENT_CLASS_MARGIN, LinearProbe
from tests.protocols import leave_one_out


def probed(model, task, samples: Samples, **settings) -> nn.Module:
    """The network after the fit; the one that is given stays as it is."""
    learner = LinearProbe(**settings).setup(copy.deepcopy(model), task)
    LinearProbe(**settings).regroup(learner, samples)
    return learner.model


def standardised(model, samples: Samples) -> torch.Tensor:
    with torch.no_grad():
        features = model.features(samples.x.in_memory).double()
    std, mean = torch.std_mean(features, dim=0, correction=0)
    return (features - mean) / torch.where(std > 0, std, 1.0)


def of_standardised(result: nn.Module, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    """The head as it is on standardised features, on which the objective is stated."""
    with torch.no_grad():
        features = result.features(samples.x.in_memory).double()
    std, mean = torch.std_mean(features, dim=0, correction=0)
    weight, bias = result.head.weight.detach().double(), result.head.bias.detach().double()
    return weight * std, bias + weight @ mean


def objective(weight, bias, x, y, l2) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight, bias), y) + 0.5 * l2 * weight.square().sum()


def of_classes(samples: Samples, *labels: int) -> Samples:
    """Those samples that have one of these labels."""
    rows = torch.isin(samples.y, torch.tensor(labels)).nonzero().flatten()
    return Samples(
        type(samples.x)([samples.x.in_memory], [rows]), samples.y[rows], samples.domain[rows]
    )


@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (0, 2, 3), (1, 3)], ids=str)
@pytest.mark.parametrize("l2", [1e-3, 0.3])
def test_the_gradient_of_the_objective_is_zero_at_the_head(model, task, samples, labels, l2):
    """With two classes as well, where scikit-learn has one row for both."""
    chosen = of_classes(samples, *labels)
    result = probed(model, task, chosen, l2=l2)
    weight, bias = (each[list(labels)] for each in of_standardised(result, chosen))
    weight.requires_grad_(), bias.requires_grad_()
    y = torch.searchsorted(torch.tensor(labels), chosen.y)
    objective(weight, bias, standardised(model, chosen), y, l2).backward()
    # Heads are float32.
    assert weight.grad.abs().max() < 1e-6
    assert bias.grad.abs().max() < 1e-6


@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (1, 3)], ids=str)
def test_an_independent_solver_ends_at_the_same_head(model, task, samples, labels):
    """Newton's method with the whole Hessian, in torch."""
    chosen, l2 = of_classes(samples, *labels), 0.01
    x, count = standardised(model, chosen), len(labels)
    y = torch.searchsorted(torch.tensor(labels), chosen.y)

    def value(flat):
        weight, bias = flat[:-count].view(count, -1), flat[-count:]
        # Biases are determined up to a constant.
        return objective(weight, bias, x, y, l2) + 0.5 * bias.mean().square()

    flat = torch.zeros(count * (x.shape[1] + 1), dtype=torch.float64)
    for _ in range(12):
        slope, bend = jacobian(value, flat), hessian(value, flat)
        flat = flat - torch.linalg.solve(bend, slope)
    weight, bias = (
        each[list(labels)] for each in of_standardised(probed(model, task, chosen, l2=l2), chosen)
    )
    torch.testing.assert_close(weight, flat[:-count].view(count, -1), rtol=0, atol=1e-5)
    torch.testing.assert_close(bias - bias.mean(), flat[-count:], rtol=0, atol=1e-5)


def test_nothing_but_the_head_changes_in_a_whole_run(tmp_path):
    run = plan_run("spirals", "linear_probe", target="turn0", settings={"steps": 4, "every": 1})
    store = Store(tmp_path)
    record = execute(run, store)
    first = set_up(run, Machine(torch.device("cpu"), 1, tmp_path, tmp_path)).learner.model
    after = store.weights(run)
    for name, value in first.state_dict().items():
        assert torch.equal(after[name], value) == (not name.startswith("head.")), name
    # The steps change nothing more.
    assert len({c.scores["turn10"].probe.loss for c in record.checkpoints}) == 1
    assert len({c.logs["loss"] for c in record.checkpoints}) == 1


def test_batch_statistics_stay_as_they_came(model, task, stream):
    model.features.append(nn.BatchNorm1d(8))
    before = copy.deepcopy(model.features.state_dict())
    learner, average = LinearProbe().setup(model, task), Last()
    average.setup(learner.model, steps=3)
    list(checkpoints(LinearProbe(), learner, average, stream, lambda _: {}, steps=3, every=1))
    after = learner.model.features.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_the_loss_that_is_logged_is_that_of_the_head(model, task, samples, stream):
    learner = LinearProbe().setup(model, task)
    LinearProbe().regroup(learner, samples)
    logs = LinearProbe().update(learner, next(stream))
    expected = F.cross_entropy(learner.model.eval()(samples.x.in_memory), samples.y)
    torch.testing.assert_close(logs["loss"], expected.detach())


def test_a_class_that_no_sample_has_is_never_said(model, task, samples):
    chosen = of_classes(samples, 0, 1, 3)
    result = probed(model, task, chosen)
    logits = result(samples.x.in_memory).detach()
    assert not (logits.argmax(1) == 2).any()
    assert torch.equal(result.head.weight[2], torch.zeros(8))
    _, bias = of_standardised(result, chosen)
    assert bias[[0, 1, 3]].min() - bias[2] == pytest.approx(ABSENT_CLASS_MARGIN, abs=1e-4)
    # Nor are the others moved by it: the loss is that without the class, but for e⁻¹⁰.
    y = torch.searchsorted(torch.tensor([0, 1, 3]), chosen.y)
    whole, without = (
        F.cross_entropy(result(chosen.x.in_memory).detach()[:, columns], labels)
        for columns, labels in (([0, 1, 2, 3], chosen.y), ([0, 1, 3], y))
    )
    assert 0 <= whole - without < 1e-4


def test_of_one_class_it_always_says_that(model, task, samples):
    result = probed(model, task, of_classes(samples, 2))
    assert (result(samples.x.in_memory).argmax(1) == 2).all()
    assert torch.equal(result.head.weight, torch.zeros(4, 8))


def test_a_frozen_head_stays_as_it_is(model, task, samples, stream):
    model.head.requires_grad_(requires_grad=False)
    before = copy.deepcopy(model.state_dict())
    learner = LinearProbe().setup(model, task)
    LinearProbe().regroup(learner, samples)
    assert LinearProbe().update(learner, next(stream))["loss"] == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_it_is_fitted_before_the_first_step_only(model, task, samples):
    learner = LinearProbe().setup(model, task)
    learner.step = 1
    before = model.head.weight.clone()
    LinearProbe().regroup(learner, samples)
    assert torch.equal(model.head.weight, before)


def test_a_greater_l2_gives_a_smaller_head(model, task, samples):
    norms = [
        of_standardised(probed(model, task, samples, l2=l2), samples)[0].norm()
        for l2 in (1e-6, 1e-3, 1.0)
    ]
    assert norms[0] > 2 * norms[1] > 4 * norms[2]


@pytest.mark.parametrize("times", [1e-3, 1e3])
def test_the_unit_of_the_features_is_nothing(model, task, samples, times):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.features[0].weight.mul_(times)
        other.features[0].bias.mul_(times)
    expected, result = (probed(net, task, samples)(samples.x.in_memory) for net in (model, other))
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)


def test_a_feature_that_never_changes_is_no_trouble(model, task, samples):
    with torch.no_grad():
        model.features[0].weight[0] = 0
        model.features[0].bias[0] = 3.0
    result = probed(model, task, samples)
    assert torch.isfinite(result.head.weight).all()
    assert (result(samples.x.in_memory).argmax(1) == samples.y).float().mean() > 0.9


def test_the_mode_of_the_network_is_left_alone_and_augmentation_takes_no_part(model, task, samples):
    def wrong(*_):
        raise AssertionError("augmented")

    model.features.append(nn.Dropout(0.9))
    model.train()
    learner = LinearProbe().setup(model, task)
    LinearProbe().regroup(learner, replace(samples, augment=wrong))
    assert model.training
    # With nine tenths of the features dropped it would not.
    assert (model.eval()(samples.x.in_memory).argmax(1) == samples.y).float().mean() > 0.9


def test_too_few_iterations_are_one_note_and_no_warning(model, task, samples, monkeypatch, caplog):
    monkeypatch.setattr(linear_probe, "MAX_ITERATIONS", 2)
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        probed(model, task, samples)
    assert caplog.messages == ["linear_probe: not converged after 2 iterations; try a larger l2"]


@pytest.mark.parametrize("l2", [0.0, -1.0])
def test_no_l2_is_refused(l2):
    with pytest.raises(SpecError, match=r"l2=.*: must (be above|not be below) 0"):
        build(LinearProbe, {"l2": l2})


def test_on_arrays_the_probe_is_linear_in_the_inputs_unless_a_network_is_given():
    spirals = find_dataset("spirals")
    plain = resolve_run(spirals, "linear_probe", spirals.domains[1:])
    assert (plain.backbone, plain.given) == ("linear", {})
    settings = {"backbone": "small:mlp"}
    given = resolve_run(spirals, "linear_probe", spirals.domains[1:], settings=settings)
    assert (given.backbone, given.given) == ("small:mlp", settings)
    assert resolve_run(spirals, "erm", spirals.domains[1:]).backbone == "small:mlp"
    start = leave_one_out(spirals, ["erm"], trials=1, start="linear_probe")[0]
    assert (start.method, start.backbone) == ("linear_probe", "small:mlp")
