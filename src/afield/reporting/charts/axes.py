"""Layout of the page's charts: axes with round ticks, positions in percent, marks of methods.

A chart whose positions are percentages fits every screen, and its text keeps its size.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from afield.runs.row import FAMILIES, Family

# Values that differ by a larger factor have a logarithmic axis.
LOG_SCALE_RATIO = 30
# Shapes of the page, and tints of every color: marks repeat after as many rows of a family.
SHAPES, TINTS = 16, 4


@dataclass(frozen=True)
class Tick:
    """A position on an axis, in percent, and its label."""

    position: float
    text: str


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; for categories, from 0 to their number."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    log: bool = False

    def to_percent(self, value: float) -> float:
        """The position of a value in percent of the axis."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(100 * (at - low) / (high - low), 2)


@dataclass(frozen=True)
class Mark:
    """The mark of a method: its color is that of its family, shape and tint follow from its place.

    `number` identifies the method on the page, `place` is its place in its family. `bound` marks
    the upper bound, which no method is compared with.
    """

    name: str
    number: int
    bound: bool = False
    family: Family = "training"
    place: int = 0

    @property
    def color(self) -> int:
        """The number of the color."""
        return FAMILIES.index(self.family)

    @property
    def shape(self) -> int:
        """The number of the shape."""
        return self.place % SHAPES

    @property
    def tint(self) -> int:
        """The number of the tint of the color: 0 is the color itself."""
        return self.place // SHAPES % TINTS

    @property
    def classes(self) -> str:
        """The classes that color the mark."""
        return f"c{self.color}" + (f" t{self.tint}" if self.tint else "")


def numeric_axis(
    values: Iterable[float], *, ticks: int = 5, log: bool | None = None, sign: bool = False
) -> Axis:
    """An axis that covers all values, with round numbers as ticks.

    Parameters
    ----------
    values
        The values to show; those that are not finite are ignored.
    ticks
        The approximate number of ticks.
    log
        Whether the axis is logarithmic; by default if values differ by a large factor.
    sign
        Whether positive ticks have a plus sign.

    Examples
    --------
    >>> [tick.text for tick in numeric_axis([61.0, 93.5]).ticks]
    ['60', '70', '80', '90', '100']
    >>> [tick.text for tick in numeric_axis([1e-4, 0.3]).ticks]
    ['0.0001', '0.001', '0.01', '0.1', '1']
    """
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    logarithmic = low > 0 and high > LOG_SCALE_RATIO * low if log is None else log
    if logarithmic:
        return _log_axis(low, high)
    step = _round_step((high - low) or max(abs(high), 1.0) / 10, ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    bare = Axis(first * step, last * step)
    labels = [(n * step, _format_tick(n * step, step, sign=sign)) for n in range(first, last + 1)]
    return Axis(bare.low, bare.high, [Tick(bare.to_percent(v), text) for v, text in labels])


def category_axis(words: Sequence[str]) -> Axis:
    """An axis of categories in their order; the n-th is at n + 0.5."""
    bare = Axis(0.0, float(len(words)))
    return Axis(
        0.0, bare.high, [Tick(bare.to_percent(n + 0.5), word) for n, word in enumerate(words)]
    )


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    bare = Axis(10.0**first, 10.0**last, log=True)
    every = max(1, -(-(last - first) // 5))
    ticks = [
        Tick(bare.to_percent(10.0**power), f"{10.0**power:g}" if power < 4 else f"1e{power}")
        for power in range(first, last + 1, every)
    ]
    return Axis(bare.low, bare.high, ticks, log=True)


def _round_step(span: float, ticks: int) -> float:
    """1, 2, 2.5 or 5 times a power of ten that divides the span into about `ticks` steps."""
    rough = span / max(1, ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)


def _format_tick(value: float, step: float, *, sign: bool) -> str:
    digits = next(d for d in range(20) if math.isclose(round(step, d), step, rel_tol=1e-6))
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return ("0" if float(text) == 0 else text).replace("-", "−")
