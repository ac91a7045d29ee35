"""Audio files as log-mel features: an image of a spoken word, with low frequencies at the top.

    wave → mono → one rate → one length → Hann frames → |FFT|² → mel triangles → log(max(·, floor))

By default there are 40 bins and a window of 25 ms every 10 ms, as Sainath & Parada (2015) use for
keyword spotting. The mel scale is HTK's, 2595 log10(1 + f / 700). As in HTK, the triangles are
linear on that scale, so that neighbors add up to one.

A clip that is too short is padded with silence, half before and half after it. A clip that is too
long is cut to its loudest stretch (the largest sum of magnitudes): a word need not be in the middle
of its recording.

Features are float16, which saves half the memory. They range from -13.8 for silence to 10 for the
loudest tone, and rounding changes them by at most 0.004 (0.02 dB).
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

from afield.errors import SpecError
from afield.files import check_regular_file

__all__ = ["AUDIO_SUFFIXES", "LogMel", "read_audio"]

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
# Just above the power that 16-bit rounding noise has in the widest bin: all silence is alike.
POWER_FLOOR = 1e-6
# Limits in seconds and Hz: a broken header that states more would exhaust the memory.
MAX_SECONDS = 600.0
MAX_RATE = 384_000
# The finest mel resolution in use is 256 bins.
MAX_BINS = 1024
# Samples in an MPEG frame. The length of an MP3 without a table of contents is an estimate.
MPEG_FRAME = 1152
# Length in a WAV header that was written to a pipe, before the length was known.
UNKNOWN_LENGTH = 0xFFFFFFFF
MAX_OGG_PAGE_BYTES = 65_307


@dataclass(frozen=True)
class LogMel:
    """Log-mel transform of all audio of a dataset; lengths are in seconds, the rate in Hz."""

    rate: int = 16_000
    seconds: float = 1.0
    bins: int = 40
    window: float = 0.025
    hop: float = 0.010

    def __post_init__(self) -> None:
        lengths = (self.seconds, self.window, self.hop)
        # Checked first: everything below allocates memory in proportion to these settings.
        if self.rate > MAX_RATE or self.bins > MAX_BINS or not max(lengths) <= MAX_SECONDS:
            raise SpecError(
                f"{self}: the limits are {MAX_RATE} Hz, {MAX_BINS} bins and {MAX_SECONDS:.0f} s"
            )
        if self.rate < 1 or self.bins < 1 or self._samples(self.hop) < 1:
            raise SpecError(f"{self}: rate, bins and hop must be at least 1 (Hz, bin, sample)")
        if not 2 <= self._samples(self.window) <= self._samples(self.seconds):
            raise SpecError(f"{self}: the window must be from two samples to `seconds` long")
        if not self._triangles().any(axis=1).all():
            raise SpecError(
                f"{self}: bins are finer than the window resolves; use fewer, or a longer window"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the features: channels (one), bins, frames."""
        spare = self._samples(self.seconds) - self._samples(self.window)
        return 1, self.bins, 1 + spare // self._samples(self.hop)

    def __call__(self, wave: NDArray[np.float32]) -> NDArray[np.float16]:
        """Compute the features of a wave of this rate and any length."""
        # Importing scipy.signal takes half a second, which runs on images should not pay.
        from scipy.fft import rfft
        from scipy.signal import get_window

        clip = _pad_or_cut(wave, self._samples(self.seconds))
        width = self._samples(self.window)
        frames = np.lib.stride_tricks.sliding_window_view(clip, width)[:: self._samples(self.hop)]
        spectrum = rfft(frames * get_window("hann", width), n=self._fft_length)
        power = spectrum.real**2 + spectrum.imag**2
        mel = np.log(np.maximum(np.einsum("bf,tf->bt", self._triangles(), power), POWER_FLOOR))
        return mel[None].astype(np.float16)

    @property
    def _fft_length(self) -> int:
        """Length of the Fourier transform: the window rounded up to a power of two."""
        return 1 << (self._samples(self.window) - 1).bit_length()

    def _samples(self, seconds: float) -> int:
        return round(seconds * self.rate)

    def _triangles(self) -> NDArray[np.float64]:
        return _mel_triangles(rate=self.rate, bins=self.bins, fft_length=self._fft_length)


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


@lru_cache(maxsize=8)
def _mel_triangles(*, rate: int, bins: int, fft_length: int) -> NDArray[np.float64]:
    """Weight of each frequency of the Fourier transform in each bin."""
    hertz = np.arange(fft_length // 2 + 1) * (rate / fft_length)
    mel = 2595 * np.log10(1 + hertz / 700)
    step = mel[-1] / (bins + 1)
    centers = step * np.arange(1, bins + 1)
    weights: NDArray[np.float64] = np.maximum(0, 1 - abs(mel - centers[:, None]) / step)
    weights.setflags(write=False)
    return weights


def _pad_or_cut(wave: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Pad a wave with silence, or cut it to its loudest stretch."""
    spare = length - len(wave)
    if spare >= 0:
        return np.pad(wave, (spare // 2, spare - spare // 2))
    loudness = np.cumsum(np.pad(abs(wave), (1, 0)), dtype=np.float64)
    start = int(np.argmax(loudness[length:] - loudness[:-length]))
    return wave[start : start + length]


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
