"""Computing features piece by piece; pieces on disk let a killed process continue.

AFIELD_CACHE/embedding-<digest>/NNNNNNNN.npy    features from the sample with this number on
"""

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from afield.data.cache import cache_root
from afield.data.domains import DomainSet
from afield.data.samples import Rows
from afield.experiments.frozen.encoder import Encoder
from afield.files import atomic_write
from afield.progress import progress

__all__ = ["compute_features"]

log = logging.getLogger(__name__)
Features = NDArray[np.float32]
# Seconds between two pieces on disk.
SAVE_SECONDS = 10.0


def compute_features(
    forward: Callable[[torch.Tensor], Features],
    rows: Rows,
    dataset: DomainSet,
    encoder: Encoder,
    *,
    chunk: int,
    order: torch.Tensor | None = None,
) -> tuple[Features, Callable[[], None]]:
    """The features of all samples, and a function that removes the pieces when they are not needed.

    Parameters
    ----------
    forward
        Features of a batch of samples.
    rows
        The samples.
    dataset, encoder
        Where the samples come from and what computes their features: they identify the pieces.
    chunk
        The number of samples in a batch.
    order
        The order in which samples go through the network, by default as they are. The pieces are
        in this order, the returned features are not.
    """
    order = torch.arange(len(rows)) if order is None else order
    folder = cache_root() / f"embedding-{_digest(dataset, encoder, len(rows))}"
    pieces = _read_pieces(folder)
    count, unsaved, saved = sum(map(len, pieces)), list[Features](), time.monotonic()
    first = count
    with torch.inference_mode(), progress(f"embedding {dataset.name}", len(rows)) as advance:
        for batch in rows.chunks(chunk, order[first:]):
            unsaved.append(forward(batch))
            count += len(unsaved[-1])
            advance(count)
            if time.monotonic() - saved >= SAVE_SECONDS:
                pieces.append(np.concatenate(unsaved))
                _write_piece(folder, count - len(pieces[-1]), pieces[-1])
                unsaved, saved = [], time.monotonic()
    features = np.concatenate([*pieces, *unsaved])[order.argsort().numpy()]
    return features, lambda: shutil.rmtree(folder, ignore_errors=True)


def _digest(dataset: DomainSet, encoder: Encoder, count: int) -> str:
    identity = [dataset.fingerprint or dataset.spec, asdict(encoder), count]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _read_pieces(folder: Path) -> list[Features]:
    """The pieces that follow each other from the first sample on."""
    pieces: list[Features] = []
    with suppress(OSError, ValueError):
        while (path := folder / f"{sum(map(len, pieces)):08d}.npy").is_file():
            piece = np.load(path, allow_pickle=False)
            if not len(piece):
                break
            pieces.append(piece)
    return pieces


def _write_piece(folder: Path, start: int, piece: Features) -> None:
    """Write one piece; without it, a process that is killed only starts again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{start:08d}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, piece)
    except OSError as error:
        log.warning("%s: cannot be written (%s); it would start again", folder, error.strerror)
