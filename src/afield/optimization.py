"""Optimisers by name: any of torch.optim that takes a learning rate and a weight decay.

adam                            the usual one
sgd:momentum=0.9,nesterov=true  another, with options of its own
"""

import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from afield.catalog import hint
from afield.errors import SpecError, UnknownNameError

__all__ = ["USUAL", "optimizer_of"]

USUAL = "adam"
# One call for all parameters at once, instead of several.
FUSED = ("adam", "adamw", "sgd")


def optimizer_of(text: str, *, lr: float, weight_decay: float) -> Callable[..., Optimizer]:
    """What makes an optimiser of parameters, with these settings unless others are given.

    >>> made = optimizer_of("sgd:momentum=0.9", lr=0.1, weight_decay=0.0)
    >>> made([torch.zeros(1)], lr=0.2).defaults["momentum"]
    0.9
    """
    name, _, rest = (text or USUAL).partition(":")
    known = _known()
    if name.lower() not in known:
        raise UnknownNameError(f"no optimizer {name!r}; {hint(name.lower(), list(known))}")
    options = dict(_option(text, pair) for pair in rest.split(",") if pair.strip())
    if name.lower() in FUSED:
        options.setdefault("fused", True)
    made = partial(known[name.lower()], lr=lr, weight_decay=weight_decay, **options)
    try:
        made([torch.zeros(1, requires_grad=True)])
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"optimizer={text}: {error}") from None
    return made


def _known() -> dict[str, Any]:
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if _fits(kind)}
    return dict(sorted(kinds.items()))


def _fits(kind: Any) -> bool:
    if not inspect.isclass(kind) or not issubclass(kind, Optimizer):
        return False
    return {"lr", "weight_decay"} <= set(inspect.signature(kind).parameters)


def _option(text: str, pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or name.strip() in ("lr", "weight_decay", "params"):
        raise SpecError(f"optimizer={text}: write name:option=value; lr has its own --set")
    try:
        return name.strip(), json.loads(value)
    except json.JSONDecodeError:
        raise SpecError(
            f"optimizer={text}: {value!r} is neither a number nor true or false"
        ) from None
