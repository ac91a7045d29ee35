"""Optimisers by name: any of torch.optim that takes a learning rate and a weight decay.

adam                                   the usual one
sgd:momentum=0.9,nesterov=true         another, with options of its own
adam:betas=[0.5,0.9]
rmsproptf:eps=1.0,momentum=0.9         TensorFlow's RMSProp, with eps inside the root

And schedules of the learning rate: nothing is constant; ``cosine`` falls to 0 at the end, along
half a period; ``cosine:warmup=500`` rises for so many steps (below 1, for a share of them) first.
"""

import inspect
import json
import math
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch.optim import Optimizer

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint

__all__ = ["canonical_optimizer", "canonical_schedule", "make_schedule", "optimizer_factory"]

DEFAULT_OPTIMIZER = "adam"
# One call for all parameters at once, instead of several.
FUSED = ("adam", "adamw", "sgd")
# The one with which CrossGrad was trained; it is not in torch, but in timm.
RMSPROP_TF = "rmsproptf"


def optimizer_factory(text: str, *, lr: float, weight_decay: float) -> Callable[..., Optimizer]:
    """What makes an optimiser of parameters, with these settings unless others are given.

    >>> made = optimizer_factory("sgd:momentum=0.9", lr=0.1, weight_decay=0.0)
    >>> made([torch.zeros(1)], lr=0.2).defaults["momentum"]
    0.9
    """
    name, options = _parsed(text)
    fused = {"fused": True} if name in FUSED else {}
    return partial(_known()[name], **{"lr": lr, "weight_decay": weight_decay, **fused, **options})


@lru_cache
def canonical_optimizer(text: str) -> str:
    """The one way to write an optimiser, after a look whether it can be made; adam is nothing.

    >>> canonical_optimizer("SGD: nesterov=true, momentum=0.90")
    'sgd:momentum=0.9,nesterov=true'
    """
    name, options = _parsed(text)
    try:
        optimizer_factory(text, lr=1e-3, weight_decay=0.0)([torch.zeros(1, requires_grad=True)])
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"optimizer={text}: {error}") from None
    told = [f"{key}={json.dumps(value)}" for key, value in sorted(options.items())]
    if name == DEFAULT_OPTIMIZER and not told:
        return ""
    return name + (":" + ",".join(told).replace(" ", "") if told else "")


def make_schedule(text: str, steps: int) -> Callable[[int], float] | None:
    """The share of the learning rate at every step; None is all of it, always.

    >>> share = make_schedule("cosine:warmup=2", steps=6)
    >>> [round(share(step), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if not text:
        return None
    first = float(text.partition("=")[2] or 0)
    rising = round(first * steps) if first < 1 else int(first)

    def share(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    return share


@lru_cache
def canonical_schedule(text: str) -> str:
    """The one way to write a schedule; constant is nothing.

    >>> canonical_schedule("Cosine: warmup=500.0")
    'cosine:warmup=500'
    """
    words = text.replace(" ", "").lower()
    if words in ("", "constant", "none", "cosine"):
        return "cosine" if words == "cosine" else ""
    found = re.fullmatch(r"cosine:warmup=(\d*\.?\d+|\d+\.)(e-?\d+)?", words)
    if found is None:
        raise SpecError(f"lr_schedule={text}: write constant, cosine, or cosine:warmup=500")
    first = float(words.partition("=")[2])
    if first >= 1 and not first.is_integer():
        raise SpecError(f"lr_schedule={text}: warmup is a number of steps, or a share below 1")
    return f"cosine:warmup={int(first) if first >= 1 else first}" if first else "cosine"


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the options."""
    name, _, rest = (text or DEFAULT_OPTIMIZER).partition(":")
    name, known = name.strip().lower(), _known()
    if name not in known:
        raise UnknownNameError(f"no optimizer {name!r}; {hint(name, list(known))}")
    # At commas, but not at those of a list.
    pairs = re.split(r",(?![^\[]*\])", rest)
    return name, dict(_option(text, pair) for pair in pairs if pair.strip())


def _option(text: str, pair: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or name in ("lr", "weight_decay", "params"):
        raise SpecError(f"optimizer={text}: write name:option=value; lr has its own --set")
    try:
        read = json.loads(value, parse_constant=_refused)
    except ValueError:
        told = f"{value!r} is neither a number, a list of them, nor true or false"
        raise SpecError(f"optimizer={text}: {told}") from None
    return name, tuple(read) if isinstance(read, list) else read


def _refused(value: str) -> None:
    raise ValueError(value)


@lru_cache
def _known() -> dict[str, Any]:
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if _fits(kind)}
    return dict(sorted({**kinds, RMSPROP_TF: _of_tensorflow}.items()))


def _of_tensorflow(*parameters: Any, **options: Any) -> Optimizer:
    from timm.optim.rmsprop_tf import RMSpropTF

    return RMSpropTF(*parameters, **options)


def _fits(kind: Any) -> bool:
    if not inspect.isclass(kind) or not issubclass(kind, Optimizer):
        return False
    return {"lr", "weight_decay"} <= set(inspect.signature(kind).parameters)
