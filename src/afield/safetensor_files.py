"""Safetensors on disk: the files of a folder, its index, and what their headers say.

A header has the type and shape of every tensor, so sizes are known before anything is read.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from afield.errors import DataError
from afield.files import check_regular_file, read_text

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"
# The usual name of the only file of a folder.
MAIN_FILE = f"model{SUFFIX}"
# Errors of the library for files that are cut or broken.
ERRORS = (OSError, SafetensorError)


def find_shards(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder, and from its index, if any, the file of each tensor."""
    check_links(folder)
    indices = list(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(indices) == 1:
        index = read_index(indices[0])
        return [folder / name for name in sorted(set(index.values()))], index
    files = list(folder.glob(f"*{SUFFIX}"))
    if folder / MAIN_FILE in files:
        return [folder / MAIN_FILE], None
    if len(files) != 1 or indices:
        raise DataError(
            f"{folder}: {len(files)} safetensors files and {len(indices)} indices in it; give a "
            "folder with one of either, or a file"
        )
    return files, None


def check_links(folder: Path) -> None:
    """Raise an error if a link in a folder leads out of it.

    Only the download cache of the Hugging Face hub has such links: from ``snapshots/<revision>`` to
    ``blobs`` beside it.
    """
    cache = folder.resolve().parents[1:2]
    is_snapshot = folder.resolve().parent.name == "snapshots" and (cache[0] / "blobs").is_dir()
    root = cache[0] if is_snapshot else folder.resolve()
    for file in folder.iterdir():
        if file.is_symlink() and not file.resolve().is_relative_to(root):
            raise DataError(
                f"{file}: a link that leads out of the folder; put the file itself there"
            )


def read_index(path: Path) -> dict[str, str]:
    """The file of each tensor, from the index of a folder."""
    try:
        index = json.loads(read_text(path))["weight_map"]
        valid = bool(index) and all(map(_is_file_name, index.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise DataError(f"{path}: not an index of safetensors (weight_map: tensor to file)")
    return dict(index)


def _is_file_name(file: object) -> bool:
    """Whether an index entry names a safetensors file in its own folder.

    Any other path would be read from, and written to, another folder or a config file.
    """
    if not isinstance(file, str):
        return False
    return Path(file).name == file and Path(file).suffix == SUFFIX


def read_tensors(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of files by their names; they are mapped into memory, not read yet."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        try:
            check_regular_file(path)
            with safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except ERRORS as error:
            reason = " ".join(str(error).split())[:120]
            raise DataError(
                f"{path}: not readable safetensors ({reason}); save or download it again"
            ) from None
    return tensors


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type of numbers, as in ``float32``."""
    return str(dtype).removeprefix("torch.")
