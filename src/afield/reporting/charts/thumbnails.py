"""Thumbnails of the data that a store keeps, for its report."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from afield.runs.record import Record
from afield.runs.store import thumbnail_file

__all__ = ["kept_thumbnails"]

log = logging.getLogger(__name__)

# Far more than the strips of a dataset need.
MAX_BYTES = 500_000
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_ADAPTER = TypeAdapter(dict[str, str])


def kept_thumbnails(
    roots: Sequence[Path], records: Sequence[Record]
) -> dict[str, Mapping[str, str]]:
    """For each dataset of the records, strips of images in base64 by domain, if a store has any."""
    runs = {(record.run.dataset, record.run.data): record.run for record in records}
    files = {thumbnail_file(run): run.dataset for run in runs.values()}
    paths = [root / name for root in roots for name in files]
    strips = {files[path.name]: _read(path) for path in paths if path.is_file()}
    return {dataset: of_domain for dataset, of_domain in strips.items() if of_domain}


def _read(path: Path) -> Mapping[str, str]:
    """The strips in a file; a file that is broken or far too large is skipped."""
    try:
        content = path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
        strips = _ADAPTER.validate_json(content)
    except (OSError, ValidationError):
        strips = {"": ""}
    if all(map(BASE64.fullmatch, strips.values())):
        return strips
    log.warning("skipped %s: not readable thumbnails", path)
    return {}
