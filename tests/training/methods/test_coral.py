from itertools import combinations

import torch

from afield.training.method import risks
from afield.training.methods.coral import CORAL
from tests.training.methods.references import loss_of, unequal


def test_the_distance_is_the_mean_over_pairs_of_domains(model, task, stream):
    batches = unequal(next(stream))
    features = [model.features(batch.x) for batch in batches]
    pairs = [
        (a.mean(0) - b.mean(0)).square().mean() + (a.T.cov() - b.T.cov()).square().mean()
        for a, b in combinations(features, 2)
    ]
    loss = loss_of(CORAL(penalty=3.0), CORAL().setup(model, task), batches)
    expected = risks(model, batches).mean() + 3 * torch.stack(pairs).mean()
    torch.testing.assert_close(loss, expected)


def test_equal_domains_have_no_distance(model, task, stream):
    _, logs = CORAL().loss(CORAL().setup(model, task), unequal(next(stream))[:1] * 3)
    assert logs["distance"] < 1e-12
