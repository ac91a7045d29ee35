"""Optimizers and schedules of the learning rate by name, as in ``sgd:momentum=0.9``.

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

adam                                   the default
sgd:momentum=0.9,nesterov=true         another class, with options
adam:betas=[0.5,0.9]
rmsproptf:eps=1.0,momentum=0.9         TensorFlow's RMSProp, with eps inside the root
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch.optim import Optimizer

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint

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
    name, options = _parse_schedule(text)
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
    name, options = _parse_schedule(text)
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
    return _spell(*_parse_schedule(text))


def _spell(name: str, options: Mapping[str, Any]) -> str:
    given = {key: value for key, value in sorted(options.items()) if key != "warmup" or value}
    if name == "constant" and not given:
        return ""
    spelled = ",".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}".replace(" ", "")
        for key, value in given.items()
    )
    return name + (f":{spelled}" if spelled else "")


def _parse_schedule(text: str) -> tuple[str, dict[str, Any]]:
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


DEFAULT_OPTIMIZER = "adam"
# Optimizers whose fused implementation updates all parameters in one call.
FUSED = ("adam", "adamw", "sgd")
# The optimizer with which CrossGrad was trained; timm has it, torch does not.
RMSPROP_TF = "rmsproptf"


def optimizer_factory(text: str, *, lr: float, weight_decay: float) -> Callable[..., Optimizer]:
    """Return a function that builds an optimizer for parameters; its keywords override settings.

    >>> make_optimizer = optimizer_factory("sgd:momentum=0.9", lr=0.1, weight_decay=0.0)
    >>> make_optimizer([torch.zeros(1)], lr=0.2).defaults["momentum"]
    0.9
    """
    name, options = _parse(text)
    fused = {"fused": True} if name in FUSED else {}
    return partial(
        _optimizers()[name], **{"lr": lr, "weight_decay": weight_decay, **fused, **options}
    )


@lru_cache
def canonical_optimizer(text: str) -> str:
    """Canonical spelling of an optimizer, validated by building it; Adam without options is ''.

    >>> canonical_optimizer("SGD: nesterov=true, momentum=0.90")
    'sgd:momentum=0.9,nesterov=true'
    """
    name, options = _parse(text)
    try:
        optimizer_factory(text, lr=1e-3, weight_decay=0.0)([torch.zeros(1, requires_grad=True)])
    except TypeError as error:
        reason = str(error).partition("() ")[2] or error
        raise SpecError(f"optimizer={text}: {name} {reason}; see torch.optim") from None
    except (ValueError, RuntimeError) as error:
        raise SpecError(f"optimizer={text}: {error}") from None
    spelled = [f"{key}={json.dumps(value)}" for key, value in sorted(options.items())]
    if name == DEFAULT_OPTIMIZER and not spelled:
        return ""
    return name + (":" + ",".join(spelled).replace(" ", "") if spelled else "")


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split an optimizer into its name and its options."""
    name, _, rest = (text or DEFAULT_OPTIMIZER).partition(":")
    name, choices = name.strip().lower(), _optimizers()
    if name not in choices:
        raise UnknownNameError(f"no optimizer {name!r}; {hint(name, list(choices))}")
    # Split at commas, except for commas within a list.
    pairs = re.split(r",(?![^\[]*\])", rest)
    return name, dict(_option(text, pair) for pair in pairs if pair.strip())


def _option(text: str, pair: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or name in ("lr", "weight_decay", "params"):
        raise SpecError(
            f"optimizer={text}: write name:option=value; lr and weight_decay are settings of their "
            "own, e.g. --set lr=0.001"
        )
    try:
        parsed = json.loads(value, parse_constant=_reject_constant)
    except ValueError:
        raise SpecError(
            f"optimizer={text}: {value!r} is neither a number, a list of numbers, true nor false"
        ) from None
    return name, tuple(parsed) if isinstance(parsed, list) else parsed


def _reject_constant(value: str) -> None:
    """Refuse NaN and Infinity, which Python's JSON accepts."""
    raise ValueError(value)


@lru_cache
def _optimizers() -> dict[str, Any]:
    """Supported optimizers by name."""
    kinds = {
        name.lower(): _uncompiled(kind)
        for name, kind in vars(torch.optim).items()
        if _is_supported(kind)
    }
    return dict(sorted({**kinds, RMSPROP_TF: _rmsprop_tf}.items()))


def _uncompiled(kind: Any) -> Any:
    """The same optimizer, without the wrappers that exempt its methods from torch's compiler.

    They import the compiler, which takes a second and 0.2 GB. The methods themselves are torch's.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    plain_step = inspect.unwrap(kind.step)

    def step(self: Optimizer) -> None:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            plain_step(self)

    return type(kind.__name__, (kind,), {**methods, "step": step})


def _rmsprop_tf(*parameters: Any, **options: Any) -> Optimizer:
    from timm.optim.rmsprop_tf import RMSpropTF

    return RMSpropTF(*parameters, **options)


def _is_supported(kind: Any) -> bool:
    if not inspect.isclass(kind) or not issubclass(kind, Optimizer):
        return False
    return {"lr", "weight_decay"} <= set(inspect.signature(kind).parameters)
