"""Findings of diagnostics that are kept in a store, so that its report shows them.

store/diagnostics/<name>-<run>.png    the figure; beside it the numbers as .csv, and
store/diagnostics/<name>-<run>.json   the summary, the runs and the settings
"""

import base64
import hashlib
import json
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from afield.files import atomic_write, check_regular_file, read_text

log = logging.getLogger(__name__)

FINDINGS_FOLDER = "diagnostics"
# Bytes of all images together, so that the page opens at once.
MAX_IMAGE_BYTES = 3_000_000
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class KeptFinding:
    """A finding: the summary (`told`) of a diagnostic for `runs`, or for the store if empty."""

    diagnostic: str
    told: str
    runs: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


_ADAPTER = TypeAdapter(KeptFinding)


def finding_path(name: str, paths: Sequence[Path], settings: Mapping[str, Any]) -> Path:
    """The path of a finding's figure, in the store of the first run or of the records.

    Different runs and settings give different names.
    """
    # The folder of a run may be given as ".".
    first = paths[0] if paths[0].name else paths[0].resolve()
    keys = _keys(paths)
    stem = "-".join([name, *keys[:1]])
    if settings or len(keys) > 1:
        identity = json.dumps([keys, settings], sort_keys=True, default=str)
        stem += f"-{hashlib.sha256(identity.encode()).hexdigest()[:6]}"
    return (first.parent if keys else first) / FINDINGS_FOLDER / f"{stem}.png"


def keep(
    image_path: Path, message: str, name: str, paths: Sequence[Path], settings: Mapping[str, Any]
) -> Path:
    """Keep a finding's summary beside its figure."""
    kept = KeptFinding(
        name, message, _keys(paths), {key: str(value) for key, value in settings.items()}
    )
    path = image_path.with_suffix(".json")
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(kept), indent=1), encoding="utf-8")
    return path


def kept_findings(store: Path) -> list[tuple[Path, KeptFinding]]:
    """All findings of a store with the paths of their figures, sorted by name."""
    findings = []
    for path in sorted((store / FINDINGS_FOLDER).glob("*.json")):
        figure = path.with_suffix(".png")
        try:
            finding = _ADAPTER.validate_json(read_text(path))
            check_regular_file(figure)
            with figure.open("rb") as file:
                readable = file.read(len(PNG_SIGNATURE)) == PNG_SIGNATURE
        except (OSError, ValueError):
            readable = False
        if readable:
            findings.append((figure, finding))
        else:
            log.warning("skipped %s: it or the figure beside it cannot be read", path)
    return findings


def embed_findings(
    findings: Iterable[tuple[Path, KeptFinding]],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Findings with their images in base64, and the paths of images that are too large to embed."""
    shown: list[dict[str, Any]] = []
    omitted, used = [], 0
    for path, finding in findings:
        content = path.read_bytes()
        image = base64.b64encode(content).decode()
        if used + len(image) > MAX_IMAGE_BYTES:
            omitted.append(str(path))
            continue
        used += len(image)
        # A PNG has its size after the signature and the header's length and name.
        width, height = struct.unpack(">II", content[16:24])
        settings = ", ".join(f"{name}={value}" for name, value in finding.settings.items())
        shown.append(
            {"name": finding.diagnostic, "summary": finding.told, "runs": list(finding.runs),
             "settings": settings, "image": image, "width": width, "height": height}
        )  # fmt: skip
    return shown, omitted


def _keys(paths: Sequence[Path]) -> list[str]:
    """The keys of the runs among the paths; a store has none."""
    return [path.resolve().name for path in paths if (path / "record.json").exists()]
