"""Hyperparameters: default, search range and type, declared in one place.

A hyperparameter is a field of a method or a keyword of a merge::

    name: Annotated[type, Range] = default

Draw 0 consists of the defaults. In every other draw each hyperparameter has its own random
generator, so adding a hyperparameter does not change the values of the others.

The range is what draws choose from. Other values are valid too, except that a number must not be
below 0 if the range has no number below 0. A further limit stands beside the range and is
pydantic's: ``Annotated[float, Choice((0.9, 0.99)), Field(le=1)]``.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from afield.errors import SpecError
from afield.registry import hint
from afield.seeds import derive_seed

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Uniform distribution between `low` and `high`."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """Draw a value between the ends."""
        del default
        return float(generator.uniform(self.low, self.high))

    def ends(self, default: Any) -> tuple[Any, Any]:
        """Smallest and largest value."""
        del default
        return self.low, self.high


@dataclasses.dataclass(frozen=True)
class LogUniform(Uniform):
    """Log-uniform distribution: every order of magnitude is equally likely."""

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """Draw a value between the ends."""
        del default
        return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))


@dataclasses.dataclass(frozen=True)
class Around:
    """Log-uniform between two multiples of the default, which may depend on the dataset."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """Draw a multiple of the default; a default of 0, which means no number, stays."""
        if default == 0:
            return default
        return LogUniform(*self.ends(default)).draw(generator, default)

    def ends(self, default: Any) -> tuple[Any, Any]:
        """Smallest and largest value."""
        return self.low * default, self.high * default


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several values, all equally likely."""

    options: tuple[Any, ...]

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """Draw one of the options."""
        del default
        return self.options[int(generator.integers(len(self.options)))]

    def ends(self, default: Any) -> tuple[Any, Any]:
        """First and last option."""
        del default
        return self.options[0], self.options[-1]


@dataclasses.dataclass(frozen=True)
class Variant(Choice):
    """A variant of a method, for ablations: draws keep the default."""

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """Return the default."""
        del generator
        return default


@dataclasses.dataclass(frozen=True)
class Added:
    """Marks a hyperparameter that was added to a method or merge after its release.

    With the `neutral` value, results are as before the addition. Such a value is left out of the
    parameters of a run, so the run keeps its key. The neutral value never changes, even if the
    default does.
    """

    neutral: Any


Range = Uniform | LogUniform | Around | Choice | Variant
# A range given by hand, such as 0.01..1.
GIVEN_RANGE = re.compile(r"\s*(?P<low>[^.\s][^\s]*?|\.\d\S*?)\s*\.\.\s*(?P<high>\S+)\s*")


def parse_range(value: Any) -> Uniform | None:
    """The range that a text stands for; None if the value is not a range.

    If both ends are above 0, every order of magnitude is equally likely.

    >>> parse_range("0.01..1"), parse_range("-1..1"), parse_range(0.5)
    (LogUniform(low=0.01, high=1.0), Uniform(low=-1.0, high=1.0), None)
    """
    match = GIVEN_RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        return None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SpecError(f"{value}: a range needs two numbers, the smaller one first: 0.01..1")
    return LogUniform(low, high) if low > 0 else Uniform(low, high)


def split_ranges(
    kind: Callable[..., Any], values: Mapping[str, Any], owner: str | None = None
) -> tuple[dict[str, Any], dict[str, Uniform]]:
    """Checked values, and the ranges among them, whose ends must be valid values."""
    given = {name: parse_range(value) for name, value in values.items()}
    own = {name: range_ for name, range_ in given.items() if range_ is not None}
    for end in ("low", "high"):
        validate_values(kind, {n: _rounded_end(kind, n, r, end) for n, r in own.items()}, owner)
    fixed = {name: value for name, value in values.items() if name not in own}
    return validate_values(kind, fixed, owner), own


def _rounded_end(kind: Callable[..., Any], name: str, range_: Uniform, end: str) -> Any:
    """An end of a range as the hyperparameter would have it: a whole number if it counts."""
    value = getattr(range_, end)
    known = name in _declared(kind)[1]
    return _round_integer(kind, name, value, (range_.low, range_.high)) if known else value


def ranges(kind: Callable[..., Any]) -> dict[str, Range]:
    """Ranges of the fields of a dataclass or the keywords of a function.

    >>> from afield.training.methods.vrex import VREx
    >>> ranges(VREx)["penalty"]
    LogUniform(low=0.1, high=100000.0)
    """
    hints = _declared(kind)[1]
    marks = {name: [a for a in get_args(hints[name])[1:] if isinstance(a, Range)] for name in hints}
    return {name: marks[name][0] for name in defaults(kind) if marks.get(name)}


def defaults(kind: Callable[..., Any]) -> dict[str, Any]:
    """Default values of the hyperparameters of a dataclass or function."""
    return dict(_declared(kind)[0])


