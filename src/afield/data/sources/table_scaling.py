"""Preprocessing of tables of numbers and categories, fitted on the training splits of the sources.

A missing number becomes the median and a missing category the most frequent one; numbers are
standardized and categories are one-hot. scikit-learn fits it (`SimpleImputer`, `StandardScaler`,
`OneHotEncoder`). Only numbers are stored, and batches are transformed by torch. A category that the
sources do not have is all zeros.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.samples import Rows
from afield.data.sources.table_files import Column
from afield.errors import SpecError

__all__ = ["FittedColumn", "TableScaling"]


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
class TableScaling:
    """Map rows of a table to the input of a network."""

    columns: tuple[FittedColumn, ...]

    @classmethod
    def fit(cls, x: Rows, columns: Sequence[Column]) -> "TableScaling":
        """Fit the preprocessing of these rows, each column on its own."""
        values = torch.cat(list(x.chunks(65536))).double().cpu().numpy()
        return cls(tuple(_fit(values[:, i : i + 1], each) for i, each in enumerate(columns)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableScaling":
        """Restore a preprocessing from `to_dict`."""
        return cls(tuple(_from_dict(column) for column in values["table"]))

    def to_dict(self) -> dict[str, Any]:
        """The preprocessing as plain numbers and names, to store beside the weights."""
        return {"mean": [0.0], "std": [1.0], "table": [asdict(column) for column in self.columns]}

    @property
    def width(self) -> int:
        """Number of inputs of the network."""
        return len(self._plan[0])

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
