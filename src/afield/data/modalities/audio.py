"""Audio files, as log-mel features of one rate and length.

file → wave → mono → rate of the features → `LogMel`
"""

import struct
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray
from torch import Tensor

from afield.data.log_mel import MAX_RATE, MAX_SECONDS, LogMel
from afield.data.modality import FileModality
from afield.data.training_settings import Training
from afield.files import check_regular_file

__all__ = ["Audio"]

# Samples in an MPEG frame. The length of an MP3 without a table of contents is an estimate.
MPEG_FRAME = 1152
# Length in a WAV header that was written to a pipe, before the length was known.
UNKNOWN_LENGTH = 0xFFFFFFFF
MAX_OGG_PAGE_BYTES = 65_307
# A step with samples of all of a dozen speakers would only take longer.
AUDIO_TRAINING = Training(
    steps=600, every=120, batch=16, backbone="small:audio", domains_per_step=4
)


@dataclass(frozen=True)
class Audio(FileModality):
    """Audio files, as log-mel features."""

    mel: LogMel = field(default_factory=LogMel)

    name = "sounds"
    noun = "audio file"
    suffixes = (".wav", ".flac", ".ogg", ".mp3")
    task = "audio-classification"
    example = "new/*.wav"
    python_example = "new/1.wav"
    training = AUDIO_TRAINING

    @property
    def settings(self) -> dict[str, Any]:
        """The log-mel transform."""
        return {"mel": self.mel}

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """The mean level of the log-mel features."""
        return {"level": x.flatten(1).float().mean(dim=1)}

    def file_statistics(self, file: Path) -> dict[str, float]:
        """The length in seconds."""
        try:
            wave, rate = _read_wave(file)
        except (OSError, ValueError):
            return {}
        return {"seconds": len(wave) / rate}

    def upright(self, x: Tensor) -> Tensor:
        """Put low frequencies at the bottom."""
        return x.flip(-2)

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode an audio file to its features; `side` does not matter."""
        return read_audio(file, self.mel)

    def cache_form(self, side: int) -> str:
        """Name of features of this transform."""
        return f"sounds as {self.mel}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Half-precision features, 1 × bins × frames."""
        return np.empty(self.mel.shape, np.float16)


def read_audio(path: Path, mel: LogMel) -> NDArray[np.float16]:
    """Read an audio file as features; a ValueError says what is wrong with a broken file."""
    check_regular_file(path)
    _check_container(path)
    wave, rate = _read_wave(path)
    if not len(wave):
        raise ValueError("no samples")
    if not np.isfinite(wave).all():
        raise ValueError("NaN or infinity among the samples")
    if rate != mel.rate:
        common = gcd(rate, mel.rate)
        from scipy.signal import resample_poly

        wave = resample_poly(wave, mel.rate // common, rate // common)
    return mel(wave)


def _read_wave(path: Path) -> tuple[NDArray[np.float32], int]:
    """Read the samples, with channels averaged, and their rate."""
    try:
        with soundfile.SoundFile(path) as file:
            rate, expected = file.samplerate, file.frames
            if rate > MAX_RATE or expected > MAX_SECONDS * rate:
                raise ValueError(
                    f"{expected} samples at {rate} Hz; the limits are {MAX_SECONDS:.0f} s "
                    f"and {MAX_RATE} Hz"
                )
            samples: NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"not readable as audio: {error.error_string.rstrip('.')}") from None
    if len(samples) + MPEG_FRAME < expected:
        raise ValueError(f"truncated: {len(samples)} of {expected} samples")
    return samples.mean(axis=1), rate


def _check_container(path: Path) -> None:
    """Reject truncated files that libsndfile would read without an error."""
    with path.open("rb") as file:
        magic, size = file.read(4), path.stat().st_size
        if not size:
            raise ValueError("empty file")
        if magic in (b"RIFF", b"RIFX"):
            _check_wav(file, size, "<" if magic == b"RIFF" else ">")
        elif magic == b"OggS":
            file.seek(max(0, size - MAX_OGG_PAGE_BYTES))
            _check_ogg(file.read())


def _check_wav(file: BinaryIO, size: int, order: str) -> None:
    """Find the data chunk and check that the file contains all of it."""
    position = 12
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack(f"{order}4sI", file.read(8))
        position += 8
        if name == b"data":
            if length != UNKNOWN_LENGTH and position + length > size:
                raise ValueError(f"truncated: {size - position} of {length} bytes of audio")
            return
        position += length + length % 2
    raise ValueError("truncated: no data chunk")


def _check_ogg(tail: bytes) -> None:
    """Check that the last page is complete and marked as the last."""
    page = tail[tail.rfind(b"OggS") :]
    count = page[26] if len(page) > 26 else 0
    table = page[27 : 27 + count]
    if len(page) < 27 or len(page) < 27 + count + sum(table) or not page[5] & 4:
        raise ValueError("truncated: no last page")
