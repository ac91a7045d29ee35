"""Spoken digits: 3,000 recordings of ten digits by six speakers; the speakers are the domains.

Jackson and others, Free Spoken Digit Dataset, 2016-2020: 50 takes of every digit by every speaker,
8 kHz, silence cut off at both ends. They are read as log-mel features of 0.8 s, 40 bins × 78
frames: shorter ones are in the middle of silence, of the 2 % that are longer the loudest stretch is
kept (half of all are shorter than 0.42 s).

The set's own test part, takes 0 to 4 of everyone, is not used: it is of speakers who are heard in
training as well, and here the test is the speaker who is not.

Under the data root: ``spoken_digits/recordings/DIGIT_SPEAKER_TAKE.wav`` as published, or
``spoken_digits/SPEAKER/DIGIT/TAKE.wav`` (two figures a take); both give the same samples in the
same order. Licence: CC BY-SA 4.0.
"""

import re
from collections.abc import Mapping

from afield.data.audio import LogMel
from afield.data.domains import Domain, DomainSet, Download, ReadOptions, Training
from afield.data.modality import Audio
from afield.data.sources.folders import folder_reader, read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.errors import DataError

__all__ = ["spoken_digits"]

FOLDER = "spoken_digits"
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
DIGITS = tuple(str(digit) for digit in range(10))
RECORDING = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")
AUDIO = Audio(LogMel(rate=8_000, seconds=0.8))


def _read(reading: ReadOptions) -> Mapping[str, Domain]:
    folder = reading.root.resolve() / FOLDER
    if not (folder / "recordings").is_dir():
        return folder_reader(FOLDER, SPEAKERS, DIGITS, AUDIO)(reading)
    files: dict[str, list[LabeledFile]] = {name: [] for name in SPEAKERS}
    for file in (folder / "recordings").glob("[!.]*.wav"):
        named = RECORDING.fullmatch(file.name)
        if named is None:
            raise DataError(f"{file}: not called DIGIT_SPEAKER_TAKE.wav; move it elsewhere")
        if named[2] in files:
            files[named[2]].append(LabeledFile(file, label=int(named[1])))
    ordered = {name: sorted(entries, key=_by_digit_and_take) for name, entries in files.items()}
    return read_files(folder, ordered, AUDIO, reading)


def _by_digit_and_take(entry: LabeledFile) -> tuple[int, int]:
    return entry.label, int(entry.file.stem.rpartition("_")[2])


spoken_digits = DomainSet(
    name="spoken_digits",
    domains=SPEAKERS,
    classes=DIGITS,
    reader=_read,
    training=Training(steps=600, batch=16),
    modality=AUDIO,
    needs=(FOLDER,),
    download=Download(
        instructions="make it and put into it the folder recordings of "
        "https://github.com/Jakobovski/free-spoken-digit-dataset",
        license="CC BY-SA 4.0",
    ),
    sizes=dict.fromkeys(SPEAKERS, 500),
)