# Planning ten thousand runs asks for the same few signatures again and again.
@lru_cache(maxsize=1024)
def _declared(kind: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters = inspect.signature(kind).parameters.values()
    values = {p.name: p.default for p in parameters if p.default is not p.empty}
    return values, get_type_hints(kind, include_extras=True)


@lru_cache(maxsize=1024)
def _adapter(kind: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_declared(kind)[1][name])


def draw_values(
    kind: Callable[..., Any],
    *,
    draw: int,
    trial: int,
    start: Mapping[str, Any] | None = None,
    own: Mapping[str, Uniform] | None = None,
) -> dict[str, Any]:
    """Values of all hyperparameters in one draw.

    Parameters
    ----------
    kind
        A dataclass, or a function with keywords, whose annotations carry the ranges.
    draw
        Number of the draw; draw 0 consists of the defaults.
    trial
        Number of the trial: as in DomainBed, every trial has its own draws.
    start
        Values to use instead of the defaults.
    own
        Ranges given by hand, which replace the declared ones.
    """
    values = {**defaults(kind), **(start or {})}
    if draw == 0:
        return values
    for name, range_ in {**ranges(kind), **(own or {})}.items():
        generator = np.random.default_rng(derive_seed(seed_name(kind), name, draw, trial))
        value = range_.draw(generator, values[name])
        values[name] = _round_integer(kind, name, value, range_.ends(values[name]))
    return values


def without_neutral(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the later additions that have their neutral value."""
    neutral = _neutral(kind)
    return {
        name: value
        for name, value in values.items()
        if name not in neutral or value != neutral[name]
    }


def with_neutral(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Add the neutral values of hyperparameters that are newer than these values."""
    return {**_neutral(kind), **values}


def _neutral(kind: Callable[..., Any]) -> dict[str, Any]:
    hints = _declared(kind)[1]
    return {
        name: mark.neutral
        for name in defaults(kind)
        for mark in get_args(hints.get(name))[1:]
        if isinstance(mark, Added)
    }


def seed_name(kind: Callable[..., Any]) -> str:
    """Name that seeds the draws of a class or function: its `seed_name`, else its own name.

    A renamed class keeps its draws if it declares its former name as `seed_name`.
    """
    return str(getattr(kind, "seed_name", kind.__name__))


def extremes(kind: Callable[..., Any], name: str) -> tuple[Any, Any]:
    """Smallest and largest value of a hyperparameter."""
    ends = ranges(kind)[name].ends(defaults(kind)[name])
    return _round_integer(kind, name, ends[0], ends), _round_integer(kind, name, ends[1], ends)


def build(kind: Callable[..., T], values: Mapping[str, Any], owner: str | None = None) -> T:
    """Construct from checked values; unknown names and wrong types are errors."""
    return kind(**validate_values(kind, values, owner))


def validate_values(
    kind: Callable[..., Any], values: Mapping[str, Any], owner: str | None = None
) -> dict[str, Any]:
    """Convert values to the declared types; unknown names and wrong types are errors.

    Errors call the settings those of `owner`: by default the name of the class or function; empty
    for settings that are given without a prefix.
    """
    names = list(defaults(kind))
    owner = kind.__name__ if owner is None else owner
    for key in values:
        if key not in names:
            problem = f"{owner} has no setting {key!r}" if owner else f"no setting {key!r}"
            raise SpecError(f"{problem}; {hint(key, names)}")
    prefix = f"{owner}." if owner else ""
    converted = {key: _convert(value, kind, key, prefix + key) for key, value in values.items()}
    for key, value in converted.items():
        if _is_negative(value) and key in (known := ranges(kind)) and _starts_at_0(known[key]):
            raise SpecError(f"{prefix}{key}={value:g}: must not be below 0")
    return converted


def _starts_at_0(range_: Range) -> bool:
    """Whether a range has numbers, and none below 0."""
    ends = range_.options if isinstance(range_, Choice) else (range_.low, range_.high)
    return not any(map(_is_negative, ends))


def _is_negative(value: Any) -> bool:
    return isinstance(value, int | float) and value < 0


def _convert(value: Any, kind: Callable[..., Any], name: str, where: str) -> Any:
    adapter, type_ = _adapter(kind, name), _declared(kind)[1][name]
    if isinstance(value, str) and value.lower() != "none" and _allows_tuple(type_):
        value = [item.strip() for item in value.split(",") if item.strip()]
    try:
        result = adapter.validate_python(value)
    except ValidationError as error:
        if value in ("none", "None"):
            return _convert(None, kind, name, where)
        reason = error.errors()[0]["msg"].removeprefix("Input ").partition(", unable to ")[0]
        raise SpecError(f"{where}={value!r}: {reason[0].lower()}{reason[1:]}") from None
    numbers = result if isinstance(result, (list, tuple)) else (result,)
    if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
        raise SpecError(f"{where}={value!r}: not a finite number")
    return result


def _allows_tuple(type_: Any) -> bool:
    """Whether a type is a tuple or a union with one."""
    return get_origin(type_) is tuple or any(_allows_tuple(option) for option in get_args(type_))


def _round_integer(kind: Callable[..., Any], name: str, value: Any, ends: tuple[Any, Any]) -> Any:
    """Round a number drawn for an integer hyperparameter; the result stays in the range."""
    hint_ = _declared(kind)[1][name]
    type_ = getattr(hint_, "__origin__", hint_) if hasattr(hint_, "__metadata__") else hint_
    is_integer = int in (type_, *get_args(type_)) and float not in get_args(type_)
    if not is_integer or not isinstance(value, float):
        return value
    return max(math.ceil(ends[0]), min(math.floor(ends[1]), round(value)))
