"""From a sound file to log-mel features: a picture of a spoken word, low sounds at the top.

    wave → mono → one rate → one length → Hann frames → |FFT|² → mel triangles → log(max(·, floor))

By default 40 bins, a window of 25 ms every 10 ms, as Sainath & Parada (2015) hear words. The mel
scale is HTK's, 2595 log10(1 + f / 700), and as there the triangles are straight on that scale, so
that neighbours add up to one. A clip that is too short gets silence before and after it in equal
parts. Of one that is too long, the loudest stretch (largest sum of magnitudes) is kept: a word need
not be in the middle of its recording.

Features are float16: from -13.8 for silence to 10 for the loudest tone, rounding is off by 0.004 at
most (0.02 dB), and half the memory is saved.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.fft import rfft
from scipy.signal import get_window, resample_poly

from afield.errors import SpecError

__all__ = ["AUDIO_SUFFIXES", "LogMel", "read_audio"]

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
# Just above what the rounding to 16 bits leaves in the widest bin, so all silences are alike.
POWER_FLOOR = 1e-6
# Seconds and Hz: a broken header that promises more would have us fill the memory.
MAX_SECONDS = 600.0
MAX_RATE = 384_000
# Samples in an MPEG frame: the length of an MP3 without a table of contents is an estimate.
MPEG_FRAME = 1152
# What a program that writes to a pipe puts for a length that it does not know.
UNKNOWN_LENGTH = 0xFFFFFFFF
MAX_OGG_PAGE_BYTES = 65_307


@dataclass(frozen=True)
class LogMel:
    """The form that all sounds of a dataset are brought into; lengths in seconds, rate in Hz."""

    rate: int = 16_000
    seconds: float = 1.0
    bins: int = 40
    window: float = 0.025
    hop: float = 0.010

    def __post_init__(self) -> None:
        if self.rate < 1 or self.bins < 1 or self._samples(self.hop) < 1:
            raise SpecError(f"{self}: rate, bins and hop must be positive, the hop one sample long")
        if not 2 <= self._samples(self.window) <= self._samples(self.seconds):
            raise SpecError(f"{self}: no window fits; it must be two samples to `seconds` long")
        if not self._triangles().any(axis=1).all():
            raise SpecError(f"{self}: bins narrower than the window resolves; use fewer, or longer")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels (one), bins, frames."""
        room = self._samples(self.seconds) - self._samples(self.window)
        return 1, self.bins, 1 + room // self._samples(self.hop)

    def __call__(self, wave: NDArray[np.float32]) -> NDArray[np.float16]:
        """Features of a wave of this rate and any length."""
        fitted = _fitted(wave, self._samples(self.seconds))
        width = self._samples(self.window)
        frames = np.lib.stride_tricks.sliding_window_view(fitted, width)[:: self._samples(self.hop)]
        spectrum = rfft(frames * get_window("hann", width), n=self._transform)
        power = spectrum.real**2 + spectrum.imag**2
        mel = np.log(np.maximum(np.einsum("bf,tf->bt", self._triangles(), power), POWER_FLOOR))
        return mel[None].astype(np.float16)

    @property
    def _transform(self) -> int:
        """Length of the transform: the power of two that the window fits into."""
        return 1 << (self._samples(self.window) - 1).bit_length()

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.rate)

    def _triangles(self) -> NDArray[np.float64]:
        return _mel_triangles(rate=self.rate, bins=self.bins, transform=self._transform)


def read_audio(path: Path, mel: LogMel) -> NDArray[np.float16]:
    """Features of a sound file; a ValueError says in short what is wrong with a broken one."""
    _check_container(path)
    wave, rate = _read(path)
    if not len(wave):
        raise ValueError("no samples")
    if not np.isfinite(wave).all():
        raise ValueError("NaN or infinity among the samples")
    if rate != mel.rate:
        common = gcd(rate, mel.rate)
        wave = resample_poly(wave, mel.rate // common, rate // common)
    return mel(wave)


@lru_cache(maxsize=8)
def _mel_triangles(*, rate: int, bins: int, transform: int) -> NDArray[np.float64]:
    """Weights of the frequencies of a transform in each bin."""
    hertz = np.arange(transform // 2 + 1) * (rate / transform)
    mel = 2595 * np.log10(1 + hertz / 700)
    step = mel[-1] / (bins + 1)
    centres = step * np.arange(1, bins + 1)
    weights: NDArray[np.float64] = np.maximum(0, 1 - abs(mel - centres[:, None]) / step)
    weights.setflags(write=False)
    return weights


def _fitted(wave: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """The wave in silence, or its loudest stretch."""
    spare = length - len(wave)
    if spare >= 0:
        return np.pad(wave, (spare // 2, spare - spare // 2))
    heard = np.cumsum(np.pad(abs(wave), (1, 0)), dtype=np.float64)
    start = int(np.argmax(heard[length:] - heard[:-length]))
    return wave[start : start + length]


def _read(path: Path) -> tuple[NDArray[np.float32], int]:
    """Samples, channels mixed, and their rate."""
    try:
        with soundfile.SoundFile(path) as file:
            rate, promised = file.samplerate, file.frames
            if rate > MAX_RATE or promised > MAX_SECONDS * rate:
                raise ValueError(
                    f"{promised} samples at {rate} Hz; {MAX_SECONDS:.0f} s are the most"
                )
            samples: NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"no readable sound: {error.error_string.rstrip('.')}") from None
    if len(samples) + MPEG_FRAME < promised:
        raise ValueError(f"truncated: {len(samples)} of {promised} samples")
    return samples.mean(axis=1), rate


def _check_container(path: Path) -> None:
    """Refuse what libsndfile would read to its early end without a word."""
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
    """Find the samples; the file must be as long as they are said to be."""
    place = 12
    while place + 8 <= size:
        file.seek(place)
        name, length = struct.unpack(f"{order}4sI", file.read(8))
        place += 8
        if name == b"data":
            if length != UNKNOWN_LENGTH and place + length > size:
                raise ValueError(f"truncated: {size - place} of {length} bytes of sound")
            return
        place += length + length % 2
    raise ValueError("truncated: ends before its samples")


def _check_ogg(tail: bytes) -> None:
    """The last page must be whole, and say that it is the last."""
    page = tail[tail.rfind(b"OggS") :]
    count = page[26] if len(page) > 26 else 0
    table = page[27 : 27 + count]
    if len(page) < 27 or len(page) < 27 + count + sum(table) or not page[5] & 4:
        raise ValueError("truncated: no last page")
