"""Archives: the records of a store in one compressed file, to publish beside a paper.

An archive ``NAME.jsonl.gz`` has a line of JSON per record. Commands that present records read it
like a store. It has no weights, no paths of a machine, and only the checkpoints that rules pick,
so a thousand records take some hundred kilobytes; keys and tables are the same as in the store.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output, check_regular_file
from afield.runs.record import Failure, Record
from afield.runs.run import Run, name_without_path
from afield.runs.run_files import RECORD, parse_json
from afield.runs.selection import RULES, selection_values
from afield.runs.store import ARCHIVE_SUFFIX, Store
from afield.training.scores import Checkpoint

# More digits would tell no two shares of samples apart.
DECIMALS = 9
# A longer line is not a record, and would exhaust the memory.
MAX_LINE = 2**26


class Archive(Store):
    """The records of an archive, which can only be read."""

    def __iter__(self) -> Iterator[Record]:
        """All records, in the order of the file."""
        return iter(_read(self.root))

    def prepare(self) -> None:
        """Raise `SpecError`, because nothing can be written to an archive."""
        raise SpecError(f"{self.root}: an archive can only be read; give --store FOLDER")

    def put_file(self, name: str, content: bytes) -> str:
        """Raise `SpecError`, because nothing can be written to an archive."""
        del name, content
        raise SpecError(f"{self.root}: an archive can only be read; give --out FILE")

    def failures(self, keys: Iterable[str] | None = None) -> list[Failure]:
        """None: an archive has finished runs only."""
        del keys
        return []


def write_archive(records: Iterable[Record], path: Path, *, overwrite: bool = False) -> int:
    """Write records to an archive and return their number; equal records give equal bytes."""
    if not path.name.endswith(ARCHIVE_SUFFIX):
        raise SpecError(f"{path}: the name of an archive ends in {ARCHIVE_SUFFIX}")
    check_output(path, overwrite=overwrite)
    lines = sorted((record.run.key, _line(record)) for record in records)
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(b"".join(line for _, line in lines), mtime=0))
    return len(lines)


def _read(path: Path) -> list[Record]:
    records: list[Record] = []
    try:
        check_regular_file(path)
        with gzip.open(path) as file:
            while line := file.readline(MAX_LINE):
                where = f"{path}, line {len(records) + 1}"
                records.append(parse_json(RECORD, line, where, "make the archive again"))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: not a readable archive ({reason})") from None
    return records


def _line(record: Record) -> bytes:
    """A record as JSON without what no table reads."""
    slim = replace(record, run=_without_paths(record.run), checkpoints=_picked(record))
    content = _rounded(RECORD.dump_python(slim, exclude_none=True))
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _picked(record: Record) -> Sequence[Checkpoint]:
    """The checkpoints that a rule may pick: the best one and the last, or all of them."""
    checkpoints = tuple(record.checkpoints)
    if any(RULES[rule].at_every for rule in record.run.rules):
        return checkpoints
    values = selection_values(record)
    best = record.candidate_numbers[values.index(max(values))]
    return [checkpoints[i] for i in sorted({best, len(checkpoints) - 1})]


def _without_paths(run: Run) -> Run:
    """The run without paths of your own files, which are not part of its key."""
    return replace(
        run,
        dataset=PurePath(run.dataset).name if run.data else run.dataset,
        weights=PurePath(run.weights).name if run.start else run.weights,
        backbone=name_without_path(run.backbone) if run.start else run.backbone,
        folder=PurePath(run.folder).name if run.folder else run.folder,
        given={
            name: name_without_path(value) if isinstance(value, str) else value
            for name, value in run.given.items()
        },
    )


def _rounded(value: Any) -> Any:
    """Numbers with nine decimals; settings of a run stay as they are, because they are its key."""
    if isinstance(value, dict):
        return {name: each if name == "run" else _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, DECIMALS) if isinstance(value, float) and math.isfinite(value) else value
