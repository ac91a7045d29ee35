"""The files of a run in a store: records and other JSON, and weights as safetensors."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from afield.errors import DataError
from afield.files import check_regular_file
from afield.runs.record import Record, Run
from afield.runs.store.compact import RECORD, compact_record

# Reading records must not import torch, which takes seconds.
if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RECORD", "ContentCache", "as_json", "entries", "files_in_folders", "on_cpu"]
__all__ += [
    "read_json",
    "read_record",
    "read_run_inputs",
    "read_run_weights",
    "readable",
    "thumbnail_file",
]

log = logging.getLogger(__name__)

Content = TypeVar("Content")


def read_run_weights(folder: Path, name: str = "model") -> "dict[str, Tensor]":
    """The deployed weights in the folder of a finished run, or those of its `parts`."""
    from safetensors.torch import load_file

    path = folder / f"{name}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: no readable weights ({error}); run it again") from None


def read_run_inputs(folder: Path) -> dict[str, Any]:
    """Metadata of a finished run's deployed weights: classes, shape and scaling of its inputs."""
    path = folder / "model.safetensors"
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, Any] = json.loads(file.metadata()["afield"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no readable weights of afield ({error}); run it again") from None
    return metadata


def read_record(folder: Path) -> Record:
    """The record in a folder of a store."""
    path = folder / "record.json"
    if not path.exists():
        raise DataError(f"{folder}: no record.json; give the folder of a finished run")
    record: Record = read_json(RECORD, path)
    return record


def thumbnail_file(run: Run) -> str:
    """The name, in a store, of the thumbnails of a run's dataset."""
    identity = json.dumps([run.dataset, run.data])
    return f"thumbnails-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json"


def on_cpu(weights: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Weights as safetensors takes them: detached, contiguous and on the CPU."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def as_json(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """JSON that keeps NaN and infinity, which the loss on an unseen domain may be."""
    return json.dumps(adapter.dump_python(value, exclude_none=True)).encode()


class ContentCache(Generic[Content]):
    """Contents of files: each file is read once, and again if it changes."""

    def __init__(self, adapter: TypeAdapter[Content]) -> None:
        self._adapter = adapter
        self._contents: dict[str, tuple[tuple[int, ...], Content]] = {}

    def read(self, path: Path) -> Content | None:
        """The content; None if there is no file, or if it cannot be read, which is logged."""
        name = str(path)
        try:
            status = path.stat()
        except OSError:
            return next(readable(self._adapter, [path]), None)
        state = status.st_ino, status.st_size, status.st_mtime_ns
        known = self._contents.get(name)
        if known is not None and known[0] == state:
            return known[1]
        self._contents.pop(name, None)
        content: Content | None = next(readable(self._adapter, [path]), None)
        if content is not None:
            self._contents[name] = state, content
        return content


def entries(root: Path) -> list[str]:
    """The names of files and folders in a folder, sorted; empty if it cannot be read."""
    try:
        with os.scandir(root) as found:
            return sorted(entry.name for entry in found)
    except OSError:
        return []


def files_in_folders(root: Path, name: str, folders: Iterable[str] | None = None) -> list[Path]:
    """The files of this name that exist in folders of `root`, sorted by the folders' names."""
    names = entries(root) if folders is None else sorted(folders)
    paths = (f"{root}/{folder}/{name}" for folder in names)
    return [Path(path) for path in paths if os.access(path, os.F_OK)]


def readable(adapter: TypeAdapter[Any], paths: Iterable[Path]) -> Iterator[Any]:
    """The content of each file; files that cannot be read are logged and skipped."""
    for path in paths:
        try:
            yield read_json(adapter, path)
        except DataError as error:
            log.warning("skipped: %s", error)
        except FileNotFoundError:  # the run ended meanwhile and removed it
            continue


def read_json(adapter: TypeAdapter[Any], path: Path) -> Any:
    """Read and validate one file."""
    try:
        check_regular_file(path)
        text = path.read_bytes()
        content = compact_record(text) if adapter is RECORD else None
        if content is None:
            content = adapter.validate_json(text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the whole file"
        message = f"{path}: not a record of afield ({where}: {first['msg']})"
        raise DataError(f"{message}; remove it to repeat the run") from None
    if isinstance(content, Record) and content.problem:
        raise DataError(f"{path}: {content.problem}; remove it to repeat the run")
    return content
