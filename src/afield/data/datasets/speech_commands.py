"""Speech Commands: ten spoken words by many speakers; the speakers are the domains.

Warden, Speech Commands: A Dataset for Limited-Vocabulary Speech Recognition, 2018, version 0.02,
105,829 clips of 35 words. The classes are its ten commands: yes, no, up, down, left, right, on,
off, stop, go. The domains are the speakers who said all ten and have at least 20 clips of them
(with fewer, almost none would remain for validation); the names of the files tell. Clips are at
most one second long, and are read as log-mel features of 40 bins × 98 frames. There are many
domains, so hold out a share of them (``--hold-out``) instead of each in turn.

Shankar et al. (Generalizing Across Domains via Cross-Gradient Training, ICLR 2018) use 12 commands
by 1,888 speakers of the first version. Twelve matches these ten words and the dataset's classes for
silence and for all other words, which are left out here. Its lists of test and validation files are
not used: they split by speaker, as the domains do.

In the data root: ``SpeechCommands/speech_commands_v0.02/WORD/SPEAKER_nohash_TAKE.wav``, as unpacked
by torchaudio. License: CC BY 4.0.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from afield.data.domains import Domain, DomainSet, Download, Published, ReadOptions
from afield.data.downloads import Archive
from afield.data.modalities.audio import Audio
from afield.data.sources.folders import LabeledFile, read_files
from afield.data.training_settings import Training
from afield.errors import DataError
from afield.seeds import derive_seed

__all__ = ["speech_commands"]

FOLDER = "SpeechCommands/speech_commands_v0.02"
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
MIN_CLIPS = 20
CLIP = re.compile(r"([0-9a-f]+)_nohash_(\d+)\.wav")
DOWNLOAD = Download(
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
    """Dataset with the speakers in this data root."""
    folder = root.resolve() / FOLDER
    clips = _find_speakers(folder) if folder.is_dir() else {}
    names = [entry.file.name for entries in clips.values() for entry in entries]
    return DomainSet(
        name="speech_commands",
        domains=tuple(clips),
        classes=WORDS,
        reader=partial(_read, clips),
        training=Training(steps=3000, batch=8, domains_per_step=16),
        modality=Audio(),
        fingerprint=f"{derive_seed(*names):016x}" if names else "",
        needs=(FOLDER,),
        download=DOWNLOAD,
        published=Published(domains=1888),
    )


def _read(clips: Mapping[str, list[LabeledFile]], options: ReadOptions) -> dict[str, Domain]:
    return read_files(options.root.resolve() / FOLDER, clips, Audio(), options)


def _find_speakers(folder: Path) -> dict[str, list[LabeledFile]]:
    """Clips of every speaker with enough of them, ordered by word and take."""
    clips: dict[str, list[LabeledFile]] = {}
    for label, word in enumerate(WORDS):
        for file in (folder / word).glob("[!.]*.wav"):
            match = CLIP.fullmatch(file.name)
            if match is None:
                raise DataError(f"{file}: not named SPEAKER_nohash_TAKE.wav; move it elsewhere")
            clips.setdefault(match[1], []).append(LabeledFile(file, label))
    speakers = {
        name: sorted(clips[name], key=_by_word_and_take)
        for name in sorted(clips)
        if len(clips[name]) >= MIN_CLIPS and len({clip.label for clip in clips[name]}) == len(WORDS)
    }
    if len(speakers) < 2:
        raise DataError(
            f"{folder}: {len(speakers)} speaker(s) with all ten words and {MIN_CLIPS} clips; "
            "at least two are needed: delete the folder and download it again"
        )
    return speakers


def _by_word_and_take(clip: LabeledFile) -> tuple[int, int]:
    return clip.label, int(clip.file.stem.rpartition("_")[2])
