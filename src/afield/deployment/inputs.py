"""What a trained model takes: files or arrays, decoded and scaled exactly as in its evaluation.

    pictures   image files, resized to a square of the stored side as in the cache; resized to the
               network's size and scaled
    sounds     audio files, as log-mel features with fixed settings, scaled
    arrays     samples × features, or samples × (channels ×) height × width, scaled
    table      rows of a table or data frame with the columns of the training data, preprocessed
    texts      texts, as token ids that are cut at a number of tokens and padded with -1

The steps are those of training: the decoders of `modality`, `Scaling` and `Resize`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield.data.augmentation import Resize
from afield.data.modalities.audio import LogMel
from afield.data.modalities.image import resize_square
from afield.data.modalities.table import TABLE_SUFFIXES, encode_rows, is_table, read_frame
from afield.data.modality import FileModality, Modality, ModalityName, find_modality
from afield.data.samples import TOKEN_DTYPE, Prepare, trim_padding
from afield.data.scaling import FittedColumn, Scaling, TableScaling
from afield.data.sources.arrays import to_channels_first, translate_numpy_errors
from afield.errors import DataError, SpecError
from afield.files import check_regular_file

__all__ = ["Inputs"]

DTYPES = {"uint8": torch.uint8, "float16": torch.float16, "float32": torch.float32}
DTYPES["int32"] = TOKEN_DTYPE
# The largest number of values in a sample; a description that asks for more is not valid.
MAX_SAMPLE_SIZE = 2**26


@dataclass(frozen=True)
class Inputs:
    """The kind of a model's samples, how one is stored, and how it is prepared for the network.

    `stored` is the shape of a sample as decoded, and `size` the side in pixels that the network
    sees (0: as stored). `mean` and `std` are the scaling, with one number per channel or feature,
    or one for all. `table` is the preprocessing of the columns of a table. Texts have the file of
    their `tokenizer` (empty: bytes are tokens), and the `column` of the table that they came from.
    """

    kind: ModalityName
    dtype: Literal["uint8", "float16", "float32", "int32"]
    stored: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int = 0
    mel: LogMel | None = None
    table: tuple[FittedColumn, ...] = ()
    tokenizer: str = ""
    column: str = ""

    def __post_init__(self) -> None:
        if (
            len(self.stored) not in (1, 3)
            or not 1 <= min(self.stored) <= max(self.stored) <= MAX_SAMPLE_SIZE
        ):
            raise SpecError(f"stored={self.stored}: not the shape of a sample")
        if self.shape.numel() > MAX_SAMPLE_SIZE or not 0 <= self.size <= MAX_SAMPLE_SIZE:
            raise SpecError(f"stored={self.stored}, size={self.size}: too large for a sample")
        if any(len(values) not in (1, self.stored[0]) for values in (self.mean, self.std)):
            raise SpecError("mean and std must have a number for each channel, or one for all")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise SpecError("mean and std must be finite, and std above 0")
        if self.modality.settings != self._settings:
            raise SpecError(f"kind={self.kind}: {', '.join(self.modality.settings)} is missing")
        if (self.kind == "texts") != (self.dtype == "int32") or (
            self.kind == "texts" and len(self.stored) != 1
        ):
            raise SpecError(f"kind={self.kind}: not with {self.dtype} of shape {self.stored}")
        if len(self.table) != (self.stored[0] if self.kind == "table" else 0):
            raise SpecError(f"kind={self.kind}: table must describe every column, and only columns")

    @property
    def shape(self) -> torch.Size:
        """The shape of a sample as the network sees it."""
        if self.table:
            return torch.Size((TableScaling(self.table).width,))
        if self.size and len(self.stored) == 3:
            return torch.Size((self.stored[0], self.size, self.size))
        return torch.Size(self.stored)

    @property
    def modality(self) -> Modality:
        """The kind of samples, with the settings of its decoder."""
        return find_modality(self.kind, **self._settings)

    @property
    def file_modality(self) -> FileModality:
        """The modality of a model that takes one file per sample."""
        modality = self.modality
        if not isinstance(modality, FileModality):
            raise SpecError(f"kind={self.kind}: one file has many samples")
        return modality

    @property
    def _settings(self) -> dict[str, Any]:
        if self.kind == "texts":
            return {"tokenizer": self.tokenizer, "tokens": self.stored[0]}
        return {"mel": self.mel} if self.mel else {}

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of readable files."""
        return self.modality.suffixes

    @property
    def summary(self) -> str:
        """What the model takes, in words."""
        if self.kind == "texts":
            return (
                f"texts: .txt files, or tables with a column of texts ({', '.join(TABLE_SUFFIXES)})"
            )
        if isinstance(self.modality, FileModality):
            return f"{self.modality.noun}s ({', '.join(self.suffixes)})"
        if self.table:
            return f"tables with the columns {', '.join(column.name for column in self.table)}"
        return f"arrays of n × {self._stored_text} numbers" + " from 0 to 255" * (
            self.dtype == "uint8"
        )

    @property
    def prepare(self) -> Prepare:
        """The function from samples as stored to the network's inputs, as in evaluation."""
        if self.table:
            return TableScaling(self.table)
        if self.kind == "texts":
            return trim_padding
        scaling = Scaling(self.per_channel(self.mean), self.per_channel(self.std))
        return Resize(self.size, scaling) if self.size and len(self.stored) == 3 else scaling

    def per_channel(self, values: Sequence[float]) -> Tensor:
        """One number per channel or feature, shaped to broadcast over a batch of samples."""
        return torch.tensor(values).view(-1, *(1 for _ in self.stored[1:]))

    def decode(self, file: Path) -> NDArray[Any]:
        """Decode an image or audio file as it is stored; raise if it is broken."""
        return self.file_modality.decode(file, self.stored[-1])

    def stack(self, samples: Sequence[NDArray[Any]]) -> Tensor:
        """Stack decoded samples to a batch, in the memory layout of the cache."""
        return self.file_modality.to_samples(torch.from_numpy(np.stack(samples)))

    def to_samples(self, values: Any, where: str = "") -> Tensor:
        """Check an array, tensor or data frame of samples; convert it to samples as stored."""
        if self.table:
            return self._rows(values, where)
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        prefix, wanted = f"{where}: " if where else "", f"numbers, samples × {self._stored_text}"
        if array.dtype.kind not in "fiub" or array.ndim not in (2, 3, 4) or not len(array):
            raise DataError(f"{prefix}{array.dtype} of shape {array.shape}; give {wanted}")
        x = to_channels_first(self._resize_images(array))
        if tuple(x.shape[1:]) != self.stored:
            raise DataError(f"{prefix}samples of shape {array.shape[1:]}; give {wanted}")
        if not x.isfinite().all():
            row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise DataError(f"{prefix}NaN or infinity in sample {row}; remove or fill such samples")
        if self.dtype == "uint8" and not torch.equal(x.clamp(0, 255).round(), x):
            raise DataError(f"{prefix}not integers from 0 to 255; give {wanted}")
        return x.to(DTYPES[self.dtype])

    def _rows(self, frame: Any, where: str) -> Tensor:
        """The rows of a data frame as numbers, with NaN for a missing value."""
        if not isinstance(frame, pd.DataFrame):
            names = ", ".join(column.name for column in self.table)
            raise DataError(f"{where or 'samples'}: give a table or data frame with {names}")
        columns = [column.column for column in self.table]
        return torch.from_numpy(encode_rows(frame, columns, where or "data frame"))

    def _resize_images(self, array: NDArray[Any]) -> NDArray[Any]:
        """Resize color images of another size to a square, as those in files are."""
        if not self.modality.resizable or array.dtype != np.uint8 or array.shape[-1] != 3:
            return array
        side = self.stored[1]
        if array.ndim != 4 or array.shape[1:3] == (side, side):
            return array
        return np.stack([resize_square(Image.fromarray(image), side) for image in array])

    @property
    def _stored_text(self) -> str:
        return " × ".join(map(str, self.stored))

    def read_array_file(self, file: Path) -> tuple[Tensor, list[str]]:
        """Read the samples of an array file and their names: ``file[3]``, or from its `names`.

        An ``.npz`` file must have an array X (or x), or only one array.
        """
        if self.table:
            x = self._rows(_read_table(file), str(file))
            return x, [f"{file}[{row}]" for row in range(len(x))]
        keys, arrays = _read_arrays(file)
        if len(keys) != 1:
            raise DataError(f"{file}: has no array X, but {', '.join(keys) or 'no array at all'}")
        x = self.to_samples(arrays[keys[0]], str(file))
        values = arrays.get("names", np.empty(0)).ravel()
        names = [str(name) for name in values if isinstance(name, str)]
        if len(names) != len(x):
            names = [str(number) for number in range(len(x))]
        return x, [f"{file}[{name}]" for name in names]


def _read_table(file: Path) -> pd.DataFrame:
    if not is_table(file):
        raise DataError(f"{file}: not a table; give one of {', '.join(TABLE_SUFFIXES)}")
    return read_frame(file)


def _read_arrays(file: Path) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The keys that may hold the samples of an array file; its arrays if there is one such key."""
    with translate_numpy_errors(file):
        check_regular_file(file)
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            return ["X"], {"X": loaded}
        with loaded as archive:
            files: list[str] = archive.files
            keys = [key for key in files if key in ("X", "x")] or files
            wanted = {*keys, "names"} & {*files} if len(keys) == 1 else ()
            return keys, {key: archive[key] for key in wanted}
