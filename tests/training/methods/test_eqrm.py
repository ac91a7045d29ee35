import pytest
import torch

from afield.training.method import risks
from afield.training.methods.eqrm import EQRM
from tests.training.methods.references import loss_of, unequal

RISKS = torch.tensor([0.5, 0.9, 1.4], dtype=torch.float64)


def quantile_and_gradient(method: EQRM, values: torch.Tensor):
    at = values.clone().requires_grad_()
    quantile = method.quantile_of(at)
    return quantile.detach(), torch.autograd.grad(quantile, at)[0]


def test_the_gradient_of_the_code_and_the_true_one():
    for gradient, expected in (("code", [0.110, -0.021, 0.911]), ("exact", [-0.086, 0.331, 0.755])):
        _, result = quantile_and_gradient(EQRM(gradient=gradient), RISKS)
        torch.testing.assert_close(result, torch.tensor(expected).double(), rtol=0, atol=6e-4)


def test_the_exact_gradient_is_that_of_finite_differences():
    method, result = EQRM(gradient="exact"), []
    for i in range(3):
        step = 1e-4 * torch.eye(3).double()[i]
        result.append((method.quantile_of(RISKS + step) - method.quantile_of(RISKS - step)) / 2e-4)
    _, gradient = quantile_and_gradient(method, RISKS)
    torch.testing.assert_close(gradient, torch.stack(result), rtol=1e-4, atol=1e-5)


def test_the_quantile_splits_the_density_estimate():
    spread = 1.06 * RISKS.std() * 3**-0.2
    for quantile in (0.1, 0.5, 0.9, 0.99):
        q = EQRM(quantile=quantile).quantile_of(RISKS)
        assert torch.special.ndtr((q - RISKS) / spread).mean() == pytest.approx(quantile, abs=1e-6)


def test_the_middle_of_symmetric_risks_and_the_worst_of_all():
    symmetric = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)
    assert EQRM(quantile=0.5).quantile_of(symmetric) == pytest.approx(0.5, abs=1e-8)
    assert EQRM(quantile=0.9999).quantile_of(symmetric) > 0.8
    assert quantile_and_gradient(EQRM(quantile=0.9999), symmetric)[1].argmax() == 2


def test_equal_risks_have_a_finite_gradient_that_sums_to_one():
    for gradient in ("code", "exact"):
        same = torch.full((3,), 0.7, dtype=torch.float64)
        quantile, slope = quantile_and_gradient(EQRM(gradient=gradient), same)
        assert quantile == pytest.approx(0.7, abs=1e-6)
        assert slope.sum() == pytest.approx(1.0, abs=1e-4)
        _, slope = quantile_and_gradient(EQRM(gradient=gradient), same.float())
        assert slope.isfinite().all()


def test_before_the_warm_up_ends_it_is_the_mean_of_the_risks(model, task, stream):
    batches, learner = unequal(next(stream)), EQRM().setup(model, task)
    loss, _ = EQRM().loss(learner, batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
    assert loss_of(EQRM(quantile=0.99), learner, batches) > risks(model, batches).max()


def test_the_learning_rate_changes_when_a_drawn_warm_up_ends(model, task, stream):
    method = EQRM(warmup=0.0333, lr_factor=0.1)
    learner, rates = method.setup(model, task), []
    for learner.step in range(5):
        method.update(learner, next(stream))
        rates.append(learner.lr)
    assert rates == pytest.approx([0.01] * 3 + [0.001] * 2)
