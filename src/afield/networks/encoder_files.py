"""Encoders of texts from folders of strangers: sizes are known before a network is built.

A configuration is a few bytes that can ask for any amount of memory. So the network is first built
without memory (on torch's device ``meta``), and building stops when it has more parameters than the
file of weights, or than this machine can hold.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from afield.compute import machine_memory
from afield.errors import DataError
from afield.files import read_json_object
from afield.safetensor_files import MAIN_FILE, dtype_name, find_shards, read_tensors

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
# Values that name code, other folders or other programs, and those of heads, which are not built.
DROPPED_KEYS = (
    *("auto_map", "_name_or_path", "transformers_weights", "attn_implementation"),
    *("_attn_implementation", "_attn_implementation_internal", "experts_implementation"),
    *("num_labels", "id2label", "label2id", "torch_dtype", "dtype"),
)
# Files and values with which weights are read by other programs.
ADAPTER_FILE, QUANTIZATION = "adapter_config.json", "quantization_config"
# Greater numbers are no layers of any encoder, and no sizes.
MAX_LAYERS, MAX_NUMBER, MAX_DEPTH = 2000, 2**31 - 1, 20
# What an encoder may have beyond the tensors in its file: a pooler, tied weights, and buffers.
SLACK_TENSORS, SLACK_ENTRIES, SLACK_RATIO = 64, 2**26, 2
# Types with fewer bits come with scales, which are not applied.
FULL_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Size:
    """The number of tensors and of their entries, at most."""

    tensors: int
    entries: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Size":
        """The size of a network with these tensors, and a little more."""
        entries = sum(tensor.numel() for tensor in tensors.values())
        return cls(
            SLACK_RATIO * len(tensors) + SLACK_TENSORS, SLACK_RATIO * entries + SLACK_ENTRIES
        )

    @classmethod
    def of_machine(cls) -> "Size":
        """The size of the largest network in float32 that this machine can hold."""
        return cls(100 * MAX_LAYERS, machine_memory() // 4)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration in a folder, without values that lead elsewhere; checks its numbers."""
    file = folder / CONFIG_FILE
    content = read_json_object(file)
    if QUANTIZATION in content:
        raise DataError(f"{file}: quantized weights are not read; give those in float32 or float16")
    kept = {key: value for key, value in content.items() if key not in DROPPED_KEYS}
    problem = next(_odd_numbers(kept, "", 0), "")
    if problem:
        raise DataError(f"{file}: {problem}; get the file again")
    return kept


def _odd_numbers(value: Any, key: str, depth: int) -> Iterator[str]:
    """Numbers that no encoder has, with their keys."""
    if depth > MAX_DEPTH:
        yield f"{key} is nested {depth} times"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _odd_numbers(inner, str(name), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _odd_numbers(inner, key, depth + 1)
    elif isinstance(value, int):
        most = MAX_LAYERS if "layer" in key or "block" in key or "depth" in key else MAX_NUMBER
        if abs(value) > most:
            yield f"{key} is {str(value)[:20]}, above {most}"


def read_encoder_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, mapped into memory: real numbers, in files of the folder."""
    if (folder / ADAPTER_FILE).exists():
        raise DataError(f"{folder}: holds an adapter, not a model; merge it with its base first")
    main = folder / MAIN_FILE
    paths, index = ([main], None) if main.is_file() else find_shards(folder)
    if index is not None:
        gone = next((path.name for path in paths if not path.is_file()), "")
        if gone:
            raise DataError(f"{folder}: no {gone}, which its index names; get the folder again")
    tensors = read_tensors(paths)
    if not tensors:
        raise DataError(f"{paths[0]}: has no tensors; get the file again")
    kinds = {dtype_name(tensor.dtype) for tensor in tensors.values() if tensor.is_floating_point()}
    odd = sorted(kinds - {"float32"})
    if odd:
        logger.warning("%s: its weights are %s; they become float32", folder, " and ".join(odd))
    return tensors


def check_encoder_weights(
    folder: Path, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Raise an error if a tensor that belongs to a parameter does not hold usable numbers."""
    wanted = tuple(parameters)
    for name, tensor in tensors.items():
        if not name.endswith(wanted):
            continue
        if tensor.dtype not in FULL_TYPES:
            raise DataError(
                f"{folder}: {name} is {dtype_name(tensor.dtype)}, but the network needs float32; "
                "give the weights of a trained network"
            )
        if not tensor.isfinite().all():
            raise DataError(f"{folder}: NaN or infinity in {name}; give other weights")


@contextmanager
def without_memory(most: Size, label: str) -> Iterator[None]:
    """Build networks without memory; raise an error when one has more than it may have."""
    tensors = entries = 0

    def count(module: nn.Module, name: str, value: Tensor | None) -> None:
        del module, name
        nonlocal tensors, entries
        if value is None:
            return
        tensors, entries = tensors + 1, entries + value.numel()
        if tensors > most.tensors or entries > most.entries:
            raise DataError(
                f"{label}: asks for more parameters than its weights have, or than this machine "
                "can hold; get the folder again"
            )

    handles = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        with torch.device("meta"):
            yield
    finally:
        for handle in handles:
            handle.remove()
