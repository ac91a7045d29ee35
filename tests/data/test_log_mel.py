"""The features of a wave follow from their definition."""

import numpy as np
import pytest

from afield.data.log_mel import POWER_FLOOR, LogMel, _mel_triangles
from afield.errors import SpecError

RATE = 16_000
SILENCE = np.float16(np.log(POWER_FLOOR))


def tone(hertz=1000.0, *, rate=RATE, seconds=1.0, loudness=0.3):
    time = np.arange(round(rate * seconds)) / rate
    return (loudness * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def noise(length=RATE, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(length)).astype(np.float32)


def mel(hertz):
    return 2595 * np.log10(1 + np.asarray(hertz) / 700)


def hertz(mel):
    return 700 * (10 ** (np.asarray(mel) / 2595) - 1)


def log_power(features):
    return features[0].astype(np.float64)


@pytest.mark.parametrize("bin_number", [3, 10, 20, 30, 37])
@pytest.mark.parametrize("rate", [8_000, 16_000])
def test_a_pure_tone_lands_in_its_bin(bin_number, rate):
    centre = hertz(mel(rate / 2) * (bin_number + 1) / 41)
    features = log_power(LogMel(rate=rate)(tone(centre, rate=rate)))
    assert (features.argmax(axis=0) == bin_number).all()


def test_the_loudest_tone_is_as_loud_as_the_transform_of_a_hann_window_makes_it():
    loudest = log_power(LogMel()(tone(hertz(mel(8000) * 31 / 41), loudness=1.0))).max()
    # Parseval: a quarter of transform length times the window's sum of squares (3/8 a sample).
    assert loudest == pytest.approx(np.log(512 * 400 * 3 / 8 / 4), abs=0.15)


def test_features_are_what_the_definition_gives():
    wave, form = noise(), LogMel()
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    edges = hertz(np.linspace(0, mel(8000), 42))
    result = form(wave)
    for frame in (0, 41, 97):
        piece = np.zeros(512)
        piece[:400] = wave[frame * 160 : frame * 160 + 400] * window
        angles = np.outer(np.arange(257), np.arange(512)) * (2 * np.pi / 512)
        power = (np.cos(angles) @ piece) ** 2 + (np.sin(angles) @ piece) ** 2
        for k in range(40):
            low, centre, high = mel(edges[k : k + 3])
            weights = [
                max(0.0, min((m - low) / (centre - low), (high - m) / (high - centre)))
                for m in mel(np.arange(257) * 31.25)
            ]
            assert result[0, k, frame] == pytest.approx(np.log(weights @ power), abs=0.005)


@pytest.mark.parametrize(("rate", "bins"), [(16_000, 40), (8_000, 40), (16_000, 80), (44_100, 64)])
def test_the_mel_bins_are_triangles_that_meet(rate, bins):
    weights = _mel_triangles(rate=rate, bins=bins, fft_length=512)
    at = np.arange(257) * rate / 512
    edges = hertz(np.linspace(0, mel(rate / 2), bins + 2))
    assert weights.shape == (bins, 257)
    assert weights.min() == 0
    assert weights.max() <= 1
    for k, row in enumerate(weights):
        inside = (at > edges[k] + 1e-6) & (at < edges[k + 2] - 1e-6)
        assert ((row > 1e-9) == inside).all()
        assert (np.diff(row[inside & (at <= edges[k + 1])]) > 0).all()
        assert (np.diff(row[inside & (at >= edges[k + 1])]) < 0).all()
    between = (at >= edges[1]) & (at <= edges[-2])
    np.testing.assert_allclose(weights.sum(axis=0)[between], 1.0)
    np.testing.assert_allclose(weights[:, [0, -1]], 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (LogMel(seconds=2.0), (1, 40, 198)),
        (LogMel(bins=20, hop=0.02), (1, 20, 49)),
        (LogMel(rate=8_000, window=0.032), (1, 40, 97)),
        (LogMel(seconds=0.025), (1, 40, 1)),
    ],
)
def test_the_form_says_which_shape_its_features_have(form, shape):
    assert form.shape == form(noise()).shape == shape


def test_ten_times_louder_is_a_constant_more():
    wave = noise() / 10
    louder, before = (log_power(LogMel()(x)) for x in (10 * wave, wave))
    np.testing.assert_allclose(louder - before, np.log(100), atol=0.008)


def test_rounding_to_half_precision_is_off_by_less_than_a_250th():
    waves = [noise(), tone(), tone(loudness=1e-3), noise() * np.linspace(0, 1, RATE, dtype="f4")]
    for wave in waves:
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
        frames = np.stack([wave[i : i + 400] for i in range(0, RATE - 399, 160)]) * window
        power = abs(np.fft.rfft(frames, 512)) ** 2
        exact = _mel_triangles(rate=RATE, bins=40, fft_length=512) @ power.T
        exact = np.log(np.maximum(exact, POWER_FLOOR))
        assert abs(log_power(LogMel()(wave)) - exact).max() < 0.004


def test_the_rounding_of_16_bits_is_no_louder_than_silence():
    rounding = np.random.default_rng(0).uniform(-0.5, 0.5, RATE).astype(np.float32) / 32768
    assert (LogMel()(rounding) == SILENCE).all()


def test_a_short_sound_lies_in_the_middle_of_silence():
    for length in (4_000, 4_001):
        wave = noise(length)
        spare = RATE - length
        surrounded = np.pad(wave, (spare // 2, spare - spare // 2))
        assert np.array_equal(LogMel()(wave), LogMel()(surrounded))
    heard = (LogMel()(noise(4_000))[0] > SILENCE).any(axis=0)
    # The frames that touch samples 6,000 to 9,999.
    assert np.flatnonzero(heard).tolist() == list(range(36, 63))


def test_of_a_long_recording_the_loudest_second_is_kept():
    word = noise(RATE)
    for before in (0, 3_333, 40_000):
        wave = 1e-4 * noise(56_000, seed=1)
        wave[before : before + RATE] = word
        assert np.array_equal(LogMel()(wave), LogMel()(word))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0}, "rate"),
        ({"bins": 0}, "bins"),
        ({"hop": 0.0}, "hop"),
        ({"hop": -0.01}, "hop"),
        ({"window": 0.0}, "window"),
        ({"seconds": 0.02}, "window"),
        ({"seconds": -1.0}, "window"),
        ({"bins": 200}, "bins are finer than the window resolves"),
    ],
)
def test_a_form_that_cannot_be_is_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        LogMel(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"rate": 10**9}, {"bins": 10**9}, {"seconds": float("inf")}, {"seconds": float("nan")}],
)
def test_absurd_settings_are_refused_before_memory_is_allocated(settings):
    with pytest.raises(SpecError, match="the limits are"):
        LogMel(**settings)
