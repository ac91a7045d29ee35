"""What kind of samples a dataset has: images, audio, texts or arrays, with all that depends on it.

A new modality is a module with its decoder and one class here, listed in `MODALITIES`. The
attribute `name` stands in stored models and `cache_form` names entries of the cache: neither may
change.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from afield.data.modalities.audio import AUDIO_SUFFIXES, LogMel, read_audio
from afield.data.modalities.image import IMAGE_ERRORS, IMAGE_SUFFIXES, read_image, stored_side
from afield.data.modalities.table import TABLE_SUFFIXES, Column
from afield.data.modalities.text import read_text, tokenize, tokenizer_label
from afield.errors import SpecError
from afield.registry import hint

__all__ = [
    "ARRAY",
    "AUDIO",
    "IMAGE",
    "MODALITIES",
    "TEXT",
    "Array",
    "Audio",
    "FileModality",
    "Image",
    "Modality",
    "ModalityName",
    "Table",
    "Text",
    "find_modality",
    "modality_of_file",
]

ModalityName = Literal["pictures", "sounds", "arrays", "table", "texts"]


class Modality:
    """A kind of samples.

    `name` is its name in stored models and `noun` what messages call one of its files, which end in
    one of the `suffixes`. `task` is its pipeline tag on the Hugging Face hub, and `example` stands
    for a user's files in a model card. `resizable` samples can be decoded at any size. NaN
    stands for a missing value where a modality `may_miss_values`.
    """

    name: ClassVar[ModalityName]
    noun: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    task: ClassVar[str]
    example: ClassVar[str]
    resizable: ClassVar[bool] = False
    may_miss_values: ClassVar[bool] = False

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the decoder, as a stored model names them."""
        return {}

    def stored_side(self, size: int) -> int:
        """Side at which samples are stored for a network that sees `size` pixels; 0: no choice."""
        return 0

    def upright(self, x: Tensor) -> Tensor:
        """Turn samples with rows and columns the way a person expects to see them."""
        return x


class FileModality(Modality, ABC):
    """A modality whose samples are decoded from one file each."""

    decode_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError)

    @abstractmethod
    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode a file to one row of the cache; one of `decode_errors` says what is wrong."""

    @abstractmethod
    def cache_form(self, side: int) -> str:
        """Name of the decoded form in the cache."""

    @abstractmethod
    def empty_row(self, side: int) -> NDArray[Any]:
        """Array with the shape and type of a row of the cache."""

    def to_samples(self, rows: Tensor) -> Tensor:
        """View rows of the cache as samples with channels first."""
        return rows

    def count_cut(self, rows: Tensor) -> int:
        """Number of rows of the cache that hold only the beginning of a file."""
        del rows
        return 0

    def with_tokens(self, tokenizer: str, tokens: int) -> "FileModality":
        """The modality for the tokenizer and the number of tokens of a run."""
        del tokenizer, tokens
        return self


@dataclass(frozen=True)
class Image(FileModality):
    """Image files, as squares of bytes in red, green and blue."""

    name = "pictures"
    noun = "image"
    suffixes = IMAGE_SUFFIXES
    task = "image-classification"
    example = "new/*.jpg"
    resizable = True
    decode_errors = IMAGE_ERRORS

    def stored_side(self, size: int) -> int:
        """Return a side a little above `size`, so that random crops have room to vary."""
        return stored_side(size)

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode an image to side × side × 3."""
        return read_image(file, side)

    def cache_form(self, side: int) -> str:
        """Name of images of this side."""
        return f"pictures of {side} × {side}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Bytes, side × side × 3."""
        return np.empty((side, side, 3), np.uint8)

    def to_samples(self, rows: Tensor) -> Tensor:
        """Move the channels, which the cache keeps last, to the front."""
        return rows.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Audio(FileModality):
    """Audio files, as log-mel features."""

    mel: LogMel = field(default_factory=LogMel)

    name = "sounds"
    noun = "audio file"
    suffixes = AUDIO_SUFFIXES
    task = "audio-classification"
    example = "new/*.wav"

    @property
    def settings(self) -> dict[str, Any]:
        """The log-mel transform."""
        return {"mel": self.mel}

    def upright(self, x: Tensor) -> Tensor:
        """Put low frequencies at the bottom."""
        return x.flip(-2)

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode an audio file to its features; `side` does not matter."""
        return read_audio(file, self.mel)

    def cache_form(self, side: int) -> str:
        """Name of features of this transform."""
        return f"sounds as {self.mel}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Half-precision features, 1 × bins × frames."""
        return np.empty(self.mel.shape, np.float16)


@dataclass(frozen=True)
class Text(FileModality):
    """Texts, as token ids: `tokenizer` is a file, or empty if every byte is a token."""

    tokenizer: str = ""
    tokens: int = 512

    name = "texts"
    noun = "text"
    suffixes = (".txt",)
    task = "text-classification"
    example = "new.csv"

    @property
    def settings(self) -> dict[str, Any]:
        """The tokenizer, and the greatest number of tokens."""
        return {"tokenizer": self.tokenizer, "tokens": self.tokens}

    def with_tokens(self, tokenizer: str, tokens: int) -> "Text":
        """The modality for another tokenizer; a number of 0 keeps the present one."""
        return replace(self, tokenizer=tokenizer, tokens=tokens or self.tokens)

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Tokenize the text of a file; `side` does not matter."""
        return self.tokenize(read_text(file))

    def tokenize(self, text: object) -> NDArray[Any]:
        """Tokenize a text to one row of the cache."""
        return tokenize(text, self.tokenizer, self.tokens)

    def cache_form(self, side: int) -> str:
        """Name of texts of this tokenizer and length."""
        return f"texts as {self.tokens} tokens of {tokenizer_label(self.tokenizer)}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Whether the text is cut, and its token ids."""
        return np.empty(1 + self.tokens, np.int32)

    def to_samples(self, rows: Tensor) -> Tensor:
        """The token ids."""
        return rows[:, 1:]

    def count_cut(self, rows: Tensor) -> int:
        """Number of texts with more tokens than a row."""
        return int(rows[:, 0].sum())


@dataclass(frozen=True)
class Array(Modality):
    """Numbers, many samples to a file: feature vectors, or images as arrays."""

    name = "arrays"
    noun = "array file"
    suffixes = (".npz", ".npy")
    task = "tabular-classification"
    example = "new.npz"


@dataclass(frozen=True)
class Table(Modality):
    """Rows with named columns of numbers and categories, which are preprocessed for each run."""

    columns: tuple[Column, ...] = ()

    name = "table"
    noun = "table"
    suffixes = TABLE_SUFFIXES
    task = "tabular-classification"
    example = "new.csv"
    may_miss_values = True


IMAGE, AUDIO, TEXT, ARRAY = Image(), Audio(), Text(), Array()
MODALITIES: dict[str, type[Modality]] = {
    kind.name: kind for kind in (Image, Audio, Array, Table, Text)
}


def find_modality(name: str, **settings: Any) -> Modality:
    """Return the modality with the name and settings of a stored model."""
    if name not in MODALITIES:
        raise SpecError(f"no kind of samples {name!r}; {hint(name, list(MODALITIES))}")
    try:
        return MODALITIES[name](**settings)
    except TypeError:
        raise SpecError(f"kind={name}: takes no {', '.join(settings)}") from None


def modality_of_file(file: Path) -> FileModality | None:
    """Return the modality, with its default settings, of a file's suffix; None if unknown."""
    for kind in MODALITIES.values():
        if issubclass(kind, FileModality) and file.suffix.lower() in kind.suffixes:
            return kind()
    return None
