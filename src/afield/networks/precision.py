"""Networks that compute in bfloat16 or float16, while everything else stays in float32.

Whichever module of such a network is called from outside runs under autocast and returns float32.
So weights and their gradients, losses, penalties, optimizers and averages are in float32, and a
trained model needs nothing of this to predict.
"""

import threading
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from afield.compute import default_device, preserve_torch_state
from afield.errors import AfieldError, SpecError
from afield.networks.backbone import find_backbone, network

AUTO, FULL = "auto", "fp32"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# CPU flags of instructions that multiply matrices in bfloat16.
CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
# Networks of the family small that are faster in bfloat16; the others are too small to gain.
FASTER_SMALL = tuple(f"small:{model}" for model in ("mnist_cnn", "lenet", "resnet18", "resnet34"))
# Side of the images for which a network is built to look at its layers.
PROBE_SIDE = 224
# The module through which the running forward pass entered its network, and its autocast context.
_entered = threading.local()


def lower_precision(module: nn.Module, precision: str) -> None:
    """Let a network compute in this precision from now on; copies of it do so too."""
    device = next((p.device.type for p in module.parameters()), "cpu")
    for each in module.modules():
        each.register_forward_pre_hook(partial(_enter, device, DTYPES[precision]), prepend=True)
        each.register_forward_hook(_leave, always_call=True)


def _enter(device: str, dtype: torch.dtype, module: nn.Module, _inputs: Any) -> None:
    # Compiled code is entered from outside, where the module that was called has hooks too.
    if not torch.compiler.is_compiling() and getattr(_entered, "module", None) is None:
        # Casts of weights are not cached: one that was made without gradients would be reused.
        context = torch.autocast(device, dtype=dtype, cache_enabled=False)
        context.__enter__()
        _entered.module, _entered.context = module, context


def _leave(module: nn.Module, _inputs: Any, output: Any) -> Any:
    if torch.compiler.is_compiling() or getattr(_entered, "module", None) is not module:
        return None
    _entered.module = None
    _entered.context.__exit__(None, None, None)
    return tree_map(_float32, output)


def _float32(value: Any) -> Any:
    lower = isinstance(value, Tensor) and value.dtype in DTYPES.values()
    return value.float() if lower else value


def check_precision(precision: str, device: torch.device) -> None:
    """Raise `SpecError` if a device cannot compute in this precision."""
    if precision == "fp16" and device.type != "cuda":
        raise SpecError("precision=fp16: only for GPUs; use precision=bf16 on a CPU")
    if precision == "bf16" and device.type == "cuda" and not _gpu_has_bf16():
        raise SpecError("precision=bf16: this GPU cannot do that; use precision=fp16")


def resolve_precision(settings: Mapping[str, Any]) -> str:
    """The precision of a run, empty for float32; ``auto`` is resolved by a fixed rule.

    `settings` has the precision that is asked for, the backbone, and the size of the images.

    On a GPU it is bf16, or fp16 if the GPU has no bfloat16. On a CPU it is bf16 if the CPU has
    instructions for it and the network has no depthwise convolutions and is not too small to gain.
    """
    precision, side = settings["precision"], settings["size"] or PROBE_SIDE
    if precision != AUTO:
        return "" if precision == FULL else precision
    if default_device() == "cuda":
        return "bf16" if _gpu_has_bf16() else "fp16"
    return "bf16" if _cpu_has_bf16() and _gains(settings["backbone"], side) else ""


def _gpu_has_bf16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)


@lru_cache
def _cpu_has_bf16() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(CPU_FLAGS & set(line.split()) for line in lines if line.startswith("flags"))


@lru_cache
def _gains(name: str, side: int) -> bool:
    """Whether training a network on a CPU is faster in bfloat16."""
    if find_backbone(name).input_form() is None:
        return name in FASTER_SMALL
    try:
        with preserve_torch_state(cuda=False):
            net = network(name, (3, side, side), 2)
    except AfieldError:
        return False
    return not any(_is_depthwise(module) for module in net.modules())


def _is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, _ConvNd) and 1 < module.groups == module.in_channels
