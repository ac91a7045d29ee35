"""Scaling of stored values to the input of a network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.domains import Domain
from afield.data.frames import Column
from afield.data.samples import TOKEN_DTYPE, Rows
from afield.errors import SpecError

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

    def restored(self, values: Mapping[str, Any]) -> "Scaling":
        """Restore a scaling from `to_dict`, with the shapes and the device of this one."""
        mean, std = (
            torch.tensor(values[name], device=self.mean.device).view_as(self.mean)
            for name in ("mean", "std")
        )
        return Scaling(mean, std)

    def network_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a scaled sample."""
        return stored

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


@dataclass(frozen=True)
class FittedColumn:
    """A column, the value that replaces a missing one, and how the others are transformed.

    `mean` and `std` are those of numbers. Of a category, `fill` and `known` are indices into
    `categories`: the most frequent one of the sources, and all that the sources have.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    known: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.fill, self.mean, self.std))) or self.std <= 0:
            raise SpecError(f"column {self.name!r}: fill, mean and std must be finite, std above 0")
        if any(not 0 <= index < len(self.categories or ()) for index in self.known):
            raise SpecError(f"column {self.name!r}: known must list indices of its categories")

    @property
    def column(self) -> Column:
        """The column before anything was fitted."""
        return Column(self.name, self.categories)


@dataclass(frozen=True)
class TableScaling(Scaling):
    """Map rows of a table to the input of a network; every column has its own mean and std."""

    mean: Tensor = field(init=False, repr=False, compare=False, default=torch.zeros(1))
    std: Tensor = field(init=False, repr=False, compare=False, default=torch.ones(1))
    columns: tuple[FittedColumn, ...]

    @classmethod
    def fit(cls, x: Rows, columns: Sequence[Column] = ()) -> "TableScaling":
        """Fit the preprocessing of these rows, each column on its own."""
        values = torch.cat(list(x.chunks(65536))).double().cpu().numpy()
        return cls(tuple(_fit(values[:, i : i + 1], each) for i, each in enumerate(columns)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableScaling":
        """Restore a preprocessing from `to_dict`."""
        return cls(tuple(_from_dict(column) for column in values["table"]))

    def to_dict(self) -> dict[str, Any]:
        """The preprocessing as plain numbers and names, to store beside the weights."""
        return {**super().to_dict(), "table": [asdict(column) for column in self.columns]}

    def restored(self, values: Mapping[str, Any]) -> "TableScaling":
        """Restore a preprocessing from `to_dict`."""
        return self.from_dict(values)

    def network_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The number of inputs: one per number, and one per category that the sources have."""
        del stored
        return (len(self._plan[0]),)

    @cached_property
    def _plan(self) -> tuple[Tensor, ...]:
        """Per input: its column, whether it is one of a category, that category, mean and std."""
        inputs: list[tuple[int, bool, float, float, float]] = []
        for i, column in enumerate(self.columns):
            if column.categories is None:
                inputs.append((i, False, 0.0, column.mean, column.std))
            inputs += [(i, True, float(index), 0.0, 1.0) for index in column.known]
        if not inputs:
            raise SpecError("the sources have no value in any column of the table")
        index, one_hot, category, mean, std = zip(*inputs, strict=True)
        return tuple(torch.tensor(values) for values in (index, one_hot, category, mean, std))

    @cached_property
    def _on_devices(self) -> dict[torch.device, list[Tensor]]:
        """The tensors of the plan, and the replacements of missing values, on each device."""
        return {}

    def __call__(self, x: Tensor) -> Tensor:
        """Transform a batch of rows as stored."""
        if x.device not in self._on_devices:
            fill = torch.tensor([column.fill for column in self.columns])
            parts = [part.to(x.device) for part in (*self._plan, fill)]
            self._on_devices[x.device] = parts
        index, one_hot, category, mean, std, fill = self._on_devices[x.device]
        cells = torch.where(x.isnan(), fill, x).float().index_select(1, index)
        return torch.where(one_hot, (cells == category).float(), (cells - mean) / std)


def _fit(values: NDArray[np.float64], column: Column) -> FittedColumn:
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    strategy = "median" if column.categories is None else "most_frequent"
    imputer = SimpleImputer(strategy=strategy, keep_empty_features=True).fit(values)
    fill, filled = float(imputer.statistics_[0]), imputer.transform(values)
    if column.categories is None:
        scaler = StandardScaler().fit(filled)
        mean, std = float(scaler.mean_[0]), float(scaler.scale_[0])
        return FittedColumn(column.name, None, fill, mean, std)
    encoder = OneHotEncoder().fit(filled)
    known = tuple(int(index) for index in encoder.categories_[0]) if column.categories else ()
    return FittedColumn(column.name, column.categories, fill, known=known)


def _from_dict(values: Mapping[str, Any]) -> FittedColumn:
    categories = values["categories"]
    return FittedColumn(
        **{
            **values,
            "categories": None if categories is None else tuple(categories),
            "known": tuple(values["known"]),
        }
    )
