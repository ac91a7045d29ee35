"""Groups of samples by rank, by cluster or around seeds, and the agreement of two groupings.

A grouping is a list of groups. A group is the indices of its samples in ascending order, and is
never empty. Ranking, clustering and seeding give every sample a label; samples with the same label
form a group.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Number of points above which K-means works on minibatches.
MINIBATCH_THRESHOLD = 10_000
# Number of distances in memory at once; a large set has too many pairs of points.
MAX_DISTANCES = 2**22


def indices_by_label(labels: Tensor) -> list[Tensor]:
    """Indices of the samples with each label that occurs, in ascending order of the labels."""
    labels = labels.cpu()
    counts: list[int] = labels.unique(return_counts=True)[1].tolist()
    return list(labels.argsort(stable=True).split(counts))


def subdivide(groups: Sequence[Tensor], label: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Divide every group by the labels that a function assigns to its samples."""
    return [group[part] for group in groups for part in indices_by_label(label(group))]


def quantile_bins(values: Tensor, count: int) -> Tensor:
    """Index of the quantile bin that contains each value; `count` bins are equally full.

    >>> quantile_bins(torch.tensor([3.0, 1.0, 2.0, 0.5]), 2)
    tensor([1, 0, 1, 0])
    """
    order = values.argsort(stable=True)
    sizes = [len(ranked) for ranked in order.tensor_split(count)]
    ranks = torch.arange(count).repeat_interleave(torch.tensor(sizes))
    return torch.empty_like(order).scatter_(0, order, ranks.to(order.device))


def kmeans_labels(points: NDArray[np.float32], count: int, *, seed: int) -> Tensor:
    """Index of the K-means cluster of each point; there are at most `count` clusters."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    kind = KMeans if len(points) <= MINIBATCH_THRESHOLD else MiniBatchKMeans
    clustering = kind(n_clusters=min(count, len(points)), n_init=3, random_state=seed)
    # One thread, because sums over several threads have no fixed order. The warning is about
    # fewer distinct points than clusters, which is no error here.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return torch.from_numpy(clustering.fit_predict(points).astype(np.int64))


def find_seed_points(points: Tensor, radius: float) -> Tensor:
    """Indices of a small set of points such that every point is within `radius` of one of them.

    This is the greedy dominating set of the neighbor graph: each round selects the point with the
    most neighbors that have no seed yet. The smallest set would take exponential time.
    """
    uncovered = torch.ones(len(points), dtype=torch.bool, device=points.device)
    gain = torch.cat([near.sum(1) for near in _neighbors(points, points, radius)])
    seeds = []
    while uncovered.any():
        best = gain.argmax()
        (near,) = _neighbors(points[best][None], points, radius)
        covered = near[0] & uncovered
        # Despite rounding, a point must be its own neighbor and must not be selected twice.
        covered[best], gain[best] = uncovered[best], -1
        if covered.any():
            seeds.append(best)
            uncovered &= ~covered
            for near in _neighbors(points[covered], points, radius):
                gain -= near.sum(0)
            gain.clamp_(min=0)[torch.stack(seeds)] = -1
    return torch.stack(seeds)


def assign_to_seeds(points: Tensor, seeds: Tensor, radius: float) -> Tensor:
    """Position in `seeds` of a random seed within `radius` of each point; a seed has itself."""
    labels = []
    for distance in _distances(points, points[seeds]):
        priority = torch.rand_like(distance).masked_fill_(distance >= radius, -1.0)
        # Despite rounding, the nearest seed must count as near.
        nearest = distance.argmin(dim=1, keepdim=True)
        priority.scatter_(1, nearest, priority.gather(1, nearest).clamp(min=0))
        labels.append(priority.argmax(dim=1))
    label = torch.cat(labels)
    label[seeds] = torch.arange(len(seeds), device=points.device)
    return label


def _neighbors(rows: Tensor, points: Tensor, radius: float) -> Iterator[Tensor]:
    return (distance < radius for distance in _distances(rows, points))


def _distances(rows: Tensor, points: Tensor) -> Iterator[Tensor]:
    """Distances from rows to all points, in chunks of rows."""
    size = max(1, MAX_DISTANCES // len(points))
    return (torch.cdist(chunk, points) for chunk in rows.split(size))


def consistency(first: Tensor, second: Tensor, group: Tensor) -> float:
    """Share of the pairs in a cluster of `first` that are also in a cluster of `second`.

    This is Eq. 3 of CCT. A pair is two different samples of one group. The result is the mean over
    the groups that have pairs, or NaN if none has.
    """
    shares = []
    for index in indices_by_label(group):
        pairs = _pairs(first[index])
        if pairs:
            labels = torch.stack([first[index], second[index]])
            shares.append(_pairs(labels) / pairs)
    return float(np.mean(shares)) if shares else float("nan")


def _pairs(labels: Tensor) -> int:
    """Number of pairs of equal columns."""
    counts = labels.unique(return_counts=True, dim=-1)[1]
    return int((counts * (counts - 1) // 2).sum())
