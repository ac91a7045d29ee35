"""Fast reading of records: their checkpoints go into arrays without an object for every score.

A record that has anything unusual in it is left to pydantic, which is slower, accepts all that is
valid, and says what is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, compress, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from afield.runs.record import Record
from afield.training.scores import COLUMNS, PARTS, CompactCheckpoints, Score, Track

__all__ = ["RECORD", "compact_record"]

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
