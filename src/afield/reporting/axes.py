"""Where things lie on a chart, and how they are marked: round ticks, places in per cent.

A chart that is laid out in per cent fits every screen, and its text stays as large as all other.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Axis", "Mark", "Tick", "category_axis", "numeric_axis"]

# From here on orders of magnitude matter more than differences.
LOG_SCALE_RATIO = 30
COLOURS, SHAPES = 5, 4


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in per cent, and what stands there."""

    place: float
    text: str


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`; of words, from 0 to their number."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    log: bool = False

    def to_percent(self, value: float) -> float:
        """Where a value lies, in per cent of the axis."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(100 * (at - low) / (high - low), 2)


@dataclass(frozen=True)
class Mark:
    """A method's name and number on a page; `bound` is one that no other is compared with.

    Colour and shape come from the number, and tell twenty apart.
    """

    name: str
    number: int
    bound: bool = False

    @property
    def colour(self) -> int:
        """Which of the page's colours."""
        return self.number % COLOURS

    @property
    def shape(self) -> int:
        """Which of the page's shapes."""
        return self.number % SHAPES


def numeric_axis(
    values: Iterable[float], *, ticks: int = 5, log: bool | None = None, sign: bool = False
) -> Axis:
    """An axis on which all values have room, with round numbers as ticks.

    Parameters
    ----------
    values
        What is to be shown; what is not finite has no place.
    ticks
        About how many.
    log
        Whether orders of magnitude are equally wide; by default where values differ by many.
    sign
        Whether ticks above zero have a plus.

    Examples
    --------
    >>> [tick.text for tick in numeric_axis([61.0, 93.5]).ticks]
    ['60', '70', '80', '90', '100']
    >>> [tick.text for tick in numeric_axis([1e-4, 0.3]).ticks]
    ['0.0001', '0.001', '0.01', '0.1', '1']
    """
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    logarithmic = low > 0 and high > LOG_SCALE_RATIO * low if log is None else log
    if logarithmic:
        return _log_axis(low, high)
    step = _round_step((high - low) or max(abs(high), 1.0) / 10, ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        first, last = first - 1, last + 1
    bare = Axis(first * step, last * step)
    places = [(n * step, _written(n * step, step, sign=sign)) for n in range(first, last + 1)]
    return Axis(bare.low, bare.high, [Tick(bare.to_percent(v), text) for v, text in places])


def category_axis(words: Sequence[str]) -> Axis:
    """An axis with a place for each word, in their order; the n-th lies at n + 0.5."""
    bare = Axis(0.0, float(len(words)))
    return Axis(
        0.0, bare.high, [Tick(bare.to_percent(n + 0.5), word) for n, word in enumerate(words)]
    )


def _log_axis(low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    bare = Axis(10.0**first, 10.0**last, log=True)
    every = max(1, -(-(last - first) // 5))
    powers = [10.0**power for power in range(first, last + 1, every)]
    ticks = [Tick(bare.to_percent(power), f"{power:g}") for power in powers]
    return Axis(bare.low, bare.high, ticks, log=True)


def _round_step(span: float, ticks: int) -> float:
    """1, 2, 2.5 or 5 times a power of ten, so that about so many steps make the span."""
    rough = span / max(1, ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)


def _written(value: float, step: float, *, sign: bool) -> str:
    digits = next(d for d in range(20) if math.isclose(round(step, d), step, rel_tol=1e-6))
    text = f"{value:{'+' if sign else ''}.{digits}f}"
    return ("0" if float(text) == 0 else text).replace("-", "−")
