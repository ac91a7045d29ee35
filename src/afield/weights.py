"""Read weights from files without unpickling code."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from afield.errors import DataError
from afield.files import check_regular_file, file_digest

__all__ = ["check_complete", "check_state_dict", "check_values", "read_weights", "weights_digest"]


def weights_digest(path: str) -> str:
    """Digest of the file of weights that a run starts from."""
    try:
        return file_digest(path)
    except DataError as error:
        raise DataError(f"{error}; give hub, none or a file") from None


def read_weights(path: str) -> dict[str, Tensor]:
    """Read the tensors of a file by name; no pickled code is run."""
    file = Path(path).expanduser()
    try:
        check_regular_file(file)
        if file.suffix == ".safetensors":
            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  a broken file makes torch raise nearly anything
        is_clear = isinstance(error, (OSError, SafetensorError))
        reason = str(error)[:120] if is_clear else "broken, or contains other things than tensors"
        raise DataError(
            f"{file}: no readable weights ({reason}); use safetensors, or a dict of tensors "
            "saved with torch.save"
        ) from None
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]
    check_state_dict(state, str(file))
    return dict(state)


def check_state_dict(state: object, label: str) -> None:
    """Raise an error unless an object is a mapping of names to tensors."""
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise DataError(f"{label}: not a dict of tensors; save model.state_dict()")
    odd = next((name for name in state if not isinstance(name, str)), None)
    if odd is not None:
        raise DataError(f"{label}: the name {odd!r} is not a string; rename the tensor")


def check_values(path: str, wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise an error if a tensor has another kind of numbers than the network's, or NaN."""
    for name, tensor in wanted.items():
        if name not in state:
            continue
        kinds = (state[name].is_floating_point(), state[name].is_complex())
        if kinds != (tensor.is_floating_point(), tensor.is_complex()):
            raise DataError(
                f"{path}: {name} is {_dtype(state[name])}, but the network needs {_dtype(tensor)}; "
                "give the weights of a trained network"
            )
        if not state[name].isfinite().all():
            raise DataError(f"{path}: NaN or infinity in {name}; give other weights")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def check_complete(path: str, net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise an error if the file lacks a tensor of the network, as that of another network does.

    Tensors with other kinds of numbers, and NaN, are errors as well.
    """
    check_values(path, net.state_dict(), state)
    names = [name for name in net.state_dict() if not name.endswith("num_batches_tracked")]
    missing = [name for name in names if name not in state]
    if missing:
        raise DataError(
            f"{path}: lacks {len(missing)} of the {len(names)} tensors of this network "
            f"(e.g. {missing[0]}); give weights of the same architecture, with the same names"
        )
