"""Spoken digits: 3,000 recordings of ten digits by six speakers; the speakers are the domains.

Jackson and others, Free Spoken Digit Dataset, 2016-2020: 50 takes of every digit by every speaker,
8 kHz, silence trimmed at both ends. They are read as log-mel features of 0.8 s, 40 bins × 78
frames. Shorter recordings are padded with silence on both sides (half of all are shorter than
0.42 s); of the 2 % that are longer, the loudest stretch is kept.

The official test split, takes 0 to 4 of every speaker, is not used: its speakers are heard in
training too, whereas here the unseen domain is a new speaker.

In the data root: ``spoken_digits/recordings/DIGIT_SPEAKER_TAKE.wav`` as published, or
``spoken_digits/SPEAKER/DIGIT/TAKE.wav`` (takes with two digits). Both give the same samples in the
same order. License: CC BY-SA 4.0.
"""

import re
from collections.abc import Mapping

from afield.data.domains import Domain, DomainSet, Download, ReadOptions
from afield.data.log_mel import LogMel
from afield.data.modalities.audio import AUDIO_TRAINING, Audio
from afield.data.sources.folders import LabeledFile, folder_reader, read_files
from afield.errors import DataError

__all__ = ["spoken_digits"]

FOLDER = "spoken_digits"
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
DIGITS = tuple(str(digit) for digit in range(10))
RECORDING = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav")
AUDIO = Audio(LogMel(rate=8_000, seconds=0.8))


def _read(options: ReadOptions) -> Mapping[str, Domain]:
    folder = options.root.resolve() / FOLDER
    if not (folder / "recordings").is_dir():
        return folder_reader(FOLDER, SPEAKERS, DIGITS, AUDIO)(options)
    files: dict[str, list[LabeledFile]] = {name: [] for name in SPEAKERS}
    for file in (folder / "recordings").glob("[!.]*.wav"):
        match = RECORDING.fullmatch(file.name)
        if match is None:
            raise DataError(f"{file}: not named DIGIT_SPEAKER_TAKE.wav; move it elsewhere")
        if match[2] in files:
            files[match[2]].append(LabeledFile(file, label=int(match[1])))
    ordered = {name: sorted(entries, key=_by_digit_and_take) for name, entries in files.items()}
    return read_files(folder, ordered, AUDIO, options)


def _by_digit_and_take(entry: LabeledFile) -> tuple[int, int]:
    return entry.label, int(entry.file.stem.rpartition("_")[2])


spoken_digits = DomainSet(
    name="spoken_digits",
    domains=SPEAKERS,
    classes=DIGITS,
    reader=_read,
    training=AUDIO_TRAINING,
    modality=AUDIO,
    needs=(FOLDER,),
    download=Download(
        instructions="create the folder spoken_digits in the data root and put the folder "
        "recordings of https://github.com/Jakobovski/free-spoken-digit-dataset into it",
        license="CC BY-SA 4.0",
    ),
    sizes=dict.fromkeys(SPEAKERS, 500),
)
