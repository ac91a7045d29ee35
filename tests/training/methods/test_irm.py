import torch
import torch.nn.functional as F

from afield.training.method import risks
from afield.training.methods.irm import IRM
from tests.training.methods.references import unequal


def test_the_penalty_is_the_product_of_the_derivatives_of_two_halves(model, task, stream):
    batches = unequal(next(stream))
    products = []
    for batch in batches:
        scale = torch.ones((), requires_grad=True)
        halves = [
            torch.autograd.grad(F.cross_entropy(scale * model(b_x), b_y), scale)[0]
            for b_x, b_y in ((batch.x[i::2], batch.y[i::2]) for i in (0, 1))
        ]
        products.append(halves[0] * halves[1])
    method, learner = IRM(penalty=3.0, warmup=0.0), IRM().setup(model, task)
    loss, logs = method.loss(learner, batches)
    expected = torch.stack(products).mean()
    torch.testing.assert_close(logs["penalty"], expected)
    torch.testing.assert_close(loss, risks(model, batches).mean() + 3 * expected)


def test_during_the_warm_up_the_penalty_has_the_weight_one(model, task, stream):
    learner, batches = IRM().setup(model, task), next(stream)
    early, _ = IRM(penalty=50.0, warmup=0.1).loss(learner, batches)
    plain, _ = IRM(penalty=1.0, warmup=0.0).loss(learner, batches)
    torch.testing.assert_close(early, plain)
