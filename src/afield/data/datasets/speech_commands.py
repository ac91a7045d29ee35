"""Speech Commands: ten spoken words by many speakers; the speakers are the domains.

Warden, Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition, 2018, version 0.02,
105,829 clips of 35 words. The classes are its ten commands: yes, no, up, down, left, right, on,
off, stop, go. Domains are the speakers who said every one of them and have at least 20 clips of
them (of fewer, next to nothing is left to validate on); that is read off the names of the files.
Clips are a second long at most, and read as log-mel features of 40 bins × 98 frames. There are many
domains: hold some of them out (``--hold-out``) instead of leaving each out once.

Shankar et al. (Generalizing Across Domains via Cross-Gradient Training, ICLR 2018) have 12 commands
by 1,888 speakers of the first version, which fits these ten with its classes for silence and for
all other words; these two are left out here. Its lists of test and validation files are not used:
they divide the speakers, and so do we.

Under the data root: ``SpeechCommands/speech_commands_v0.02/WORD/SPEAKER_nohash_TAKE.wav``, as
torchaudio unpacks it. Licence: CC BY 4.0.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from afield.data.domains import Domain, DomainSet, Download, ReadOptions, Training
from afield.data.downloads import Archive
from afield.data.modality import AUDIO
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.errors import DataError
from afield.seeds import derive_seed

__all__ = ["speech_commands"]

FOLDER = "SpeechCommands/speech_commands_v0.02"
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
LEAST = 20
CLIP = re.compile(r"([0-9a-f]+)_nohash_(\d+)\.wav")
SOURCE = Download(
    archives=(
        Archive(
            url="http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
            checksum="sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
            size=2_428_923_189,
            folder=FOLDER,
        ),
    ),
    license="CC BY 4.0",
)


def speech_commands(root: Path) -> DomainSet:
    """The dataset for this root of all data."""
    folder = root.resolve() / FOLDER
    clips = _speakers(folder) if folder.is_dir() else {}
    names = [entry.file.name for entries in clips.values() for entry in entries]
    return DomainSet(
        name="speech_commands",
        domains=tuple(clips),
        classes=WORDS,
        reader=partial(_read, clips),
        training=Training(steps=3000, batch=8, domains_per_step=16),
        modality=AUDIO,
        fingerprint=f"{derive_seed(*names):016x}" if names else "",
        needs=(FOLDER,),
        download=SOURCE,
    )


def _read(clips: Mapping[str, list[LabeledFile]], reading: ReadOptions) -> dict[str, Domain]:
    return read_files(reading.root.resolve() / FOLDER, clips, AUDIO, reading)


def _speakers(folder: Path) -> dict[str, list[LabeledFile]]:
    """The clips of every speaker who has enough of them, by word and take."""
    clips: dict[str, list[LabeledFile]] = {}
    for label, word in enumerate(WORDS):
        for file in (folder / word).glob("[!.]*.wav"):
            named = CLIP.fullmatch(file.name)
            if named is None:
                raise DataError(f"{file}: not called SPEAKER_nohash_TAKE.wav; move it elsewhere")
            clips.setdefault(named[1], []).append(LabeledFile(file, label))
    found = {
        name: sorted(clips[name], key=_by_word_and_take)
        for name in sorted(clips)
        if len(clips[name]) >= LEAST and len({clip.label for clip in clips[name]}) == len(WORDS)
    }
    if len(found) < 2:
        told = f"{len(found)} speaker(s) with {LEAST} clips of all ten words, two are the least"
        raise DataError(f"{folder}: {told}; remove the folder and get it again")
    return found


def _by_word_and_take(clip: LabeledFile) -> tuple[int, int]:
    return clip.label, int(clip.file.stem.rpartition("_")[2])
