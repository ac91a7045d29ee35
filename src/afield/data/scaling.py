"""Scaling of stored values to the input of a network."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

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

    # What the columns of its results are, for methods that treat them differently.
    kind: ClassVar[Literal["table", "texts", "numbers"]] = "numbers"

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

    def misfits(self, domains: Mapping[str, Domain]) -> list[str]:
        """What samples cannot be read as the sources are; nothing but tables has types."""
        del domains
        return []

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

    `mean` and `std` are those of numbers, or robust estimates of them. Scaled numbers beyond
    `tail` grow like a logarithm, if it is not 0. Of a category, `fill` and `known` are indices into
    `categories`: the most frequent one of the sources, or -1 if a missing cell is in no category,
    and all that the sources have. With `indicator`, the network has another input, which tells
    whether the cell is missing. With `lenient`, a cell that is not a number counts as missing.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    known: tuple[int, ...] = ()
    indicator: bool = False
    lenient: bool = False
    tail: float = 0.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.fill, self.mean, self.std))) or self.std <= 0:
            raise SpecError(f"column {self.name!r}: fill, mean and std must be finite, std above 0")
        if not math.isfinite(self.tail) or self.tail < 0:
            raise SpecError(f"column {self.name!r}: tail must be finite and not below 0")
        if any(not 0 <= index < len(self.categories or ()) for index in self.known):
            raise SpecError(f"column {self.name!r}: known must list indices of its categories")

    @property
    def column(self) -> Column:
        """The column before anything was fitted."""
        return Column(self.name, self.categories, lenient=self.lenient)


# What an input of the network is made of: a number, a category, or whether a cell is missing.
NUMBER, CATEGORY, INDICATOR = range(3)


@dataclass(frozen=True)
class TableScaling(Scaling):
    """Map rows of a table to the input of a network; every column has its own mean and std.

    While a run is trained, its rows are as the dataset stores them: `stored` are the columns of
    the dataset, of which the sources may have made numbers, or nothing. A model in use reads only
    the columns that it needs, and `stored` is empty.
    """

    kind = "table"

    mean: Tensor = field(init=False, repr=False, compare=False, default=torch.zeros(1))
    std: Tensor = field(init=False, repr=False, compare=False, default=torch.ones(1))
    columns: tuple[FittedColumn, ...]
    stored: tuple[Column, ...] = field(default=(), compare=False)

    @classmethod
    def fit(
        cls,
        x: Rows,
        columns: Sequence[Column] = (),
        *,
        by_sources: bool = False,
        robust: bool = False,
    ) -> "TableScaling":
        """Fit the preprocessing of these rows, each column on its own.

        With `by_sources`, these rows decide whether a column holds numbers or categories.
        Otherwise a column with any text in the table is a category. With `robust` as well, numbers
        are scaled by their median and quartiles.
        """
        values = torch.cat(list(x.chunks(65536))).double().cpu().numpy()
        cells = [values[:, i : i + 1] for i in range(len(columns))]
        if not by_sources:
            return cls(tuple(map(_fit, cells, columns)))
        used = [(c, column) for c, column in zip(cells, columns, strict=True) if _is_used(column)]
        fitted = (_fit_by_sources(*each, robust=robust) for each in used)
        return cls(tuple(fitted), tuple(columns))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TableScaling":
        """Restore a preprocessing from `to_dict`."""
        return cls(tuple(_from_dict(column) for column in values["table"]))

    def to_dict(self) -> dict[str, Any]:
        """The preprocessing as plain numbers and names, to store beside the weights."""
        return {**super().to_dict(), "table": [asdict(column) for column in self.columns]}

    def restored(self, values: Mapping[str, Any]) -> "TableScaling":
        """Restore a preprocessing from `to_dict`, for rows that are stored as those of this one."""
        return replace(self.from_dict(values), stored=self.stored)

    def network_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The number of inputs: of numbers, of categories of the sources, and of indicators."""
        del stored
        return (len(self._plan[0]),)

    def misfits(self, domains: Mapping[str, Domain]) -> list[str]:
        """One line for every column and domain with cells that the preprocessing cannot read."""
        lines = []
        for at, column in self._decoded:
            texts, fitted = self.stored[at], self.columns[column]
            for name, domain in domains.items():
                codes = domain.x[:, at]
                known = torch.tensor(texts.values).isfinite()
                if fitted.categories is not None:
                    known = torch.zeros(len(texts.categories or ()), dtype=torch.bool)
                    known[list(fitted.known)] = True
                odd = [int(c) for c in codes[codes >= 0].tolist() if not known[int(c)]]
                if odd and texts.categories:
                    unread = "not numbers and count as missing"
                    if fitted.categories is not None:
                        unread = "of no category of the sources"
                    lines.append(
                        f"column {texts.name!r}: in {name!r}, {len(odd)} of {len(codes)} cells are "
                        f"{unread}, such as {texts.categories[odd[0]]!r}"
                    )
        return lines

    @cached_property
    def _decoded(self) -> list[tuple[int, int]]:
        """The columns with texts: their places among the stored and the fitted columns."""
        places = {column.name: i for i, column in enumerate(self.columns)}
        return [
            (at, places[column.name])
            for at, column in enumerate(self.stored)
            if column.categories is not None and column.name in places
        ]

    @cached_property
    def _plan(self) -> tuple[Tensor, ...]:
        """Per input: its column, what it is made of, its category, mean, std and tail."""
        inputs: list[tuple[int, int, float, float, float, float]] = []
        for i, column in enumerate(self.columns):
            if column.categories is None:
                tail = column.tail or math.inf
                inputs.append((i, NUMBER, 0.0, column.mean, column.std, tail))
            inputs += [(i, CATEGORY, float(c), 0.0, 1.0, math.inf) for c in column.known]
            inputs += [(i, INDICATOR, 0.0, 0.0, 1.0, math.inf)] * column.indicator
        if not inputs:
            raise SpecError("the sources have no value in any column of the table")
        return tuple(torch.tensor(values) for values in zip(*inputs, strict=True))

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
        index, kind, category, mean, std, tail, fill = self._on_devices[x.device]
        x = self._decode(x)
        cells = torch.where(x.isnan(), fill, x).float().index_select(1, index)
        scaled = torch.where(kind == CATEGORY, (cells == category).float(), (cells - mean) / std)
        if any(column.tail for column in self.columns):
            scaled = _shorten_tails(scaled, tail)
        if not any(column.indicator for column in self.columns):
            return scaled
        return torch.where(kind == INDICATOR, x.isnan().float().index_select(1, index), scaled)

    def _decode(self, x: Tensor) -> Tensor:
        """The columns that are used, with numbers in place of the texts that stand for them."""
        if not self.stored:
            return x
        places = {column.name: at for at, column in enumerate(self.stored)}
        used = x[:, [places[column.name] for column in self.columns]]
        for at, column in self._decoded:
            if self.columns[column].categories is None:
                values = torch.tensor((*self.stored[at].values, math.nan), device=x.device)
                codes = used[:, column].nan_to_num(len(values) - 1).long()
                used[:, column] = values[codes].to(used.dtype)
        return used


