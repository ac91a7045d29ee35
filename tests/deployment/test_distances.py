import numpy as np
import torch

from afield.deployment.distances import Distances


def cloud(n=400, width=6, seed=0):
    """Two classes apart, stretched along the first feature."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    spread = torch.ones(width)
    spread[0] = 10.0
    return torch.randn(n, width, generator=generator) * spread + 50.0 * y[:, None], y


def test_it_is_mahalanobis_distance_to_the_nearest_class():
    x, y = cloud(4000)
    distances = Distances.fit(x, y)
    centres = torch.stack([x[y == label].mean(dim=0) for label in (0, 1)]).double()
    within = (x - centres[y]).double()
    inverse = torch.linalg.inv(within.T @ within / len(x))
    point = x[:50].double()
    each = torch.stack([((point - c) @ inverse * (point - c)).sum(dim=1) for c in centres])
    expected = (each.amin(dim=0) / x.shape[1]).sqrt()
    # So many samples are hardly shrunk.
    torch.testing.assert_close(distances(x[:50]).double(), expected, rtol=0.02, atol=0.02)


def test_what_was_trained_on_is_at_about_one_and_elsewhere_is_further():
    x, y = cloud()
    distances = Distances.fit(x, y)
    assert 0.7 < distances(x).median() < 1.3
    assert distances(x + torch.tensor([0.0, 30, 0, 0, 0, 0])).min() > 5


def test_a_step_where_the_sources_vary_anyway_counts_less():
    x, y = cloud()
    distances = Distances.fit(x, y)
    centre = x[y == 0].mean(dim=0, keepdim=True)
    along, across = (centre + 10 * torch.eye(6)[i] for i in (0, 1))
    assert distances(across) > 5 * distances(along)


def test_units_of_the_features_are_nothing():
    x, y = cloud()
    scale = torch.tensor([1.0, 100, 0.01, 1, 5, 1])
    first, second = Distances.fit(x, y)(x), Distances.fit(x * scale, y)(x * scale)
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


def test_fewer_samples_than_features_and_dead_features_are_no_matter():
    x, y = cloud(20, width=64)
    x[:, 5] = 0.0
    distances = Distances.fit(x, y)
    other = x.clone()
    other[:, 5] = 100.0
    assert distances(x).isfinite().all()
    assert (distances(other) > 3 * distances(x)).all()


def test_a_class_that_is_not_there_is_no_matter():
    x, y = cloud()
    assert Distances.fit(x, 3 * y)(x[:3]).isfinite().all()


def test_the_batch_makes_no_difference():
    x, y = cloud()
    distances = Distances.fit(x, y)
    alone = torch.cat([distances(row[None]) for row in x[:40]])
    np.testing.assert_allclose(alone.numpy(), distances(x)[:40].numpy(), rtol=1e-5)


def test_what_is_kept_comes_back():
    x, y = cloud()
    distances = Distances.fit(x, y)
    assert torch.equal(Distances.from_tensors(distances.tensors())(x), distances(x))
