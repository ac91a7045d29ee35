import struct

import numpy as np
import pytest
import soundfile

from afield.data.domains import data_root
from afield.data.modalities.audio import (
    AUDIO_SUFFIXES,
    POWER_FLOOR,
    LogMel,
    _mel_triangles,
    read_audio,
)
from afield.errors import SpecError
from tests.messages import message_of

RATE = 16_000
SILENCE = np.float16(np.log(POWER_FLOOR))


def tone(hertz=1000.0, *, rate=RATE, seconds=1.0, loudness=0.3):
    time = np.arange(round(rate * seconds)) / rate
    return (loudness * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def noise(length=RATE, seed=0):
    return (0.1 * np.random.default_rng(seed).standard_normal(length)).astype(np.float32)


def saved(folder, wave, *, name="a.wav", rate=RATE, **settings):
    soundfile.write(folder / name, wave, rate, **settings)
    return folder / name


def reason(path):
    message = message_of(ValueError, read_audio, path, LogMel())
    assert len(message) < 100
    return message


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
    found = form(wave)
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
            assert found[0, k, frame] == pytest.approx(np.log(weights @ power), abs=0.005)


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


@pytest.mark.parametrize("length", [1, 2, 399, 400, 7_999, 15_999, 16_000, 16_001, 50_000])
def test_every_length_gives_the_same_shape(tmp_path, length):
    form = LogMel()
    found = read_audio(saved(tmp_path, noise(length)), form)
    assert found.shape == form.shape == (1, 40, 98)
    assert found.dtype == np.float16
    assert np.isfinite(found).all()


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


def test_silence_is_allowed_and_all_floor(tmp_path):
    assert (read_audio(saved(tmp_path, np.zeros(RATE)), LogMel()) == SILENCE).all()


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


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_another_rate_gives_nearly_the_same_features(tmp_path, rate):
    known = LogMel()(tone())
    copy = read_audio(saved(tmp_path, tone(rate=rate), rate=rate), LogMel())
    # Not at the ends, where a filter rings, and not where nothing but rounding is heard.
    heard = known[0, :, 3:-3] > known.max() - 10
    assert heard.any(axis=0).all()
    difference = log_power(copy)[:, 3:-3] - log_power(known)[:, 3:-3]
    assert abs(difference[heard]).max() < 0.05


def test_stereo_is_heard_as_the_mean_of_its_channels(tmp_path):
    left, right = noise(seed=1), tone()
    stereo = saved(tmp_path, np.stack([left, right], axis=1), name="two.wav", subtype="FLOAT")
    mono = saved(tmp_path, (left + right) / 2, name="one.wav", subtype="FLOAT")
    assert np.array_equal(read_audio(stereo, LogMel()), read_audio(mono, LogMel()))


@pytest.mark.parametrize("suffix", AUDIO_SUFFIXES)
def test_every_suffix_is_read(tmp_path, suffix):
    found = read_audio(saved(tmp_path, tone(), name=f"a{suffix}"), LogMel())
    expected = LogMel()(tone())
    assert (found[0, :, 20:-20].argmax(axis=0) == expected[0, :, 20:-20].argmax(axis=0)).all()


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_the_depth_of_the_samples_changes_little(tmp_path, subtype):
    found = read_audio(saved(tmp_path, noise(), subtype=subtype), LogMel())
    assert abs(log_power(found) - log_power(LogMel()(noise()))).mean() < 0.05


@pytest.mark.parametrize("suffix", AUDIO_SUFFIXES)
def test_a_truncated_file_is_refused(tmp_path, suffix):
    file = saved(tmp_path, noise(20 * RATE), name=f"a{suffix}")
    whole = file.read_bytes()
    lengths = [int(len(whole) * share) for share in (0.003, 0.1, 0.5, 0.9, 0.98)]
    # A packed file may not lack a single byte.
    for length in [*lengths, len(whole) - 1] if suffix in (".flac", ".ogg") else lengths:
        file.write_bytes(whole[:length])
        assert reason(file).startswith(("truncated", "not readable as audio")), length


def test_an_ogg_that_ends_after_a_whole_page_is_refused(tmp_path):
    file = saved(tmp_path, noise(20 * RATE), name="a.ogg")
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b"OggS")])
    assert reason(file) == "truncated: no last page"


