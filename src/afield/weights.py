"""Weights in files: read without unpickling, and known by their contents."""

import hashlib
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from afield.errors import DataError

__all__ = ["check_complete", "file_digest", "read_weights"]


def file_digest(path: str | Path) -> str:
    """Changes when the contents of a file do; read once for a file in one state."""
    file = Path(path).expanduser()
    try:
        state = file.stat()
        return _digest(file, state.st_size, state.st_mtime_ns)
    except OSError as error:
        reason = error.strerror
        raise DataError(
            f"{file}: no readable weights ({reason}); give hub, none or a file"
        ) from None


@lru_cache(maxsize=8)
def _digest(file: Path, size: int, changed: int) -> str:
    del size, changed
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a file by name; nothing is ever unpickled."""
    file = Path(path).expanduser()
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  a broken file makes torch raise nearly anything
        own = isinstance(error, (OSError, SafetensorError))
        reason = str(error)[:120] if own else "broken, or other things than tensors in it"
        raise DataError(
            f"{file}: no readable weights ({reason}); safetensors, or a dict of tensors that "
            "torch.save has written"
        ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise DataError(f"{file}: not a dict of tensors; save model.state_dict()")
    return dict(state)


def check_complete(path: str, net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """A file that lacks a tensor is another network's: loading the rest would hide it."""
    wanted = [name for name in net.state_dict() if not name.endswith("num_batches_tracked")]
    missing = [name for name in wanted if name not in state]
    if missing:
        raise DataError(
            f"{path}: {len(missing)} of the {len(wanted)} tensors of this network are not in it "
            f"(e.g. {missing[0]}); give the weights of the same architecture, under its own names"
        )
