"""Hyperparameters: a default for people, a range for sweeps and a type for checks, on one line.

A hyperparameter is ``name: Annotated[type, Range] = default``, as a field of a method or as a
keyword of a merge. Draw 0 is the defaults; in every other draw each name has its own generator, so
that adding a hyperparameter changes none of the others.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from afield.errors import SpecError
from afield.registry import hint
from afield.seeds import derive_seed

__all__ = [
    "Added",
    "Around",
    "Choice",
    "LogUniform",
    "Range",
    "Uniform",
    "Variant",
    "build",
    "defaults",
    "draw_values",
    "extremes",
    "ranges",
    "seed_name",
    "validate_values",
    "with_neutral",
    "without_neutral",
]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Between two ends, every value equally likely."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """A value between the ends."""
        del default
        return float(generator.uniform(self.low, self.high))

    def ends(self, default: Any) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        del default
        return self.low, self.high


@dataclasses.dataclass(frozen=True)
class LogUniform(Uniform):
    """Between two ends, every order of magnitude equally likely."""

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """A value between the ends."""
        del default
        return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))


@dataclasses.dataclass(frozen=True)
class Around:
    """Log-uniform between two multiples of the default: for what depends on the dataset."""

    low: float
    high: float

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """A multiple of the default."""
        return LogUniform(*self.ends(default)).draw(generator, default)

    def ends(self, default: Any) -> tuple[Any, Any]:
        """The smallest and the largest value."""
        return self.low * default, self.high * default


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a few values."""

    options: tuple[Any, ...]

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """One of the options."""
        del default
        return self.options[int(generator.integers(len(self.options)))]

    def ends(self, default: Any) -> tuple[Any, Any]:
        """The first and the last option."""
        del default
        return self.options[0], self.options[-1]


@dataclasses.dataclass(frozen=True)
class Variant(Choice):
    """One of several forms of a method, for ablations: sweeps keep the default."""

    def draw(self, generator: np.random.Generator, default: Any) -> Any:
        """The default."""
        del generator
        return default


@dataclasses.dataclass(frozen=True)
class Added:
    """Marks a hyperparameter that was added after its kind had been in use.

    While it has its `neutral` value, the kind computes what it did before, and the value stays out
    of the parameters of a run: the run keeps its key. The neutral value never changes, even when
    the default does.
    """

    neutral: Any


Range = Uniform | LogUniform | Around | Choice | Variant


def ranges(kind: Callable[..., Any]) -> dict[str, Range]:
    """The ranges of a dataclass's fields or of a function's keywords.

    >>> from afield.training.methods.vrex import VREx
    >>> ranges(VREx)["penalty"]
    LogUniform(low=0.1, high=100000.0)
    """
    hints = get_type_hints(kind, include_extras=True)
    found = {name: [a for a in get_args(hints[name])[1:] if isinstance(a, Range)] for name in hints}
    return {name: found[name][0] for name in defaults(kind) if found.get(name)}


def defaults(kind: Callable[..., Any]) -> dict[str, Any]:
    """The hyperparameters of a dataclass or function with their default values."""
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def draw_values(
    kind: Callable[..., Any], *, draw: int, trial: int, start: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The hyperparameters of one draw.

    Parameters
    ----------
    kind
        A dataclass or a function whose hyperparameters carry their ranges.
    draw
        Which draw; 0 is the defaults.
    trial
        Which trial: as in DomainBed, every trial has its own draws.
    start
        Values that take the place of the defaults.
    """
    values = {**defaults(kind), **(start or {})}
    if draw == 0:
        return values
    for name, range_ in ranges(kind).items():
        generator = np.random.default_rng(derive_seed(seed_name(kind), name, draw, trial))
        value = range_.draw(generator, values[name])
        values[name] = _typed(kind, name, value, range_.ends(values[name]))
    return values


def without_neutral(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without later additions that are at their neutral value."""
    neutral = _neutral(kind)
    return {
        name: value
        for name, value in values.items()
        if name not in neutral or value != neutral[name]
    }


def with_neutral(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run, with the neutral value of what was added to the kind since."""
    return {**_neutral(kind), **values}


def _neutral(kind: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: mark.neutral
        for name in defaults(kind)
        for mark in get_args(hints.get(name))[1:]
        if isinstance(mark, Added)
    }


def seed_name(kind: Callable[..., Any]) -> str:
    """Name that seeds the draws of a kind: its `seed_name`, or the name of the class or function.

    A class that is renamed keeps its draws by declaring its former name as `seed_name`.
    """
    return str(getattr(kind, "seed_name", kind.__name__))


def extremes(kind: Callable[..., Any], name: str) -> tuple[Any, Any]:
    """The least and the greatest value of a hyperparameter."""
    ends = ranges(kind)[name].ends(defaults(kind)[name])
    return _typed(kind, name, ends[0], ends), _typed(kind, name, ends[1], ends)


def build(kind: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Construct strictly: unknown names and wrong types are errors that say what is known."""
    return kind(**validate_values(kind, values))


def validate_values(kind: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the types that the dataclass or function declares."""
    hints, known = get_type_hints(kind, include_extras=True), list(defaults(kind))
    name = kind.__name__
    for key in values:
        if key not in known:
            raise SpecError(f"{name} has no setting {key!r}; {hint(key, known)}")
    return {key: _converted(value, hints[key], f"{name}.{key}") for key, value in values.items()}


def _converted(value: Any, type_: Any, where: str) -> Any:
    adapter = TypeAdapter(type_)
    if isinstance(value, str) and value.lower() != "none" and _listed(type_):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        result = adapter.validate_python(value)
    except ValidationError as error:
        if value in ("none", "None"):
            return _converted(None, type_, where)
        reason = error.errors()[0]["msg"]
        raise SpecError(f"{where}={value!r}: {reason[0].lower()}{reason[1:]}") from None
    if any(isinstance(v, float) and not math.isfinite(v) for v in _flat(result)):
        raise SpecError(f"{where}={value!r}: not a finite number")
    return result


def _listed(type_: Any) -> bool:
    """Whether a type is, or may be, a row of values."""
    return get_origin(type_) is tuple or any(_listed(part) for part in get_args(type_))


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _typed(kind: Callable[..., Any], name: str, value: Any, ends: tuple[Any, Any]) -> Any:
    """A number drawn for a whole hyperparameter is rounded, and stays between the ends."""
    type_ = get_type_hints(kind)[name]
    whole = int in (type_, *get_args(type_)) and float not in get_args(type_)
    if not whole or not isinstance(value, float):
        return value
    return max(math.ceil(ends[0]), min(math.floor(ends[1]), round(value)))
