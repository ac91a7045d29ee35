"""Log-mel features of a wave: an image of a spoken word, with low frequencies at the top.

    wave of one rate → one length → Hann frames → |FFT|² → mel triangles → log(max(·, floor))

By default there are 40 bins and a window of 25 ms every 10 ms, as Sainath & Parada (2015) use for
keyword spotting. The mel scale is HTK's, 2595 log10(1 + f / 700). As in HTK, the triangles are
linear on that scale, so that neighbors add up to one.

A clip that is too short is padded with silence, half before and half after it. A clip that is too
long is cut to its loudest stretch (the largest sum of magnitudes): a word need not be in the middle
of its recording.

Features are float16, which saves half the memory. They range from -13.8 for silence to 10 for the
loudest tone, and rounding changes them by at most 0.004 (0.02 dB).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from afield.errors import SpecError

# Just above the power that 16-bit rounding noise has in the widest bin: all silence is alike.
POWER_FLOOR = 1e-6
# Limits in seconds and Hz: a broken header that states more would exhaust the memory.
MAX_SECONDS = 600.0
MAX_RATE = 384_000
# The finest mel resolution in use is 256 bins.
MAX_BINS = 1024


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
