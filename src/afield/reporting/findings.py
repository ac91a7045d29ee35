"""Findings of diagnostics that are kept in a store, so that its report shows them.

store/diagnostics/<name>-<run>.png    the picture; beside it the numbers as .csv, and
store/diagnostics/<name>-<run>.json   what was found, and in which runs
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from afield.files import atomic_write

__all__ = ["FINDINGS_FOLDER", "KeptFinding", "finding_path", "keep", "kept_findings"]

log = logging.getLogger(__name__)

FINDINGS_FOLDER = "diagnostics"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class KeptFinding:
    """What a diagnostic has said of runs, or of a whole store, where `runs` is empty."""

    diagnostic: str
    told: str
    runs: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


_EXHIBIT = TypeAdapter(KeptFinding)


def finding_path(name: str, paths: Sequence[Path], settings: Mapping[str, Any]) -> Path:
    """Where the picture of a finding is kept: in the store of the first run, or of the records.

    Other runs and settings give another name.
    """
    # The folder of a run may be given as ".", from within.
    first = paths[0] if paths[0].name else paths[0].resolve()
    keys = _keys(paths)
    stem = "-".join([name, *keys[:1]])
    if settings or len(keys) > 1:
        told = json.dumps([keys, settings], sort_keys=True, default=str)
        stem += f"-{hashlib.sha256(told.encode()).hexdigest()[:6]}"
    return (first.parent if keys else first) / FINDINGS_FOLDER / f"{stem}.png"


def keep(
    image_path: Path, message: str, name: str, paths: Sequence[Path], settings: Mapping[str, Any]
) -> Path:
    """Keep what was found beside its picture."""
    kept = KeptFinding(
        name, message, _keys(paths), {key: str(value) for key, value in settings.items()}
    )
    path = image_path.with_suffix(".json")
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(kept), indent=1), encoding="utf-8")
    return path


def kept_findings(store: Path) -> list[tuple[Path, KeptFinding]]:
    """All findings of a store with the paths of their pictures, in the order of their names."""
    found = []
    for path in sorted((store / FINDINGS_FOLDER).glob("*.json")):
        picture = path.with_suffix(".png")
        try:
            exhibit = _EXHIBIT.validate_json(path.read_bytes())
            with picture.open("rb") as file:
                whole = file.read(len(PNG_SIGNATURE)) == PNG_SIGNATURE
        except (OSError, ValidationError):
            whole = False
        if whole:
            found.append((picture, exhibit))
        else:
            log.warning("left out: %s: no readable finding, or no picture beside it", path)
    return found


def _keys(paths: Sequence[Path]) -> list[str]:
    """The runs among the paths; a store is none."""
    return [path.resolve().name for path in paths if (path / "record.json").exists()]
