import torch

from afield.training.method import pool
from afield.training.methods.cond_cad import CondCAD
from tests.training.methods.references import unequal


def terms(model, batch, *, flipped: bool) -> torch.Tensor:
    z, result = model.features(batch.x).detach(), []
    for i in range(len(z)):
        pairs = [j for j in range(len(z)) if j != i and batch.y[j] == batch.y[i]]
        counted = [j for j in pairs if (batch.domain[j] != batch.domain[i]) == flipped]
        if counted:
            sums = [(z[js] @ z[i] / 0.5).exp().sum().log() for js in (counted, pairs)]
            result.append(sums[0] - sums[1])
    return torch.stack(result).mean()


def test_only_samples_of_the_same_class_count(model, task, stream):
    batches = unequal(next(stream))
    for flipped in (True, False):
        method = CondCAD(temperature=0.5, flipped=flipped)
        _, logs = method.loss(method.setup(model, task), batches)
        sign = -1 if flipped else 1
        expected = sign * 0.5 / 0.07 * terms(model, pool(batches), flipped=flipped)
        torch.testing.assert_close(logs["bottleneck"], expected)


def test_a_class_in_one_domain_only_has_no_term(model, task, stream):
    apart = [b._replace(y=torch.full_like(b.y, i)) for i, b in enumerate(next(stream))]
    method = CondCAD()
    loss, logs = method.loss(method.setup(model, task), apart)
    assert logs["bottleneck"] == 0
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [*model.parameters()]))
