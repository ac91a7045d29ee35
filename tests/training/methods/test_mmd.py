from itertools import combinations

import torch

from afield.training.method import risks
from afield.training.methods.mmd import MMD
from tests.training.methods.references import loss_of, unequal


def kernel(a, b):
    distances = (a[:, None] - b).square().sum(dim=-1)
    return sum((-(10.0**e) * distances).exp() for e in range(-3, 4)).mean()


def test_the_distance_is_the_mean_over_pairs_of_domains(model, task, stream):
    batches = unequal(next(stream))
    features = [model.features(batch.x) for batch in batches]
    pairs = [kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in combinations(features, 2)]
    loss = loss_of(MMD(penalty=3.0), MMD().setup(model, task), batches)
    expected = risks(model, batches).mean() + 3 * torch.stack(pairs).mean()
    torch.testing.assert_close(loss, expected)


def test_one_domain_has_no_distance(model, task, stream):
    _, logs = MMD().loss(MMD().setup(model, task), next(stream)[:1])
    assert logs["distance"] == 0
