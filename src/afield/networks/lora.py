"""LoRA: layers of a network whose weights change by the product of two thin factors.

    W' = W + s B A,   s = alpha / rank,   A random and B = 0 at the start;   W stays as it is

The layers keep their class, their place and the names of their tensors; each gets two parameters,
`lora_A` and `lora_B`, and its `weight` reads as W'. In training, a linear layer or a convolution
computes W x + s B (A x), which needs no gradient of the size of W. In evaluation it uses W' itself,
so that what is evaluated is, bit for bit, what is deployed.

Why not the library peft, which wraps layers in modules of its own: the names of all tensors change,
a wrapped layer is no `nn.Linear` any more (stages, masks, folding and the methods that look for
layers would not find it), and the deployed model would need peft or a conversion. Repetition is
exact with both. The format of adapters on disk is that of peft, and the initial values are drawn
from the same distributions.

Convolutions have the factors of peft: A is a convolution of the same kernel, B one of a single
pixel. Convolutions with groups have no such factors. `nn.MultiheadAttention` reads its weights
directly, so it uses W' in training as well. (There peft 0.21 adds the change of `out_proj` twice.)
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from afield.networks.freezing import has_unfrozen_batchnorm

# The names of the two factors among the parameters of a layer, the first one next to its input.
INNER, OUTER = "lora_A", "lora_B"
# The prefix of names in files of peft.
PEFT_PREFIX = "base_model.model."


def can_adapt(module: nn.Module) -> bool:
    """Whether a layer can have factors."""
    if isinstance(module, _ConvNd):
        return isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == 1
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight is not None
    return isinstance(module, nn.Linear)


def largest_rank(module: nn.Module) -> int:
    """The rank from which on the product of the factors can be any change of a layer's weights."""
    weight = _base_weight(module)
    return min(len(weight), weight[0].numel())


def add_factors(module: nn.Module, *, rank: int, alpha: float) -> None:
    """Give a layer factors, and freeze its other parameters; its outputs do not change."""
    weight = _base_weight(module)
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad = False
    inner = weight.new_empty(rank, *weight.shape[1:])
    nn.init.kaiming_uniform_(inner, a=math.sqrt(5))
    single = (1,) * (weight.ndim - 2)
    module.register_parameter(INNER, nn.Parameter(inner))
    outer = weight.new_zeros(len(weight), rank, *single)
    module.register_parameter(OUTER, nn.Parameter(outer))
    if weight.ndim == 4:
        module.to(memory_format=torch.channels_last)
    adapted: Any = module
    adapted.lora_scale = alpha / rank
    adapted.__class__ = _adapted_class(adapted.__class__)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers with factors, with their names."""
    for name, module in model.named_modules():
        if OUTER in module._parameters:
            yield name, module


@torch.no_grad()
def merge_factors(model: nn.Module) -> None:
    """Add the products of the factors to the weights, which are trained from now on."""
    for _, module in list(adapted_layers(model)):
        weight, changed = _base_weight(module), _merged_weight(module)
        weight.copy_(changed)
        weight.requires_grad = True
        adapted: Any = module
        del module._parameters[INNER], module._parameters[OUTER], adapted.lora_scale
        adapted.__class__ = adapted.plain_class


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a network as if `merge_factors` had been called."""
    state: dict[str, Tensor] = model.state_dict()
    for name, module in adapted_layers(model):
        prefix = f"{name}." if name else ""
        del state[prefix + INNER], state[prefix + OUTER]
        state[prefix + _weight_name(type(module))] = _merged_weight(module)
    return state


def adapter_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that training changes, under the names of peft; empty without factors.

    These are the factors, and in full the other trained parameters and the statistics of unfrozen
    BatchNorm layers.
    """
    layers = dict(adapted_layers(model))
    if not layers:
        return {}
    tensors: dict[str, Tensor] = {}
    for name, module in layers.items():
        inner, outer = (module.get_parameter(factor) for factor in (INNER, OUTER))
        own = _peft_name(name, layers)
        tensors |= {f"{own}.{INNER}.weight": inner, f"{own}.{OUTER}.weight": outer}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not name.endswith((INNER, OUTER)):
            tensors[name] = parameter
    if has_unfrozen_batchnorm(model):
        for prefix, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                tensors |= module.named_buffers(prefix=prefix)
    return {PEFT_PREFIX + name: value.detach() for name, value in tensors.items()}


def _peft_name(name: str, layers: Mapping[str, nn.Module]) -> str:
    """The name of a layer; peft replaces the last one of an attention within its own wrapper."""
    parent, _, own = name.rpartition(".")
    inside = isinstance(layers.get(parent), nn.MultiheadAttention)
    return f"{parent}.base_layer.{own}" if inside else name


def changing_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a network without the parameters that are not trained."""
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def load_changing_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Restore what `changing_state` has returned; a complete state does as well."""
    model.load_state_dict({**model.state_dict(), **state})


def _weight_name(kind: type[nn.Module]) -> str:
    return "in_proj_weight" if issubclass(kind, nn.MultiheadAttention) else "weight"


def _base_weight(module: nn.Module) -> nn.Parameter:
    """The parameter itself, where the attribute of an adapted layer is W'."""
    parameter = module._parameters[_weight_name(type(module))]
    if parameter is None:
        raise ValueError(f"{type(module).__name__} has no weights")
    return parameter


def _merged_weight(module: Any) -> Tensor:
    """W', always in the precision of W."""
    weight = _base_weight(module)
    inner, outer = module._parameters[INNER], module._parameters[OUTER]
    with torch.autocast(weight.device.type, enabled=False):
        change = low_rank_change(inner, outer, module.lora_scale).view(weight.shape)
    # The sum has the memory layout of its first term, on which the last digits of outputs depend.
    return weight.detach() + change


def low_rank_change(inner: Tensor, outer: Tensor, scale: float) -> Tensor:
    """The change s B A of weights as a matrix."""
    return (outer.flatten(1) * scale) @ inner.flatten(1)


@cache
def _adapted_class(kind: Any) -> Any:
    """The class of a layer with factors: the same one, but for the weight that it shows."""
    members: dict[str, Any] = {_weight_name(kind): property(_merged_weight), "plain_class": kind}
    if kind.forward is nn.Linear.forward:
        members["forward"] = _forward_linear
    elif kind.forward in (nn.Conv1d.forward, nn.Conv2d.forward):
        members["forward"] = _forward_convolution
    return type(f"Lora{kind.__name__}", (kind,), members)


def _forward_linear(self: Any, x: Tensor) -> Tensor:
    if not self.training:
        return F.linear(x, self.weight, self.bias)
    parameters = self._parameters
    change = F.linear(F.linear(x, parameters[INNER]), parameters[OUTER])
    return F.linear(x, parameters["weight"], self.bias) + self.lora_scale * change


def _forward_convolution(self: Any, x: Tensor) -> Tensor:
    if not self.training:
        return self._conv_forward(x, self.weight, self.bias)
    parameters = self._parameters
    point = F.conv1d if isinstance(self, nn.Conv1d) else F.conv2d
    change = point(self._conv_forward(x, parameters[INNER], None), parameters[OUTER])
    return self._conv_forward(x, parameters["weight"], self.bias) + self.lora_scale * change
