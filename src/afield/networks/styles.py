"""The style of a feature map: statistics over its positions, and how to exchange them.

    μ, v        mean and variance (divisor: positions - 1) over the positions of each channel of a
                map, or over the entries of a vector of features
    mix_styles          (x - μ) / σ · (λ σ + (1 - λ) σ[π]) + λ μ + (1 - λ) μ[π],   σ = √(v + 1e-6),
                        μ and σ constant (MixStyle)
    match_distributions x + (1 - λ) (y - sg x), y the values of x[π] at the ranks of x (EFDMix)
    randomize_style     z̃ √(v' + 1e-5) + μ',   z̃ = (z - μ) / √(v + 1e-5),
                        μ' = a μ + (1 - a) μ[π], and v' alike (SagNet)
    randomize_content   sg(z̃[π]) √(v + 1e-5) + μ (SagNet)

π is a permutation of the samples, and λ or a is one number per sample; sg stops the gradient.
"""

import math

import numpy as np
import torch
from torch import Tensor

MIXSTYLE_EPS, SAGNET_EPS = 1e-6, 1e-5


def mix_styles(x: Tensor, lam: Tensor, perm: Tensor, *, axis: int = 1) -> Tensor:
    """Give samples a mixture of their own style and that of others, as MixStyle does.

    Parameters
    ----------
    x
        Maps, or vectors of features; one row per sample.
    lam
        Share of the own style, one per sample.
    perm
        The other samples.
    axis
        Dimension of the channels of maps.
    """
    mean, variance = _statistics(x.detach(), axis)
    std, own = (variance + MIXSTYLE_EPS).sqrt(), _per_sample(lam, x)
    new_std, new_mean = (own * value + (1 - own) * value[perm] for value in (std, mean))
    # Scale and shift are one number per channel, so that maps are only read twice.
    scale = new_std / std
    return torch.addcmul(new_mean - mean * scale, x, scale)


def match_distributions(x: Tensor, lam: Tensor, perm: Tensor, *, axis: int = 1) -> Tensor:
    """Give samples a mixture of their own values and those of others of the same rank, as EFDMix.

    Gradients reach the other samples too. The arguments are those of `mix_styles`.
    """
    moved = x.movedim(axis, 1)
    values = moved.flatten(2)
    places = _sorted_places(values.detach())
    ordered = values.gather(-1, places)
    matched = torch.zeros_like(values).scatter(-1, places, ordered[perm])
    matched = matched.view(moved.shape).movedim(1, axis)
    return x + (1 - _per_sample(lam, x)) * (matched - x.detach())


def randomize_style(x: Tensor, alpha: Tensor, swap: Tensor, *, axis: int = 1) -> Tensor:
    """Keep the content of samples, and mix their styles: the variances are mixed, not their roots.

    Parameters
    ----------
    x
        Maps, or vectors of features; one row per sample.
    alpha
        Share of the own style, one per sample.
    swap
        The other samples.
    axis
        Dimension of the channels of maps.
    """
    mean, variance = _statistics(x, axis)
    normal, own = (x - mean) / (variance + SAGNET_EPS).sqrt(), _per_sample(alpha, x)
    mean, variance = (own * value + (1 - own) * value[swap] for value in (mean, variance))
    return normal * (variance + SAGNET_EPS).sqrt() + mean


def randomize_content(x: Tensor, swap: Tensor, *, axis: int = 1) -> Tensor:
    """Keep the style of samples, with the content of other samples as a constant."""
    mean, variance = _statistics(x, axis)
    std = (variance + SAGNET_EPS).sqrt()
    return ((x - mean) / std).detach()[swap] * std + mean


def _sorted_places(values: Tensor) -> Tensor:
    """Places that sort the last dimension; equal values stay in the order of their places.

    NumPy sorts integers tens of times as fast as torch sorts with places. So, on the CPU, the bits
    of a value, changed to an integer of the same order, and its place are sorted as one integer.
    """
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return values.sort(dim=-1, stable=True).indices
    # The sum makes -0 equal to 0.
    bits = (values + 0.0).contiguous().view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    packed = (keys << 32) + torch.arange(values.shape[-1])
    return torch.from_numpy(np.sort(packed.numpy(), axis=-1)) & 0xFFFFFFFF


def _statistics(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Mean and variance over positions, or over the entries of vectors."""
    dims = [dim for dim in range(1, x.ndim) if dim != axis or x.ndim == 2]
    mean = x.mean(dim=dims, keepdim=True)
    # torch's own variance of maps takes many times as long.
    squares = (x - mean).square().sum(dim=dims, keepdim=True)
    return mean, squares / (math.prod(x.shape[dim] for dim in dims) - 1)


def _per_sample(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (x.ndim - 1)).to(x)
