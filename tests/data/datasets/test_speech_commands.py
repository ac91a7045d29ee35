"""Speech Commands: speakers are read off the names of the files."""

import shutil

import pytest

from afield.data.datasets.speech_commands import FOLDER, MIN_CLIPS, WORDS, speech_commands
from afield.data.domains import ReadOptions
from afield.data.lookup import find_dataset
from afield.errors import DataError
from tests.files import spoken, tone

ANN, BOB, CID, DAN = "0a1b2c3d", "ffff0000", "12345678", "87654321"


def says(root, speaker, words=WORDS, takes=2):
    for word in words:
        for take in range(takes):
            file = root / FOLDER / word / f"{speaker}_nohash_{take}.wav"
            spoken(file, tone(300.0 + 200 * WORDS.index(word), seconds=0.05))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two speakers who are domains, one who says too little, one who leaves a word out."""
    root = tmp_path_factory.mktemp("data")
    says(root, ANN)
    says(root, BOB, takes=3)
    says(root, CID, takes=1)
    says(root, DAN, words=WORDS[1:], takes=3)
    noise = root / FOLDER / "_background_noise_" / "pink_noise.wav"
    spoken(noise, tone(100.0, seconds=0.05))
    shutil.copytree(root / FOLDER / "yes", root / FOLDER / "bed")
    return root


@pytest.fixture
def copy(tmp_path, made):
    shutil.copytree(made / FOLDER, tmp_path / FOLDER)
    return tmp_path


def test_domains_are_the_speakers_who_said_all_words_often_enough(made):
    dataset = speech_commands(made)
    assert dataset.domains == (ANN, BOB)
    assert dataset.classes == WORDS
    assert MIN_CLIPS == 20


def test_a_domain_has_the_clips_of_its_speaker_by_word_and_take(made):
    domains = speech_commands(made).load(ReadOptions(made))
    assert domains[ANN].y.tolist() == [label for label in range(10) for _ in range(2)]
    assert domains[BOB].y.tolist() == [label for label in range(10) for _ in range(3)]
    assert domains[BOB].names[:3] == [f"yes/{BOB}_nohash_{take}.wav" for take in range(3)]
    for domain in domains.values():
        assert domain.x.shape[1:] == (1, 40, 98)
        # The word's tone is in the middle of the second, and the later words' are higher.
        heights = domain.x[:, 0, :, 48].argmax(dim=1)
        assert (heights[domain.y == 9] > heights[domain.y == 0]).all()


def test_takes_are_ordered_by_number(copy):
    for word in WORDS:
        folder = copy / FOLDER / word
        shutil.copy(folder / f"{ANN}_nohash_1.wav", folder / f"{ANN}_nohash_10.wav")
    names = speech_commands(copy).load(ReadOptions(copy))[ANN].names
    assert [name.rpartition("_")[2] for name in names[:3]] == ["0.wav", "1.wav", "10.wav"]


def test_it_is_known_by_the_names_of_its_clips(copy):
    before = find_dataset("speech_commands", copy)
    assert before.fingerprint == speech_commands(copy).fingerprint
    assert len(before.fingerprint) == 16
    (copy / FOLDER / "go" / f"{BOB}_nohash_2.wav").unlink()
    assert find_dataset("speech_commands", copy).fingerprint != before.fingerprint


def test_without_files_it_is_declared_and_says_what_to_do(tmp_path):
    dataset = speech_commands(tmp_path)
    assert dataset.domains == ()
    assert dataset.missing_files(tmp_path) == [tmp_path / FOLDER]
    with pytest.raises(DataError, match="`afield data get speech_commands` downloads it"):
        dataset.load(ReadOptions(tmp_path))


def test_too_few_speakers_are_reported(copy):
    for file in (copy / FOLDER).glob(f"*/{BOB}_*"):
        file.unlink()
    with pytest.raises(DataError, match=r"1 speaker\(s\) with all ten words and 20 clips"):
        speech_commands(copy)


def test_a_clip_of_another_name_is_reported(copy):
    spoken(copy / FOLDER / "go" / "mine.wav", tone(300.0, seconds=0.05))
    with pytest.raises(DataError, match=r"mine\.wav: not named SPEAKER_nohash_TAKE\.wav"):
        speech_commands(copy)


def test_a_broken_clip_is_named_or_left_out(copy):
    (copy / FOLDER / "go" / f"{ANN}_nohash_0.wav").write_bytes(b"RIFF")
    dataset = speech_commands(copy)
    with pytest.raises(DataError, match=rf"go/{ANN}_nohash_0\.wav \(truncated"):
        dataset.load(ReadOptions(copy))
    domains = dataset.load(ReadOptions(copy, skip_broken=True))
    assert len(domains[ANN].y) == 19
    assert list(domains[ANN].broken) == [f"go/{ANN}_nohash_0.wav"]
