"""Learning-rate schedules by name: the factor of the learning rate as a function of the step.

    constant                the default, also written as an empty string
    cosine                  ½ (1 + cos(π t / T)): falls to 0 along half a period
    exponential:rate=0.99   rate ^ ⌊t / every⌋; every=epoch by default
    inverse:gamma=1e-4      (1 + gamma ⌊t / every⌋) ^ −power; power=0.75, every=1 step by default
    step:at=[0.6,0.8]       multiplied by rate=0.1 at each of these steps or shares of all steps

Every schedule takes a warm-up, in which the learning rate rises in equal steps: ``warmup=500``
steps, or a share below 1, as in ``cosine:warmup=0.1``. The step t counts from the end of the
warm-up, and T is the number of steps after it; `at` counts from the beginning of training.
``every`` is a number of steps, ``epoch``, or a number of epochs, as in ``every=2epochs``. Epochs
are resolved to steps when a run is planned.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from afield.errors import SpecError
from afield.registry import hint

__all__ = ["canonical_schedule", "make_schedule", "schedule_in_steps"]

# The options of every schedule and their default values, beside the warm-up.
OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {},
    "cosine": {},
    "exponential": {"every": "epoch", "rate": 0.99},
    "inverse": {"every": 1, "gamma": 1e-4, "power": 0.75},
    "step": {"at": (0.8,), "rate": 0.1},
}
EPOCHS = re.compile(r"([1-9]\d*)?epochs?")


def make_schedule(text: str, steps: int) -> Callable[[int], float] | None:
    """Return the factor of the learning rate as a function of the step; None means constant.

    >>> factor = make_schedule("cosine:warmup=2", steps=6)
    >>> [round(factor(step), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    >>> factor = make_schedule("exponential:every=2,rate=0.5", steps=6)
    >>> [factor(step) for step in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    if not text:
        return None
    name, options = _parse(text)
    warmup = _in_steps(options["warmup"], steps)
    options["at"] = [_in_steps(value, steps) for value in options.get("at", ())]
    factor_after = {
        "constant": lambda step: 1.0,
        "cosine": lambda step: _cosine(step - warmup, steps - warmup),
        "exponential": lambda step: options["rate"] ** ((step - warmup) // options["every"]),
        "inverse": lambda step: _inverse((step - warmup) // options["every"], options),
        "step": lambda step: options["rate"] ** sum(step >= start for start in options["at"]),
    }[name]
    return lambda step: (step + 1) / warmup if step < warmup else factor_after(step)


def schedule_in_steps(text: str, epoch: int) -> str:
    """The schedule with every period in steps, for epochs of this many steps.

    >>> schedule_in_steps("exponential:every=2epochs,rate=0.94", epoch=50)
    'exponential:every=100,rate=0.94'
    """
    if "epoch" not in text:
        return text
    name, options = _parse(text)
    match = EPOCHS.fullmatch(str(options["every"]))
    assert match is not None
    return _spell(name, {**options, "every": int(match[1] or 1) * epoch})


@lru_cache
def canonical_schedule(text: str) -> str:
    """Canonical spelling of a schedule with all its options; a constant learning rate is ''.

    >>> canonical_schedule("Cosine: warmup=500.0")
    'cosine:warmup=500'
    >>> canonical_schedule("exponential")
    'exponential:every=epoch,rate=0.99'
    """
    return _spell(*_parse(text))


def _spell(name: str, options: Mapping[str, Any]) -> str:
    given = {key: value for key, value in sorted(options.items()) if key != "warmup" or value}
    if name == "constant" and not given:
        return ""
    spelled = ",".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}".replace(" ", "")
        for key, value in given.items()
    )
    return name + (f":{spelled}" if spelled else "")


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split a schedule into its name and all its options, checked."""
    compact = text.replace(" ", "").lower()
    name, colon, rest = (compact if compact not in ("", "none") else "constant").partition(":")
    if name not in OPTIONS:
        raise SpecError(f"lr_schedule={text}: no such schedule; {hint(name, list(OPTIONS))}")
    options = {"warmup": 0, **OPTIONS[name]}
    # Split at commas, except for commas within a list.
    for pair in re.split(r",(?![^\[]*\])", rest) if colon else []:
        key, _, value = pair.partition("=")
        if key not in options or not value:
            known = ", ".join(f"{each}=…" for each in options)
            raise SpecError(f"lr_schedule={text}: {pair!r} is no option of {name}; it has {known}")
        options[key] = _value(text, key, value)
    return name, options


def _value(text: str, key: str, value: str) -> Any:
    """The value of an option, checked."""
    if key == "every" and EPOCHS.fullmatch(value):
        return "epoch" if value in ("1epoch", "1epochs", "epochs") else value
    numbers = [_number(text, key, each) for each in value.strip("[]").split(",")]
    valid, meaning = {
        "warmup": (_is_duration, "a number of steps, or a share of the steps below 1"),
        "at": (lambda n: n > 0 and _is_duration(n), "steps, or shares of the steps below 1"),
        "every": (lambda n: n >= 1 and _is_duration(n), "a number of steps, or epoch"),
        "rate": (lambda n: 0 < n <= 1, "above 0 and at most 1"),
        "gamma": (lambda n: n >= 0, "0 or more"),
        "power": (lambda n: n >= 0, "0 or more"),
    }[key]
    if not all(map(valid, numbers)) or (key != "at" and value.startswith("[")):
        raise SpecError(f"lr_schedule={text}: {key} is {meaning}")
    if key == "at":
        return tuple(sorted(_whole(number) for number in numbers))
    return _whole(numbers[0]) if key in ("warmup", "every") else numbers[0]


def _number(text: str, key: str, value: str) -> float:
    if not re.fullmatch(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value):
        raise SpecError(f"lr_schedule={text}: {key}={value} is not a number of 0 or more")
    return float(value)


def _is_duration(number: float) -> bool:
    return number < 1 or number.is_integer()


def _whole(number: float) -> float:
    return int(number) if number >= 1 or number == 0 else number


def _in_steps(value: float, steps: int) -> int:
    """A number of steps; a value below 1 is a share of all steps."""
    return round(value * steps) if value < 1 else int(value)


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


def _inverse(period: int, options: Mapping[str, Any]) -> float:
    factor: float = (1 + options["gamma"] * period) ** -options["power"]
    return factor
