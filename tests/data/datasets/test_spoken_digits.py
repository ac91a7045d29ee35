"""Spoken digits: two layouts of the same recordings."""

import shutil
from dataclasses import replace

import pytest
import soundfile
import torch

from afield.data.datasets.spoken_digits import AUDIO, DIGITS, FOLDER, SPEAKERS, spoken_digits
from afield.data.domains import ReadOptions, data_root
from afield.errors import DataError
from tests.files import spoken, tone
from tests.messages import message_of

RATE = 8_000
TAKES = (0, 2, 11)


def pitch(speaker, digit, take):
    return 200.0 + 500 * speaker + 40 * digit + 3 * take


def recordings(root):
    """As published: the number of a take has no leading zero."""
    for s, speaker in enumerate(SPEAKERS):
        for digit in range(10):
            for take in TAKES:
                wave = tone(pitch(s, digit, take), rate=RATE, seconds=0.1)
                file = root / FOLDER / "recordings" / f"{digit}_{speaker}_{take}.wav"
                spoken(file, wave, rate=RATE)
    return root


def folders(root, published):
    for file in (published / FOLDER / "recordings").iterdir():
        digit, speaker, take = file.stem.split("_")
        path = root / FOLDER / speaker / digit / f"{int(take):02}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, path)
    return root


def loaded(root, size=30):
    dataset = replace(spoken_digits, sizes=dict.fromkeys(SPEAKERS, size))
    return dataset.load(ReadOptions(root))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("published"))


@pytest.fixture
def copy(tmp_path, published):
    shutil.copytree(published / FOLDER, tmp_path / FOLDER)
    return tmp_path


def test_speakers_are_domains_and_digits_are_classes(published):
    domains = loaded(published)
    assert tuple(domains) == SPEAKERS
    for domain in domains.values():
        assert domain.y.tolist() == [digit for digit in range(10) for _ in TAKES]
        assert domain.x.shape == (30, *AUDIO.empty_row(0).shape)
        assert domain.test is None


def test_a_sample_is_the_recording_of_its_speaker_digit_and_take(published):
    domains = loaded(published)
    middle = torch.stack([domain.x[:, 0, :, 39].float() for domain in domains.values()])
    # Speakers are 500 Hz apart, digits 40 Hz: the loudest bin rises with both.
    heights = middle.argmax(dim=2)
    assert (heights[1:] > heights[:-1]).all()
    assert (heights[:, -1] > heights[:, 0]).all()
    assert [name.rpartition("_")[2] for name in domains["theo"].names[:3]] == [
        f"{take}.wav" for take in TAKES
    ]


def test_both_layouts_give_the_same_samples_in_the_same_order(tmp_path, published):
    one, other = loaded(published), loaded(folders(tmp_path, published))
    for speaker in SPEAKERS:
        assert torch.equal(one[speaker].x, other[speaker].x)
        assert torch.equal(one[speaker].y, other[speaker].y)


def test_other_speakers_and_files_of_the_system_are_passed_over(copy):
    spoken(copy / FOLDER / "recordings" / "3_jason_0.wav", tone(300.0, rate=RATE), rate=RATE)
    (copy / FOLDER / "recordings" / "._3_theo_0.wav").write_bytes(b"clutter")
    assert sum(len(domain.y) for domain in loaded(copy).values()) == 180


def test_a_recording_of_another_name_is_reported(copy):
    path = spoken(copy / FOLDER / "recordings" / "three.wav", tone(300.0, rate=RATE), rate=RATE)
    with pytest.raises(DataError, match=r"three\.wav: not named DIGIT_SPEAKER_TAKE\.wav"):
        loaded(copy)
    path.unlink()
    assert loaded(copy)


def test_a_missing_and_a_broken_recording_are_reported(copy):
    file = copy / FOLDER / "recordings" / "4_lucas_2.wav"
    file.write_bytes(b"RIFF")
    assert "recordings/4_lucas_2.wav (truncated" in message_of(DataError, loaded, copy)
    file.unlink()
    assert "domain 'lucas' has 29 samples, not 30" in message_of(DataError, loaded, copy)


def test_without_files_the_error_says_what_to_do(tmp_path):
    message = message_of(DataError, spoken_digits.load, ReadOptions(tmp_path))
    assert f"{tmp_path / FOLDER} is missing; create the folder spoken_digits" in message
    assert "https://github.com/Jakobovski/free-spoken-digit-dataset" in message


@pytest.fixture(scope="module")
def real():
    folder = data_root() / FOLDER
    if not folder.is_dir():
        pytest.skip(f"no {folder}; AFIELD_DATA names the folder with {FOLDER}")
    return folder


@pytest.mark.data
@pytest.mark.slow
def test_the_real_speakers_have_500_recordings_each(real):
    for domain in spoken_digits.load(ReadOptions(real.parent)).values():
        assert domain.x.shape == (500, 1, 40, 78)
        assert domain.y.bincount().tolist() == [50] * len(DIGITS)
        assert (domain.x.float().amax(dim=(1, 2, 3)) > -6).all()


@pytest.mark.data
def test_two_percent_of_the_real_recordings_are_longer_than_what_is_kept(real):
    lengths = torch.tensor([soundfile.info(file).duration for file in real.rglob("*.wav")])
    assert len(lengths) == 3_000
    assert (lengths > 0.8).sum() == 61
    assert lengths.median() < 0.42
