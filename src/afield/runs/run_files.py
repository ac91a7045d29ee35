"""The files of a run in a store: records and other JSON, and weights as safetensors.

Records are read fast: their checkpoints go into arrays without an object for every score. A record
that has anything unusual in it is left to pydantic, which is slower, accepts all that is valid, and
says what is wrong.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open

from afield.errors import DataError
from afield.files import check_regular_file
from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import COLUMNS, PARTS, CompactCheckpoints, Score, Track

if TYPE_CHECKING:
    from torch import Tensor


log = logging.getLogger(__name__)

# Reads and writes `Record` as JSON.
RECORD = TypeAdapter(Record)
_SCORE = TypeAdapter(Score)
_columns = itemgetter(*COLUMNS)
# Equal tuples of many records are kept once.
_shared: dict[Any, Any] = {}
MAX_SHARED = 10_000
# Records of one benchmark differ in the checkpoints whose scores have details.
MAX_LAYOUTS = 1000
# Larger whole numbers are not exact in an array of float64.
MAX_SIZE = 2**53


class _UnusualError(Exception):
    """The record is valid or not; this module cannot tell."""


@dataclass(frozen=True)
class _Layout:
    """Where the scores of a record belong, in the order of the file.

    Attributes
    ----------
    plain
        Whether each score has `COLUMNS` and no details.
    tracks
        By domain and part, where the plain scores are.
    details
        Checkpoint, domain and part of each of the other scores.
    """

    plain: Sequence[bool]
    tracks: Mapping[tuple[str, str], Track]
    details: Sequence[tuple[int, str, str]]


def compact_record(content: bytes) -> Record | None:
    """The record in a file, with compact checkpoints; None if it is not an ordinary record."""
    try:
        raw = _parse(content)
        _check_settings(raw["run"])
        record = RECORD.validate_python({**raw, "checkpoints": ()})
        return replace(
            record,
            checkpoints=_checkpoints(raw["checkpoints"]),
            versions=_share(record.versions),
            class_names=_share(record.class_names),
        )
    except (_UnusualError, ValidationError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _parse(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        # This one is slower and takes NaN and infinity, which the loss on a domain may be.
        return from_json(content)


def _check_settings(run: Mapping[str, Any]) -> None:
    """Refuse hyperparameters that orjson may have rounded: whole numbers of more than 64 bits."""
    for settings in run.values():
        values = settings.values() if type(settings) is dict else ()
        if any(type(value) is float and abs(value) >= MAX_SIZE for value in values):
            raise _UnusualError


def _checkpoints(raw: Sequence[Mapping[str, Any]]) -> CompactCheckpoints:
    by_domain = [checkpoint["scores"] for checkpoint in raw]
    domains = _common_names(by_domain)
    by_part = list(chain.from_iterable(map(dict.values, by_domain)))
    scores = list(chain.from_iterable(map(dict.values, by_part)))
    layout = _layout(
        domains,
        tuple(chain.from_iterable(by_part)),
        tuple(map(len, by_part)),
        tuple(map(len, scores)),
    )
    return CompactCheckpoints(
        steps=_share(_of_type(int, (checkpoint["step"] for checkpoint in raw))),
        deployed=_share(_of_type(bool, (each.get("deployed", True) for each in raw))),
        domains=_share(domains),
        tracks=layout.tracks,
        scores=_rows(compress(scores, layout.plain)),
        details=_details(layout, scores),
        logs=_logs([checkpoint["logs"] for checkpoint in raw]),
    )


def _common_names(mappings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names in every mapping, which have to be the same in the same order."""
    names = tuple(mappings[0])
    if list(chain.from_iterable(mappings)) != list(names) * len(mappings):
        raise _UnusualError
    return names


