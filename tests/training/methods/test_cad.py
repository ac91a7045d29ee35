import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.cad import CAD
from tests.training.methods.references import unequal


def bottleneck(model, batch, *, conditional, flipped=True, normalized=False, temperature=0.5):
    """The formula, sample by sample."""
    z = model.features(batch.x).detach()
    z = F.normalize(z, dim=1) if normalized else z
    terms = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        own_class = [j for j in others if batch.y[j] == batch.y[i]]
        pairs = own_class if conditional else others
        counted = [j for j in pairs if (batch.domain[j] != batch.domain[i]) == flipped]
        if own_class and counted:
            sums = [(z[js] @ z[i] / temperature).exp().sum().log() for js in (counted, pairs)]
            terms.append(sums[0] - sums[1])
    return (-1 if flipped else 1) * temperature / 0.07 * torch.stack(terms).mean()


def test_it_is_the_formula_in_all_its_forms(model, task, stream):
    batches = unequal(next(stream))
    for form in ({}, {"flipped": False}, {"normalized": True}):
        method = CAD(temperature=0.5, **form)
        _, logs = method.loss(method.setup(model, task), batches)
        expected = bottleneck(model, pool(batches), conditional=False, **form)
        torch.testing.assert_close(logs["bottleneck"], expected)


def test_samples_without_another_of_their_class_have_no_term(model, task, stream):
    batches = next(stream)
    only = batches[0]._replace(y=torch.tensor([3, 0, 0, 1, 1, 2, 2, 0]))
    rest = [b._replace(y=b.y.clamp(max=2)) for b in batches[1:]]
    method = CAD(temperature=0.5)
    loss, logs = method.loss(method.setup(model, task), [only, *rest])
    expected = bottleneck(model, pool([only, *rest]), conditional=False)
    torch.testing.assert_close(logs["bottleneck"], expected)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [*model.parameters()]))
