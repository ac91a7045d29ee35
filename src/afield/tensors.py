"""Tensors: arithmetic on lists of them, and weights read from files without unpickling code."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from afield.errors import DataError
from afield.files import check_regular_file, file_digest


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


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the entries of all tensors to a new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into views with the shapes of the tensors in `like`."""
    pieces = vector.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def clone_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors with their memory layout, without gradient history."""
    copies = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    assign(copies, tensors)
    return copies


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Set the gradients of parameters to copies in the memory layout of each parameter.

    Fused optimizers read parameter and gradient as plain memory, so a gradient in another layout
    would silently be applied to the wrong entries.
    """
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter, requires_grad=False)
    assign([parameter.grad for parameter in parameters if parameter.grad is not None], gradients)


@torch.no_grad()
def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors with values, in place."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))


@torch.no_grad()
def add(tensors: Sequence[Tensor], others: Sequence[Tensor], *, times: float = 1.0) -> None:
    """Add `times` the others to tensors, in place."""
    if tensors:
        torch._foreach_add_(list(tensors), list(others), alpha=times)


@torch.no_grad()
def mix(tensors: Sequence[Tensor], others: Sequence[Tensor], *, share: float) -> None:
    """Interpolate linearly towards the others, in place: ``share=1`` gives the others."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(others), share)
