"""Distances between sets of samples: by their moments, and by kernels.

Both take any number of sets and return the mean distance over all pairs of them. Neither visits
the pairs of sets: a sum of squared differences over all pairs is the number of sets times the sum
of squared deviations from the mean, and the kernels of all samples are computed once.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE, SMALL = 0.07, 1e-5


def supervised_contrast(z: Tensor, y: Tensor) -> Tensor:
    """Contrastive loss of features with these labels."""
    rows = F.normalize(z, dim=1)
    other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    e = 0.5 * (rows @ rows.T / TEMPERATURE).exp() * other
    positive = (y[:, None] == y) & other
    count = positive.sum(dim=1)
    likelihoods = (e / (e.sum(dim=1, keepdim=True) + SMALL) + SMALL).log()
    means = -(likelihoods * positive).sum(dim=1) / count.clamp(min=1)
    return means.sum() / ((count > 0).sum() + 1)


# γ of the Gaussian kernels exp(-γ ‖x - y‖²), which are added up; DomainBed's choice.
WIDTHS = tuple(10.0**exponent for exponent in range(-3, 4))


def moment_distance(sets: Sequence[Tensor]) -> Tensor:
    """Mean over pairs of the squared differences of means and of covariances, as in CORAL.

    The squares are means over k entries of the means and over k² of the covariances, which have
    the divisor m - 1. The distance of a single set is 0.
    """
    if len(sets) == 1:
        return sets[0].new_zeros(())
    sizes = [len(features) for features in sets]
    means, rows = _centered(sets, sizes)
    return _mean_over_pairs(means) + _covariance_distance(rows, sizes)


def _centered(sets: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Means of the sets, and the rows of all sets less the means of their own."""
    if len(set(sizes)) == 1:
        stacked = torch.stack(list(sets))
        means = stacked.mean(dim=1)
        return means, (stacked - means[:, None]).flatten(0, 1)
    means = torch.stack([features.mean(dim=0) for features in sets])
    return means, torch.cat([each - mean for each, mean in zip(sets, means, strict=True)])


def _covariance_distance(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean over pairs of the squared difference of covariances, and over their entries.

    If there are fewer samples than features, the covariances are larger than the matrix of products
    of samples, which is then used instead: ⟨AᵀA, BᵀB⟩ = ‖A Bᵀ‖².
    """
    if len(rows) >= rows.shape[1]:
        own = rows.split(list(sizes))
        return _mean_over_pairs(torch.stack([c.T @ c / (len(c) - 1) for c in own]))
    # Makes of a mean over m samples one with the divisor m - 1.
    factors = rows.new_tensor([size / (size - 1) for size in sizes])
    products = block_means((rows @ rows.T).square(), sizes) * factors * factors[:, None]
    return _mean_pair_distance(products) / rows.shape[1] ** 2


def _mean_over_pairs(rows: Tensor) -> Tensor:
    """Mean of the squared difference over all pairs of rows and all entries."""
    # Twice the variance over the rows; torch's own takes many times as long.
    squares = (rows - rows.mean(dim=0)).square().sum()
    return 2 * squares / ((len(rows) - 1) * rows[0].numel())


def _mean_pair_distance(products: Tensor) -> Tensor:
    """Mean of ‖a - b‖² over all pairs of vectors, from the matrix of their products."""
    n, within = len(products), products.trace()
    return 2 * within / n - 2 * (products.sum() - within) / (n * (n - 1))


def kernel_distance(sets: Sequence[Tensor], widths: Sequence[float] = WIDTHS) -> Tensor:
    """Mean over pairs of the squared maximum mean discrepancy, in its biased form.

    The distance of a pair is the mean kernel within either set less twice the mean kernel between
    them; a sample is also paired with itself. The distance of a single set is 0.
    """
    if len(sets) == 1:
        return sets[0].new_zeros(())
    n, samples, sizes = len(sets), torch.cat(list(sets)), [len(each) for each in sets]
    # Each pair of samples is computed once, and its weight counts it twice.
    distances = F.pdist(samples).square()
    kernels = (distances * -distances.new_tensor(widths)[:, None]).exp().sum(dim=0)
    with_itself = 2 * len(widths) * sum(1 / size for size in sizes) / n
    return kernels @ _pair_weights(tuple(sizes), kernels.dtype, kernels.device) + with_itself


# Most runs have the same sizes in every step.
@lru_cache(maxsize=1)
def _pair_weights(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Weight of each pair of samples in the mean distance, in the order of `F.pdist`."""
    n, count = len(sizes), sum(sizes)
    first, second = torch.triu_indices(count, count, offset=1, device=device)
    owner = torch.arange(n).repeat_interleave(torch.tensor(sizes)).to(device)
    shares = torch.tensor([1 / size for size in sizes], dtype=dtype, device=device)[owner]
    signs = torch.tensor([4 / n, -4 / (n * (n - 1))], dtype=dtype, device=device)
    return shares[first] * shares[second] * signs[(owner[first] != owner[second]).long()]


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
