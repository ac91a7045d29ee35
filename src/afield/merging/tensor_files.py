"""Files of tensors: safetensors, folders of Hugging Face, and checkpoints written by torch.save.

Files are mapped into memory. A mapping is renewed every now and then, so that pages that were read
do not stay in memory. Only checkpoints in the format that torch had before 1.6 cannot be mapped;
they are loaded whole. Nothing is unpickled.
"""

import json
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from afield.errors import DataError
from afield.merging.job import StateDictSource
from afield.merging.scopes import TensorSpec
from afield.safetensor_files import SUFFIX, find_shards
from afield.tensors import check_state_dict, read_weights

# The entry of a safetensors header that is not a tensor.
METADATA_KEY = "__metadata__"
# Bytes to read before a mapping is renewed.
REMAP_BYTES = 32 << 20
# Prefix of names of a model that torch's DataParallel has wrapped.
PARALLEL_PREFIX = "module."
# Keys under which some programs store the state dict in a checkpoint.
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
    """The tensors of a file or folder, as a `TensorSource`.

    With `like`, the names of another model, a prefix that one of the two has from DataParallel is
    removed or added, so that both have the same names.
    """

    def __init__(self, path: str | Path, *, like: Collection[str] = ()) -> None:
        self.path = Path(path).expanduser()
        self.label = str(path)
        self.is_folder = self.path.is_dir()
        paths, index = find_shards(self.path) if self.is_folder else ([self.path], None)
        files = {path: _TensorFile(path) for path in paths}
        self.shards = {
            path: [name for name in file.specs if index is None or index.get(name) == path.name]
            for path, file in files.items()
        }
        self.metadata = files[paths[0]].metadata
        homes = {name: files[path] for path, names in self.shards.items() for name in names}
        lost = next((name for name in index or () if name not in homes), None)
        if lost is not None:
            raise DataError(f"{self.path}: {lost} is in the index, but not in its file")
        renamed = _rename_parallel(homes, like)
        self._files = {new: (homes[old], old) for new, old in renamed.items()}
        self.specs = {new: file.specs[old] for new, (file, old) in self._files.items()}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of a tensor, flattened; a view that must not be modified."""
        file, own_name = self._files[name]
        return file.read(own_name, start, stop)


def _rename_parallel(names: Collection[str], like: Collection[str]) -> dict[str, str]:
    """The names to use and the stored ones, which may have the prefix of DataParallel."""
    same = {name: name for name in names}
    if not like or not names or any(name in like for name in names):
        return same
    if all(name.startswith(PARALLEL_PREFIX) for name in names):
        return {name.removeprefix(PARALLEL_PREFIX): name for name in names}
    if all(name.startswith(PARALLEL_PREFIX) for name in like):
        return {PARALLEL_PREFIX + name: name for name in names}
    return same


class _TensorFile:
    """One file, mapped into memory if its format allows that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.specs: dict[str, TensorSpec] = {}
        self._mapped, self._bytes_read = True, 0
        if not path.is_file():
            what = "not a regular file" if path.exists() else "no such file or folder"
            raise DataError(f"{path}: {what}; give a file or folder of weights")
        self._read = self._open()

    def read(self, name: str, start: int, stop: int | None) -> Tensor:
        """Entries of a tensor; entries read long ago are released from memory."""
        if self._mapped and self._bytes_read > REMAP_BYTES:
            self._read, self._bytes_read = self._open(), 0
        entries = self._read(name, start, stop)
        self._bytes_read += entries.nbytes
        return entries

    def _open(self) -> ReadEntries:
        if self.path.suffix == SUFFIX:
            return self._open_safetensors()
        if not zipfile.is_zipfile(self.path):
            # Safetensors files in a download cache have no suffix.
            with suppress(DataError):
                return self._open_safetensors()
            # The format before torch 1.6, which cannot be mapped. `read_weights` also explains
            # what is wrong with any other file.
            self._mapped = False
            return self._open_state_dict(read_weights(str(self.path)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # noqa: BLE001  a broken file makes torch raise nearly anything
            raise DataError(
                f"{self.path}: not read, because it is broken or needs code to be run; give "
                "safetensors, or a state dict written by torch.save"
            ) from None
        return self._open_state_dict(state)

    def _open_safetensors(self) -> ReadEntries:
        try:
            handle = safe_open(self.path, "pt")
            if not self.specs:
                names, self.metadata = handle.keys(), handle.metadata() or {}
                self.specs = {name: _spec(handle.get_tensor(name)) for name in names}
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{self.path}: not readable safetensors ({error}); save or download it again"
            ) from None

        def read(name: str, start: int, stop: int | None) -> Tensor:
            entries: Tensor = handle.get_tensor(name).view(-1)
            return entries[start:stop]

        return read

    def _open_state_dict(self, state: Any) -> ReadEntries:
        for key in STATE_DICT_KEYS:
            if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
                state = state[key]
        check_state_dict(state, str(self.path))
        if METADATA_KEY in state:
            raise DataError(f"{self.path}: a tensor is called {METADATA_KEY}; rename it")
        source = StateDictSource(state, str(self.path))
        self.specs = source.specs
        return source.read


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape))


def write_header(
    path: Path, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]
) -> dict[str, int]:
    """Start a safetensors file with these tensors; return the byte at which each one begins.

    The same tensors and metadata give the same bytes. As in files of the safetensors library, wide
    types come first, so that every tensor is aligned to its type.
    """
    header: dict[str, Any] = {METADATA_KEY: dict(sorted(metadata.items()))}
    starts, end = {}, 0
    for name in sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name)):
        spec = specs[name]
        if spec.dtype not in DTYPE_NAMES:
            raise DataError(f"{name}: safetensors has no type for {spec.dtype}")
        starts[name], end = end, end + spec.size * spec.dtype.itemsize
        header[name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [starts[name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # A file that has its entries already keeps them, and gets another header of the same length.
    with path.open("rb+" if path.exists() else "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + start for name, start in starts.items()}