def _shorten_tails(x: Tensor, tail: Tensor) -> Tensor:
    """Numbers as they are up to `tail`; beyond, their distance d from it becomes log(1 + d)."""
    inner = x.clamp(-tail, tail)
    beyond = x - inner
    return inner + beyond.sign() * beyond.abs().log1p()


# More categories than this are names of rows or free text.
MAX_CATEGORIES = 256
# The index that stands for a missing cell which is in no category.
NO_CATEGORY = -1.0
# Distance between the quartiles of a normal distribution, in standard deviations.
NORMAL_QUARTILES = 1.349
# Scaled numbers beyond this one are rare in the bulk of a column.
USUAL_TAIL = 3.0
# A column holds numbers if at least this share of its cells in the sources does.
MIN_NUMBER_SHARE = 0.9
# Names of columns that number or name the rows.
ROW_NAMES = re.compile(r"(?:.*[_\s.-])?(?:id|uuid|guid)|.*[a-z]I[Dd]|row(?:[_\s]?(?:no|number))?")


def names_rows(name: str) -> bool:
    """Whether a column of this name numbers or names the rows."""
    name = name if re.search("[a-z]I[Dd]$", name) else name.lower()
    return bool(ROW_NAMES.fullmatch(name))


def _is_used(column: Column) -> bool:
    """Whether a column is a feature: not the number or name of a row, unless it is declared."""
    return bool(column.declared) or not names_rows(column.name)


def _fit_by_sources(values: NDArray[np.float64], column: Column, *, robust: bool) -> FittedColumn:
    """Fit a column whose type the cells of the sources decide, unless it is declared."""
    missing = bool(np.isnan(values).any())
    if column.categories is not None:
        present = sorted({int(code) for code in values[~np.isnan(values)]})
        numbers = np.array([*column.values, math.nan])
        cells = values[~np.isnan(values)].astype(int)
        is_number = bool(present) and np.isfinite(numbers[cells]).mean() >= MIN_NUMBER_SHARE
        if column.declared == "number" or (is_number and column.declared != "category"):
            codes = np.nan_to_num(values, nan=len(numbers) - 1).astype(int)
            values = numbers[codes]
            missing = bool(np.isnan(values).any())
            column = Column(column.name)
        elif len(present) > MAX_CATEGORIES:
            raise SpecError(
                f"column {column.name!r} has {len(present)} different texts in the sources, too "
                f"many for categories; leave it out with --drop {column.name}"
            )
    fitted = _fit(values, column)
    if robust:
        fitted = _robust(fitted, values)
    return replace(fitted, indicator=missing, lenient=fitted.categories is None)


def _robust(fitted: FittedColumn, values: NDArray[np.float64]) -> FittedColumn:
    """The column scaled by median and quartiles; a missing category is in no category.

    Where the sources have no missing cells, the network has no input that would tell.
    """
    if fitted.categories is not None:
        return replace(fitted, fill=NO_CATEGORY) if np.isnan(values).any() else fitted
    present = values[~np.isnan(values)]
    if not len(present):
        return fitted
    low, middle, high = np.quantile(present, (0.25, 0.5, 0.75))
    std = float(high - low) / NORMAL_QUARTILES or float(present.std()) or 1.0
    return replace(fitted, mean=float(middle), std=std, tail=USUAL_TAIL)


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
