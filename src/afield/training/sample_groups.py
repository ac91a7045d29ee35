"""Samples in groups: by rank, by cluster, around seeds; and whether two groupings agree.

A grouping is a list of groups: for each the indices of its samples in ascending order, and none of
them empty. Ranks, clusters and seeds give every sample a label, which makes groups of a unit.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "assign_to_seeds",
    "consistency",
    "find_seed_points",
    "indices_by_label",
    "kmeans_labels",
    "quantile_bins",
    "subdivide",
]

# More points than these are clustered in small batches.
MINIBATCH_THRESHOLD = 10_000
# How many distances are held at once: never those between all points of a large set.
MAX_DISTANCES = 2**22


def indices_by_label(labels: Tensor) -> list[Tensor]:
    """The indices of the samples of every label that occurs, labels in ascending order."""
    labels = labels.cpu()
    counts: list[int] = labels.unique(return_counts=True)[1].tolist()
    return list(labels.argsort(stable=True).split(counts))


def subdivide(units: Sequence[Tensor], label: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """The groups of every unit, by labels that a function gives its samples."""
    return [unit[group] for unit in units for group in indices_by_label(label(unit))]


def quantile_bins(values: Tensor, count: int) -> Tensor:
    """Which of `count` equal parts of the ranking, from below, each value is in.

    >>> quantile_bins(torch.tensor([3.0, 1.0, 2.0, 0.5]), 2)
    tensor([1, 0, 1, 0])
    """
    order = values.argsort(stable=True)
    sizes = [len(part) for part in order.tensor_split(count)]
    ranks = torch.arange(count).repeat_interleave(torch.tensor(sizes))
    return torch.empty_like(order).scatter_(0, order, ranks.to(order.device))


def kmeans_labels(points: NDArray[np.float32], count: int, *, seed: int) -> Tensor:
    """Which of at most `count` clusters of K-means each point is in."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    kind = KMeans if len(points) <= MINIBATCH_THRESHOLD else MiniBatchKMeans
    found = kind(n_clusters=min(count, len(points)), n_init=3, random_state=seed)
    # Sums over threads come in no fixed order; fewer distinct points than clusters are no error.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.from_numpy(found.fit_predict(points).astype(np.int64))


def find_seed_points(points: Tensor, radius: float) -> Tensor:
    """A small set of points such that every other one is nearer than `radius` to one of them.

    The greedy dominating set of the graph of neighbours: always the point with the most neighbours
    that have no seed yet. The smallest such set cannot be found in reasonable time.
    """
    alone = torch.ones(len(points), dtype=torch.bool, device=points.device)
    gain = torch.cat([near.sum(1) for near in _neighbours(points, points, radius)])
    found = []
    while alone.any():
        best = gain.argmax()
        (near,) = _neighbours(points[best][None], points, radius)
        fresh = near[0] & alone
        # A point is a neighbour of its own, and no seed twice, whatever the rounding.
        fresh[best], gain[best] = alone[best], -1
        if fresh.any():
            found.append(best)
            alone &= ~fresh
            for near in _neighbours(points[fresh], points, radius):
                gain -= near.sum(0)
            gain.clamp_(min=0)[torch.stack(found)] = -1
    return torch.stack(found)


def assign_to_seeds(points: Tensor, chosen: Tensor, radius: float) -> Tensor:
    """For every point the number of a seed: its own, or a random one among those near it."""
    found = []
    for distance in _distances(points, points[chosen]):
        odds = torch.rand_like(distance).masked_fill_(distance >= radius, -1.0)
        # The nearest seed is near, whatever the rounding.
        nearest = distance.argmin(dim=1, keepdim=True)
        odds.scatter_(1, nearest, odds.gather(1, nearest).clamp(min=0))
        found.append(odds.argmax(dim=1))
    label = torch.cat(found)
    label[chosen] = torch.arange(len(chosen), device=points.device)
    return label


def _neighbours(rows: Tensor, points: Tensor, radius: float) -> Iterator[Tensor]:
    return (distance < radius for distance in _distances(rows, points))


def _distances(rows: Tensor, points: Tensor) -> Iterator[Tensor]:
    """Distances from some rows at a time to all points."""
    return (torch.cdist(part, points) for part in rows.split(max(1, MAX_DISTANCES // len(points))))


def consistency(first: Tensor, second: Tensor, group: Tensor) -> float:
    """The share of pairs in one cluster of the first that are in one of the second (CCT, Eq. 3).

    Pairs are of two different samples of one group; the mean is over groups that have any.
    """
    shares = []
    for index in indices_by_label(group):
        pairs = _pairs(first[index])
        if pairs:
            both = torch.stack([first[index], second[index]])
            shares.append(_pairs(both) / pairs)
    return float(np.mean(shares)) if shares else float("nan")


def _pairs(labels: Tensor) -> int:
    """How many pairs of columns are alike."""
    counts = labels.unique(return_counts=True, dim=-1)[1]
    return int((counts * (counts - 1) // 2).sum())
