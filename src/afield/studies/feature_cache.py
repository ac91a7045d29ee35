"""Features by sample, so that a frozen network sees every image or text only once.

A sample is known by a digest of its values as decoded, not by its file or its place among others::

    AFIELD_CACHE/feature-samples/<network>/<digest>.npz     keys: n × 16 bytes, X: n × features

Adding files to a folder computes the features of the new ones only, and leaving files out computes
none. Files are written while the work goes on, so a killed process continues where it stopped.

The features of a sample do not depend on the samples beside it. Kernels of convolutions may round
differently for batches of other sizes, so every batch has the same number of samples; the last one
repeats a sample. Texts are padded to a multiple of `TOKEN_STEP`, whatever is in their batch.
"""

import hashlib
import json
import logging
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.cache import cache_root
from afield.data.cache_entries import SAMPLES
from afield.data.samples import Rows
from afield.files import atomic_write
from afield.progress import progress

log = logging.getLogger(__name__)

Features = NDArray[np.float32]
# Seconds between two files.
SAVE_SECONDS = 10.0
KEY_BYTES = 16
# Samples whose digests are computed at once.
READ_CHUNK = 256
# Texts are padded to a multiple of so many tokens.
TOKEN_STEP = 16


def compute_features(
    forward: Callable[[Tensor], Features], rows: Rows, cache: "FeatureCache", *, chunk: int, of: str
) -> Features:
    """The features of all samples; those that are not in the cache are computed and added to it.

    Parameters
    ----------
    forward
        Features of a batch of samples.
    rows, cache
        The samples, and the features that the network has computed before.
    chunk
        The number of samples in every batch.
    of
        The name of the data, for the progress.
    """
    keys = sample_keys(rows)
    known = cache.read(set(keys))
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    missing = sorted(place for key, place in first.items() if key not in known)
    done = len(keys) - len(missing)
    if missing:
        with torch.inference_mode(), progress(f"embedding {of}", len(keys)) as advance:
            for places, batch in _batches(rows, torch.tensor(missing), chunk):
                computed = forward(batch)[: len(places)]
                cache.add([keys[place] for place in places], computed)
                known |= {keys[place]: row for place, row in zip(places, computed, strict=True)}
                done += len(places)
                advance(done)
    cache.close()
    return np.stack([known[key] for key in keys])


def sample_keys(rows: Rows) -> list[bytes]:
    """Digests of the values of all samples."""
    return [
        hashlib.blake2b(values.tobytes(), digest_size=KEY_BYTES).digest()
        for chunk in rows.chunks(READ_CHUNK)
        for values in chunk.cpu().numpy()
    ]


def _batches(rows: Rows, chosen: Tensor, chunk: int) -> Iterator[tuple[list[int], Tensor]]:
    """Places and values of the chosen samples, in batches of one size; the last repeats a sample.

    Long texts come first, so that the time left is not underestimated.
    """
    for width, group in _groups_of_width(rows, chosen):
        for places in group.split(chunk):
            filled = torch.cat([places, places[-1:].repeat(chunk - len(places))])
            values = rows.take(filled.to(rows.index_device))
            yield places.tolist(), values if width is None else values[:, :width]


def _groups_of_width(rows: Rows, chosen: Tensor) -> Iterator[tuple[int | None, Tensor]]:
    """The chosen samples, of texts those of one padded length after the other."""
    if not rows.is_tokens:
        yield None, chosen
        return
    steps = -(-rows.lengths[chosen] // TOKEN_STEP)
    for step in sorted(set(steps.tolist()), reverse=True):
        yield max(1, step) * TOKEN_STEP, chosen[steps == step]


class FeatureCache:
    """The features that one network has computed, in files that are only added.

    `identity` is everything that determines the features of a sample.
    """

    def __init__(self, identity: Sequence[object]) -> None:
        digest = hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:16]
        self.folder = cache_root() / SAMPLES / digest
        self._keys: list[bytes] = []
        self._rows: list[Features] = []
        self._saved = time.monotonic()
        self._written: list[Path] = []

    def read(self, keys: set[bytes]) -> dict[bytes, Features]:
        """The features of those samples that are known."""
        known: dict[bytes, Features] = {}
        for path in sorted(self.folder.glob("*.npz")):
            # A file that cannot be read only costs the time to compute its features again.
            with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                known |= _read(path, keys)
        return known

    def add(self, keys: Sequence[bytes], rows: Features) -> None:
        """Keep the features of samples; they are on disk a few seconds later."""
        self._keys += keys
        self._rows.append(rows)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self._write()

    def close(self) -> None:
        """Write what is not on disk yet, and put the files of this computation into one."""
        self._write()
        if len(self._written) < 2:
            return
        parts = self._written
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            for path in parts:
                with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
                    self._keys += [key.tobytes() for key in file["keys"]]
                    self._rows.append(file["X"])
            self._written = []
            self._write()
            if self._written:
                for path in set(parts) - set(self._written):
                    path.unlink(missing_ok=True)

    def _write(self) -> None:
        """Write a file; without it, a process that is killed only computes more again."""
        if not self._keys:
            return
        joined = b"".join(self._keys)
        path = self.folder / f"{hashlib.sha256(joined).hexdigest()[:32]}.npz"
        keys = np.frombuffer(joined, dtype=np.uint8).reshape(-1, KEY_BYTES)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.savez(file, keys=keys, X=np.concatenate(self._rows))
            self._written.append(path)
        except OSError as error:
            log.warning("%s: cannot be written (%s); it would start again", path, error.strerror)
        self._keys, self._rows, self._saved = [], [], time.monotonic()


def _read(path: Path, keys: set[bytes]) -> dict[bytes, Features]:
    """The features in a file for some of these keys."""
    with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
        stored = [key.tobytes() for key in file["keys"]]
        if keys.isdisjoint(stored):
            return {}
        rows: Features = file["X"]
        if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != len(stored):
            raise ValueError(path)
        return {key: row for key, row in zip(stored, rows, strict=True) if key in keys}
