import struct

import numpy as np
import pytest
import soundfile

from afield.data.domains import data_root
from afield.data.log_mel import POWER_FLOOR, LogMel
from afield.data.modalities.audio import Audio, read_audio
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


def log_power(features):
    return features[0].astype(np.float64)


@pytest.mark.parametrize("length", [1, 2, 399, 400, 7_999, 15_999, 16_000, 16_001, 50_000])
def test_every_length_gives_the_same_shape(tmp_path, length):
    form = LogMel()
    image = read_audio(saved(tmp_path, noise(length)), form)
    assert image.shape == form.shape == (1, 40, 98)
    assert image.dtype == np.float16
    assert np.isfinite(image).all()


def test_silence_is_allowed_and_all_floor(tmp_path):
    assert (read_audio(saved(tmp_path, np.zeros(RATE)), LogMel()) == SILENCE).all()


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


@pytest.mark.parametrize("suffix", Audio.suffixes)
def test_every_suffix_is_read(tmp_path, suffix):
    image = read_audio(saved(tmp_path, tone(), name=f"a{suffix}"), LogMel())
    expected = LogMel()(tone())
    assert (image[0, :, 20:-20].argmax(axis=0) == expected[0, :, 20:-20].argmax(axis=0)).all()


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_the_depth_of_the_samples_changes_little(tmp_path, subtype):
    image = read_audio(saved(tmp_path, noise(), subtype=subtype), LogMel())
    assert abs(log_power(image) - log_power(LogMel()(noise()))).mean() < 0.05


@pytest.mark.parametrize("suffix", Audio.suffixes)
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


@pytest.mark.parametrize("suffix", Audio.suffixes)
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
    assert (features[:, 0, :, 39:59].max(axis=(1, 2)) > SILENCE + 8).all()
    assert len(np.unique(features, axis=0)) == 60
