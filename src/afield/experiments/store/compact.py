"""Fast reading of records: their checkpoints go into arrays without an object for every score.

A record that has anything unusual in it is left to pydantic, which is slower, accepts all that is
valid, and says what is wrong.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from afield.experiments.record import Record, Run
from afield.training.checkpoint import COLUMNS, PARTS, CompactCheckpoints, Score, Track

__all__ = ["compact_record"]

_SCORE = TypeAdapter(Score)
_RUN = TypeAdapter(Run)
_REST = TypeAdapter(tuple[float, dict[str, str], str, int, int, tuple[str, ...]])
_columns = itemgetter(*COLUMNS)
# Equal tuples of many records are kept once.
_shared: dict[Any, Any] = {}
MAX_SHARED = 10_000


class _UnusualError(Exception):
    """The record is valid or not; this module cannot tell."""


def compact_record(content: bytes) -> Record | None:
    """The record in a file, with compact checkpoints; None if it is not an ordinary record."""
    try:
        raw = from_json(content)
        seconds, versions, device, dropped, memory, names = _REST.validate_python(
            (
                *(raw[name] for name in ("seconds", "versions", "device")),
                *(raw.get("dropped", 0), raw.get("memory", 0), raw.get("class_names", ())),
            )
        )
        return Record(
            run=_RUN.validate_python(raw["run"]),
            checkpoints=_checkpoints(raw["checkpoints"]),
            seconds=seconds,
            versions=_share(versions),
            device=device,
            dropped=dropped,
            memory=memory,
            class_names=_share(names),
        )
    except (_UnusualError, ValidationError, ValueError, TypeError, LookupError, AttributeError):
        return None


def _checkpoints(raw: Sequence[Mapping[str, Any]]) -> CompactCheckpoints:
    domains = tuple(raw[0]["scores"])
    if any(tuple(checkpoint["scores"]) != domains for checkpoint in raw):
        raise _UnusualError
    tracks: dict[tuple[str, str], Track] = {}
    details: dict[tuple[int, str, str], Score] = {}
    for domain in domains:
        rows: dict[str, list[tuple[float, ...]]] = {}
        for at, checkpoint in enumerate(raw):
            for part, score in checkpoint["scores"][domain].items():
                if len(score) == len(COLUMNS):
                    rows.setdefault(part, []).append((at, *_columns(score)))
                else:
                    details[at, domain, part] = _SCORE.validate_python(score)
        tracks |= {(domain, part): _track(of_part) for part, of_part in rows.items()}
    if not {part for _, part in tracks} | {part for *_, part in details} <= set(PARTS):
        raise _UnusualError
    return CompactCheckpoints(
        steps=_share(tuple(_whole(checkpoint["step"]) for checkpoint in raw)),
        deployed=_share(tuple(_flag(checkpoint.get("deployed", True)) for checkpoint in raw)),
        domains=_share(domains),
        tracks=tracks,
        details=details,
        logs=_logs(raw),
    )


def _track(rows: list[tuple[float, ...]]) -> Track:
    values = np.array(rows, dtype=np.float64)
    # A text or null in place of a number is for pydantic to judge, and so is NaN.
    if np.isnan(values).any() or (values[:, -1] % 1).any():
        raise _UnusualError
    return Track(_share(tuple(int(row[0]) for row in rows)), values[:, 1:].copy())


def _logs(raw: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], Any]:
    names = tuple(raw[0]["logs"])
    if any(tuple(checkpoint["logs"]) != names for checkpoint in raw):
        raise _UnusualError
    rows = [tuple(checkpoint["logs"].values()) for checkpoint in raw]
    values = np.array(rows, dtype=np.float64).reshape(len(raw), len(names))
    if np.isnan(values).any():
        raise _UnusualError
    return _share(names), values


def _whole(value: object) -> int:
    if type(value) is not int:
        raise _UnusualError
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise _UnusualError
    return value


def _share(value: Any) -> Any:
    key = (dict, *value.items()) if isinstance(value, dict) else value
    if len(_shared) >= MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(key, value)
