"""Optimizers by name: all classes of torch.optim that take a learning rate and a weight decay.

adam                                   the default
sgd:momentum=0.9,nesterov=true         another class, with options
adam:betas=[0.5,0.9]
rmsproptf:eps=1.0,momentum=0.9         TensorFlow's RMSProp, with eps inside the root
"""

import inspect
import json
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch.optim import Optimizer

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint

__all__ = ["canonical_optimizer", "optimizer_factory"]

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
