"""Tensors in files: looked at where they lie, piece by piece, and written one after the other.

Read are safetensors, folders as Hugging Face keeps them (config.json and safetensors, maybe in
shards with an index), and checkpoints that torch.save has written. They are mapped into memory; a
mapping is let go of and made anew every so often, so that what has been read does not stay. Only
checkpoints in the form that torch had before 1.6 cannot be mapped, and are held whole.
"""

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from afield.errors import DataError
from afield.merging.state_dicts import StateDictSource
from afield.merging.tensor_source import TensorSpec
from afield.weights import read_weights

__all__ = ["TensorFiles", "write_header"]

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"
# No tensor's name: under it, safetensors keep what is no tensor.
METADATA_KEY = "__metadata__"
# Bytes that may be read before a mapping is made anew.
REMAP_BYTES = 32 << 20
# Under one of these names some programs keep the state dict in a checkpoint.
STATE_DICT_KEYS = ("state_dict", "model")
ReadEntries = Callable[[str, int, int | None], Tensor]
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFiles:
    """The tensors of a file or a folder, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.label = str(path)
        self.is_folder = self.path.is_dir()
        files, index = _shards(self.path) if self.is_folder else ([self.path], None)
        opened = {file: _File(file) for file in files}
        self.shards = {
            file: [name for name in found.specs if index is None or index.get(name) == file.name]
            for file, found in opened.items()
        }
        self.metadata = opened[files[0]].metadata
        self._homes = {name: opened[file] for file, names in self.shards.items() for name in names}
        self.specs = {name: home.specs[name] for name, home in self._homes.items()}
        lost = next((name for name in index or () if name not in self.specs), None)
        if lost is not None:
            raise DataError(f"{self.path}: {lost} is in the index, but not in its file")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries of one tensor, in their order, as a vector that is only to be looked at."""
        return self._homes[name].read(name, start, stop)


class _File:
    """One file, mapped if its form allows that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.specs: dict[str, TensorSpec] = {}
        self._mapped, self._touched = True, 0
        self._read = self._opened()

    def read(self, name: str, start: int, stop: int | None) -> Tensor:
        """Entries of one tensor; those read some time ago leave the memory."""
        if self._mapped and self._touched > REMAP_BYTES:
            self._read, self._touched = self._opened(), 0
        found = self._read(name, start, stop)
        self._touched += found.nbytes
        return found

    def _opened(self) -> ReadEntries:
        if self.path.suffix == SUFFIX:
            return self._safetensors()
        if not zipfile.is_zipfile(self.path):
            # In a cache of downloads, safetensors have no suffix.
            with suppress(DataError):
                return self._safetensors()
            # An old form, which cannot be mapped; it also says what is wrong with other files.
            self._mapped = False
            return self._mapping(read_weights(str(self.path)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # noqa: BLE001  a broken file makes torch raise nearly anything
            raise DataError(
                f"{self.path}: not read, for it is broken or needs code to be run; give safetensors"
                ", or a state dict that torch.save has written"
            ) from None
        return self._mapping(state)

    def _safetensors(self) -> ReadEntries:
        try:
            handle = safe_open(self.path, "pt")
            if not self.specs:
                names, self.metadata = handle.keys(), handle.metadata() or {}
                self.specs = {name: _spec(handle.get_tensor(name)) for name in names}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.path}: not readable safetensors ({error})") from None

        def read(name: str, start: int, stop: int | None) -> Tensor:
            found: Tensor = handle.get_tensor(name).view(-1)
            return found[start:stop]

        return read

    def _mapping(self, state: Any) -> ReadEntries:
        for key in STATE_DICT_KEYS:
            if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
                state = state[key]
        if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
            raise DataError(f"{self.path}: not a dict of tensors; save model.state_dict()")
        if METADATA_KEY in state:
            raise DataError(f"{self.path}: a tensor is called {METADATA_KEY}; give it another name")
        found = StateDictSource(state, str(self.path))
        self.specs = found.specs
        return found.read


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape))


def _shards(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors of a folder, and which tensor is in which where an index says so."""
    indices = list(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(indices) == 1:
        index = _index(indices[0])
        return [folder / name for name in sorted(set(index.values()))], index
    files = list(folder.glob(f"*{SUFFIX}"))
    if folder / "model.safetensors" in files:
        return [folder / "model.safetensors"], None
    if len(files) != 1 or indices:
        raise DataError(
            f"{folder}: {len(files)} safetensors files and {len(indices)} indices in it; give a "
            "folder with one of either, or a file"
        )
    return files, None


def _index(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        plain = all(map(_is_plain, found.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        plain = False
    if not plain or not found:
        raise DataError(f"{path}: not an index of safetensors (weight_map: tensor to file)")
    return dict(found)


def _is_plain(file: object) -> bool:
    """A name that leads elsewhere would be read, and written, there; so would a config."""
    if not isinstance(file, str):
        return False
    return Path(file).name == file and Path(file).suffix == SUFFIX


def write_header(
    path: Path, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]
) -> dict[str, int]:
    """Begin a safetensors file of these tensors; returns at which byte each is to be written.

    The same tensors and metadata give the same bytes; as in files of the library itself, wide types
    come first, so that every tensor lies where its type wants it.
    """
    header: dict[str, Any] = {METADATA_KEY: dict(sorted(metadata.items()))}
    places, end = {}, 0
    for name in sorted(specs, key=lambda each: (-specs[each].dtype.itemsize, each)):
        spec = specs[name]
        if spec.dtype not in DTYPE_NAMES:
            raise DataError(f"{name}: safetensors has no type for {spec.dtype}")
        places[name], end = end, end + spec.size * spec.dtype.itemsize
        offsets = [places[name], end]
        header[name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + place for name, place in places.items()}
