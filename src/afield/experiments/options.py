"""Options of a benchmark: help texts, limits, and parsing of values from Python, TOML or shell."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from afield.errors import SpecError, UnknownNameError
from afield.experiments.option_texts import START

__all__ = [
    "Option",
    "build_validated",
    "check_classes_choice",
    "check_start",
    "flatten_settings",
    "parse_options",
    "refuse_misspelled",
]

T = TypeVar("T")
# Tables within tables in which a setting may stand: settings.average.swad.tolerance has three.
MAX_DEPTH = 3


@dataclass(frozen=True)
class Option:
    """The help text of an option, its placeholder in the help, and its limits."""

    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside the limits."""
        if not isinstance(value, int | float):
            return
        if self.min is not None and value < self.min:
            raise SpecError(f"{name}={value:g}: must be {self.min:g} or more")
        if self.max is not None and value > self.max:
            raise SpecError(f"{name}={value:g}: must be {self.max:g} or less")


def check_classes_choice(choice: str | None) -> None:
    """Refuse a value of the option ``classes`` that is neither ``sources`` nor ``all``."""
    if choice not in (None, "sources", "all"):
        raise SpecError(f"classes={choice}: give 'sources' or 'all'")


def check_start(name: str) -> None:
    """Refuse a start of training other than the one there is."""
    if name not in ("", START):
        raise SpecError(f"--start {name}: training can start from {START} only")


def parse_options(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the fields have them; None stands for an option that is not given."""
    return {
        name: _parse(name, value, defaults[name])
        for name, value in values.items()
        if value is not None
    }


def _parse(name: str, value: Any, default: Any) -> Any:
    """An option's value as its field has it: a tuple where several values are possible."""
    if isinstance(value, bool) and not isinstance(default, bool) and name != "finetune":
        raise SpecError(f"{name}={str(value).lower()}: give a number or a name")
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(default, tuple):
        return value
    if isinstance(value, str) and name != "dataset":
        value = _split(name, value)
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if isinstance(each, Path) else each for each in values)


def _split(name: str, text: str) -> tuple[str, ...]:
    """Names separated by commas, at least one."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise SpecError(f"{name}={text!r}: give names separated by commas, or leave it out")
    return names


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their full names: in TOML, ``vrex.penalty`` is a table in a table.

    >>> flatten_settings({"lr": 0.1, "vrex": {"penalty": 10}})
    {'lr': 0.1, 'vrex.penalty': 10}
    """
    return dict(_flatten(settings))


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if prefix.count(".") > MAX_DEPTH:
        raise SpecError(f"{prefix}…: nested too deeply; a setting is NAME or METHOD.NAME")
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def refuse_misspelled(settings: Iterable[str], options: Iterable[str]) -> None:
    """Refuse a misspelled option, which would be taken for a setting."""
    from afield.data.domains import Training

    known = [each.name for each in fields(Training)]
    for name in settings:
        guess = get_close_matches(name, [*known, *options], n=1) if "." not in name else []
        if guess and guess[0] not in known:
            raise UnknownNameError(f"no option {name!r}; did you mean {guess[0]!r}?")


def build_validated(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass whose values have the types of its fields."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        # Our own errors, raised by __post_init__, name the option themselves.
        where = ".".join(str(step) for step in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise SpecError(": ".join(filter(None, [where, message]))) from None
