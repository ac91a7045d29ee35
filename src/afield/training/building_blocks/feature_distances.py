"""Distances between sets of samples: by their moments, and by kernels.

Both take any number of sets and return the mean distance over all pairs of them. Neither visits
the pairs: a sum of squared differences over all pairs is the number of sets times the sum of
squared deviations from the mean, and the kernels of all samples are computed once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["WIDTHS", "block_means", "kernel", "kernel_distance", "moment_distance"]

# γ of the Gaussian kernels exp(-γ ‖x - y‖²), which are added up; DomainBed's choice.
WIDTHS = tuple(10.0**exponent for exponent in range(-3, 4))


def moment_distance(sets: Sequence[Tensor]) -> Tensor:
    """Mean over pairs of the squared differences of means and of covariances, as in CORAL.

    The squares are means over k entries of the means and over k² of the covariances, which have
    the divisor m - 1. The distance of a single set is 0.
    """
    means = torch.stack([features.mean(dim=0) for features in sets])
    centered = [features - mean for features, mean in zip(sets, means, strict=True)]
    covariances = torch.stack([c.T @ c / (len(c) - 1) for c in centered])
    return _mean_over_pairs(means) + _mean_over_pairs(covariances)


def _mean_over_pairs(rows: Tensor) -> Tensor:
    """Mean of the squared difference over all pairs of rows and all entries."""
    if len(rows) == 1:
        return rows.new_zeros(())
    # Twice the variance over the rows; torch's own takes many times as long.
    squares = (rows - rows.mean(dim=0)).square().sum()
    return 2 * squares / ((len(rows) - 1) * rows[0].numel())


def kernel_distance(sets: Sequence[Tensor], widths: Sequence[float] = WIDTHS) -> Tensor:
    """Mean over pairs of the squared maximum mean discrepancy, in its biased form.

    The distance of a pair is the mean kernel within either set less twice the mean kernel between
    them; a sample is also paired with itself. The distance of a single set is 0.
    """
    n, samples = len(sets), torch.cat(list(sets))
    means = block_means(kernel(samples, widths), [len(each) for each in sets])
    if n == 1:
        return means.new_zeros(())
    within = means.trace()
    return 2 * within / n - 2 * (means.sum() - within) / (n * (n - 1))


def kernel(samples: Tensor, widths: Sequence[float] = WIDTHS) -> Tensor:
    """Sum of Gaussian kernels of every pair of samples."""
    # The faster form, by a product of matrices, rounds to about 1e-6 of the squared norms; the
    # narrowest kernel would make an error of a thousand times that of it.
    exact = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(samples, samples, compute_mode=exact).square()
    return (distances[..., None] * -distances.new_tensor(widths)).exp().sum(dim=-1)


def block_means(values: Tensor, sizes: Sequence[int]) -> Tensor:
    """Means of the blocks of a matrix whose rows and columns are divided into these sizes."""
    if len(set(sizes)) == 1:
        blocks = values.unflatten(1, (len(sizes), -1)).unflatten(0, (len(sizes), -1))
        return blocks.mean(dim=(1, 3))
    rows = torch.stack([block.mean(dim=0) for block in values.split(list(sizes))])
    return torch.stack([block.mean(dim=1) for block in rows.split(list(sizes), dim=1)], dim=1)
