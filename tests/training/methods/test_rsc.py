import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.rsc import RSC
from tests.training.methods.references import unequal


def test_it_mutes_the_features_with_the_largest_derivatives_of_the_surest_samples(
    model, task, stream
):
    method, batch = RSC(drop_features=0.25, drop_samples=0.3), pool(unequal(next(stream)))
    features = model.features(batch.x).detach().requires_grad_()
    logits = model.head(features)
    (slope,) = torch.autograd.grad(logits.gather(1, batch.y[:, None]).sum(), features)
    keep = slope < slope.quantile(0.75, dim=1, keepdim=True)
    # 8 features: the two largest are beyond the quantile.
    assert (~keep).sum(dim=1).tolist() == [2] * len(batch.y)
    sure = [
        F.softmax(head, dim=1).gather(1, batch.y[:, None])[:, 0]
        for head in (logits, model.head(features * keep))
    ]
    falls = sure[0] - sure[1]
    keep |= (falls < falls.quantile(0.7))[:, None]
    loss, logs = method.loss(method.setup(model, task), [batch])
    torch.testing.assert_close(loss, F.cross_entropy(model.head(features * keep), batch.y))
    torch.testing.assert_close(logs["kept"], keep.float().mean())


def test_without_shares_one_feature_of_one_sample_is_still_muted(model, task, stream):
    _, logs = RSC(drop_features=0.0, drop_samples=0.0).loss(RSC().setup(model, task), next(stream))
    torch.testing.assert_close(logs["kept"], torch.tensor(1 - 1 / (24 * 8)))