@lru_cache(maxsize=MAX_LAYOUTS)
def _layout(
    domains: tuple[str, ...],
    parts: tuple[str, ...],
    counts: tuple[int, ...],
    lengths: tuple[int, ...],
) -> _Layout:
    """The layout of a record.

    Parameters
    ----------
    domains
        Of every checkpoint.
    parts
        Of every score.
    counts
        How many scores there are of each domain at each checkpoint.
    lengths
        How many fields each score has.
    """
    if not set(parts) <= set(PARTS):
        raise _UnusualError
    plain = [length == len(COLUMNS) for length in lengths]
    places = chain.from_iterable(
        repeat((number // len(domains), domains[number % len(domains)]), count)
        for number, count in enumerate(counts)
    )
    rows: dict[tuple[str, str], dict[int, int]] = {}
    details, row = [], 0
    for (at, domain), part, is_plain in zip(places, parts, plain, strict=True):
        if is_plain:
            rows.setdefault((domain, part), {})[at] = row
            row += 1
        else:
            details.append((at, domain, part))
    tracks = {
        name: Track(_share(tuple(of_track)), np.array(list(of_track.values()), dtype=np.intp))
        for name, of_track in rows.items()
    }
    return _Layout(plain, tracks, details)


def _rows(scores: Iterable[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Plain scores as an array with a row for each."""
    values = np.array(list(chain.from_iterable(map(_columns, scores))), dtype=np.float64)
    rows = values.reshape(-1, len(COLUMNS))
    sizes = rows[:, -1]
    # A text or null in place of a number is for pydantic to judge, and so is NaN.
    if np.isnan(values).any() or (np.abs(sizes) > MAX_SIZE).any() or (sizes % 1).any():
        raise _UnusualError
    return rows


def _details(
    layout: _Layout, scores: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], dict[int, Score]]:
    details: dict[tuple[str, str], dict[int, Score]] = {}
    detailed = compress(scores, (not plain for plain in layout.plain))
    for (at, domain, part), score in zip(layout.details, detailed, strict=True):
        details.setdefault((domain, part), {})[at] = _SCORE.validate_python(score)
    return details


def _logs(raw: Sequence[dict[str, Any]]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    names = _common_names(raw)
    values = np.array(list(chain.from_iterable(map(dict.values, raw))), dtype=np.float64)
    if np.isnan(values).any():
        raise _UnusualError
    return _share(names), values.reshape(len(raw), len(names))


def _of_type(kind: type, values: Iterable[Any]) -> tuple[Any, ...]:
    checked = tuple(values)
    if set(map(type, checked)) != {kind}:
        raise _UnusualError
    return checked


def _share(value: Any) -> Any:
    key = (dict, *value.items()) if isinstance(value, dict) else value
    if len(_shared) >= MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(key, value)


# Reading records must not import torch, which takes seconds.


Content = TypeVar("Content")


def read_run_weights(folder: Path, name: str = "model") -> "dict[str, Tensor]":
    """The deployed weights in the folder of a finished run, or those of its `parts`."""
    from safetensors.torch import load_file

    path = folder / f"{name}.safetensors"
    try:
        check_regular_file(path)
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: no readable weights ({error}); run it again") from None


def read_run_inputs(folder: Path) -> dict[str, Any]:
    """Metadata of a finished run's deployed weights: classes, shape and scaling of its inputs."""
    path = folder / "model.safetensors"
    try:
        check_regular_file(path)
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
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return parse_json(adapter, text, str(path), "remove it to repeat the run")


def parse_json(adapter: TypeAdapter[Any], text: bytes, where: str, advice: str) -> Any:
    """Validate the content of a file; an error says where it is and what to do."""
    content = compact_record(text) if adapter is RECORD else None
    try:
        if content is None:
            content = adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"]) or "the whole file"
        message = f"{where}: not a record of afield ({field}: {first['msg']})"
        raise DataError(f"{message}; {advice}") from None
    if isinstance(content, Record) and content.problem:
        raise DataError(f"{where}: {content.problem}; {advice}")
    return content