def test_an_ogg_whose_last_page_is_empty_is_whole(tmp_path):
    file = saved(tmp_path, noise(20 * RATE), name="a.ogg")
    whole = bytearray(file.read_bytes())
    last = whole.rindex(b"OggS")
    page = bytearray(whole[last : last + 26]) + b"\0"
    file.write_bytes(whole + page)
    assert read_audio(file, LogMel()).shape == (1, 40, 98)


@pytest.mark.parametrize("order", ["FILE", "BIG"])
def test_a_wav_that_lacks_one_byte_says_how_much_there_is(tmp_path, order):
    file = saved(tmp_path, noise(1_000), endian=order)
    file.write_bytes(file.read_bytes()[:-1])
    assert reason(file) == "truncated: 1999 of 2000 bytes of audio"


def test_chunks_before_and_after_the_samples_are_passed_over(tmp_path):
    file = saved(tmp_path, noise(1_000))
    whole = file.read_bytes()
    note = b"note" + struct.pack("<I", 3) + b"hi!\0"
    file.write_bytes(whole[:12] + note + whole[12:] + note)
    assert read_audio(file, LogMel()).shape == (1, 40, 98)


def test_a_wav_of_unknown_length_is_read_to_its_end(tmp_path):
    file = saved(tmp_path, noise())
    expected, whole = read_audio(file, LogMel()), bytearray(file.read_bytes())
    for place in (4, whole.index(b"data") + 4):
        whole[place : place + 4] = b"\xff" * 4
    file.write_bytes(whole)
    assert np.array_equal(read_audio(file, LogMel()), expected)


@pytest.mark.parametrize("suffix", AUDIO_SUFFIXES)
def test_an_empty_file_and_a_text_named_like_a_sound_are_refused(tmp_path, suffix):
    file = tmp_path / f"a{suffix}"
    file.touch()
    assert reason(file) == "empty file"
    file.write_text("not a sound\n" * 100)
    assert reason(file).startswith("not readable as audio: ")


def test_a_file_without_samples_is_refused(tmp_path):
    assert reason(saved(tmp_path, noise(0))) == "no samples"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(tmp_path, value):
    wave = noise()
    wave[7] = value
    assert reason(saved(tmp_path, wave, subtype="FLOAT")).startswith("NaN or infinity")


def test_very_large_samples_are_still_numbers(tmp_path):
    file = saved(tmp_path, 1e37 * noise(), subtype="FLOAT")
    assert np.isfinite(read_audio(file, LogMel())).all()


@pytest.mark.parametrize("rate", [1, 2**31 - 1])
def test_a_header_with_an_absurd_rate_does_not_fill_the_memory(tmp_path, rate):
    file = saved(tmp_path, noise())
    whole = bytearray(file.read_bytes())
    whole[24:28] = struct.pack("<I", rate)
    file.write_bytes(whole)
    assert f"at {rate} Hz" in reason(file)


def test_a_missing_file_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_audio(tmp_path / "none.wav", LogMel())


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
        # Absurd settings are refused before memory is allocated.
        ({"rate": 10**9}, "the limits are"),
        ({"bins": 10**9}, "the limits are"),
        ({"seconds": float("inf")}, "the limits are"),
        ({"seconds": float("nan")}, "the limits are"),
    ],
)
def test_a_form_that_cannot_be_is_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        LogMel(**settings)


@pytest.mark.data
def test_real_words_of_every_speaker_are_read():
    folder = data_root() / "spoken_digits"
    if not folder.is_dir():
        pytest.skip(f"no {folder}; AFIELD_DATA names the folder with spoken_digits")
    files = sorted(folder.glob("*/*/00.wav"))
    assert len(files) == 60
    features = np.stack([read_audio(file, LogMel(rate=8_000)) for file in files]).astype(np.float32)
    assert features.shape == (60, 1, 40, 98)
    # Something is said in the middle of every clip, and no two clips are alike.
    middle = features[:, 0, :, 39:59]
    assert (middle.max(axis=(1, 2)) > SILENCE + 8).all()
    assert len(np.unique(features, axis=0)) == 60
