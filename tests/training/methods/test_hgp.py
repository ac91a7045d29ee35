import torch
import torch.nn.functional as F

from afield.training.methods.hgp import HGP
from tests.training.methods.references import unequal


def test_one_domain_has_no_penalty(model, task, stream):
    _, logs = HGP(curvature=1e3, slope=1e3).loss(HGP().setup(model, task), next(stream)[:1])
    assert logs["penalty"] < 1e-6


def test_the_penalty_compares_hessian_gradient_products_of_the_head(model, task, stream):
    batches, head = unequal(next(stream)), [*model.head.parameters()]

    def slope_and_product(loss):
        slope = torch.cat([g.flatten() for g in torch.autograd.grad(loss, head, create_graph=True)])
        product = torch.autograd.grad(slope.square().sum() / 2, head)
        return slope.detach(), torch.cat([each.flatten() for each in product])

    losses = [F.cross_entropy(model(batch.x), batch.y) for batch in batches]
    mean_slope, mean_product = slope_and_product(sum(losses) / 3)
    losses = [F.cross_entropy(model(batch.x), batch.y) for batch in batches]
    penalty = 0.0
    for slope, product in map(slope_and_product, losses):
        penalty += 5 * (product - mean_product).square().sum() / 3
        penalty += 2 * (slope - mean_slope).square().sum() / 3
    _, logs = HGP(curvature=5.0, slope=2.0).loss(HGP().setup(model, task), batches)
    torch.testing.assert_close(logs["penalty"], penalty)
