"""Scaling of stored values to the input of a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from afield.data.domains import Domain
from afield.data.samples import TOKEN_DTYPE, Rows

__all__ = ["Scaling", "extreme_value_warnings"]

# A value that is this many times as large as a typical one is reported.
EXTREME_RATIO = 1e6
# Samples of a domain from which the typical value is estimated.
MAX_MEDIAN_SAMPLES = 4096


@dataclass(frozen=True)
class Scaling:
    """Map stored values to the input of a network: (x - mean) / std.

    Images go from 0…255 to -1…1. Token ids stay as they are. Other values are standardized, per
    feature or channel, with the mean and standard deviation of the training splits of the sources.
    An unseen domain has no influence on them.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Rows) -> "Scaling":
        """Compute the scaling for these samples, on their device."""
        if x.is_pixels:
            half = torch.tensor(127.5, device=x.device)
            return cls(half, half)
        if x.is_tokens:
            return cls(torch.zeros((), device=x.device), torch.ones((), device=x.device))
        if x.in_memory is None:
            mean, std = _moments(x)
        else:
            dims = [d for d in range(x.in_memory.ndim) if d != 1]
            std, mean = torch.std_mean(x.in_memory.float(), dim=dims, keepdim=True, correction=0)
            mean, std = mean[0], std[0]
        return cls(mean, torch.where(std > 0, std, 1.0))

    @classmethod
    def for_images(
        cls, mean: Sequence[float], std: Sequence[float], *, channels: int, device: torch.device
    ) -> "Scaling":
        """Scaling of a pretrained image network, whose `mean` and `std` refer to values 0…1."""
        columns = (torch.tensor(values, device=device) * 255 for values in (mean, std))
        center, spread = (c if len(c) == channels else c.mean().expand(channels) for c in columns)
        return cls(center[:, None, None], spread[:, None, None])

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], like: "Scaling") -> "Scaling":
        """Restore a scaling from `to_dict`, with the shapes and the device of `like`."""
        mean, std = (
            torch.tensor(values[name], device=like.mean.device).view_as(like.mean)
            for name in ("mean", "std")
        )
        return cls(mean, std)

    def to_dict(self) -> dict[str, Any]:
        """Mean and standard deviation as plain numbers, to store beside the weights."""
        return {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}

    def __call__(self, x: Tensor) -> Tensor:
        """Scale a batch; images are returned in the channels-last layout convolutions prefer."""
        if x.dtype == TOKEN_DTYPE:
            return x
        scaled = x.float().sub(self.mean).div_(self.std)
        return scaled.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else scaled


def extreme_value_warnings(domains: Mapping[str, Domain]) -> list[str]:
    """One warning for every domain with a value so large that it would decide the scaling.

    A value is compared with the median of the values of its feature or channel that are not zero.
    """
    samples = {name: domain.x for name, domain in domains.items() if domain.x.is_floating_point()}
    if not samples:
        return []
    some = torch.cat(
        [_magnitudes(x[:: 1 + len(x) // MAX_MEDIAN_SAMPLES]) for x in samples.values()]
    )
    typical = some.where(some > 0, torch.nan).nanmedian(0).values.nan_to_num(torch.inf)
    warnings = []
    for name, x in samples.items():
        ratios = (_magnitudes(x) / typical).amax(1)
        row = int(ratios.argmax())
        if ratios[row] > EXTREME_RATIO:
            warnings.append(
                f"sample {row} of domain {name!r} has the value {x[row].abs().max():.3g}, "
                f"{ratios[row]:.0e} times as large as is typical; it would decide the scaling"
            )
    return warnings


def _magnitudes(x: Tensor) -> Tensor:
    """The largest magnitude of each sample in each feature or channel."""
    values = x.double().abs().nan_to_num(0.0)
    return values.flatten(2).amax(2) if x.ndim > 2 else values


def _moments(x: Rows) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of rows that do not fit into memory at once."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for chunk in x.chunks(1024):
        values = chunk.double().movedim(1, 0).flatten(1)
        count += values.shape[1]
        total, squares = total + values.sum(1), squares + values.square().sum(1)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    shape = (-1, *(1 for _ in x.shape[1:]))
    return mean.float().view(shape), std.float().view(shape)
