"""What a trained model takes: files or arrays, decoded and scaled exactly as in its evaluation.

The decoder, the scaling and the preparation are those of training; see `Modality`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.bag_of_words import NGRAMS, BagScaling, Vocabulary
from afield.data.log_mel import LogMel
from afield.data.modality import Modality, find_modality
from afield.data.samples import Prepare
from afield.data.scaling import FittedColumn, Scaling, TableScaling
from afield.data.sources.arrays import to_channels_first, translate_numpy_errors
from afield.errors import DataError, SpecError
from afield.files import check_regular_file

# The largest number of values in a sample; a description that asks for more is not valid.
MAX_SAMPLE_SIZE = 2**26


@dataclass(frozen=True)
class Inputs:
    """The kind of a model's samples, how one is stored, and how it is prepared for the network.

    `stored` is the shape of a sample as decoded, and `size` the side in pixels that the network
    sees (0: as stored). `mean` and `std` are the scaling, with one number per channel or feature,
    or one for all. `table` is the preprocessing of the columns of a table. Texts have the file of
    their `tokenizer` (empty: bytes are tokens), and the `column` of the table that they came from.
    If they are bags of words, the tokenizer is `NGRAMS`, and `vocabulary` has their n-grams.
    """

    kind: str
    dtype: Literal["uint8", "float16", "float32", "int32"]
    stored: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int = 0
    mel: LogMel | None = None
    table: tuple[FittedColumn, ...] = ()
    tokenizer: str = ""
    column: str = ""
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if (
            len(self.stored) not in (1, 3)
            or not 1 <= min(self.stored) <= max(self.stored) <= MAX_SAMPLE_SIZE
        ):
            raise SpecError(f"stored={self.stored}: not the shape of a sample")
        if any(len(values) not in (1, self.stored[0]) for values in (self.mean, self.std)):
            raise SpecError("mean and std must have a number for each channel, or one for all")
        if self.shape.numel() > MAX_SAMPLE_SIZE or not 0 <= self.size <= MAX_SAMPLE_SIZE:
            raise SpecError(f"stored={self.stored}, size={self.size}: too large for a sample")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise SpecError("mean and std must be finite, and std above 0")
        modality = self.modality
        if "mel" in modality.settings and not self.mel:
            raise SpecError(f"kind={self.kind}: mel is missing")
        if modality.has_tokens != (self.dtype == "int32") or (
            modality.has_tokens and len(self.stored) != 1
        ):
            raise SpecError(f"kind={self.kind}: not with {self.dtype} of shape {self.stored}")
        if len(self.table) != (self.stored[0] if modality.has_columns else 0):
            raise SpecError(f"kind={self.kind}: table must describe every column, and only columns")

        self._check_vocabulary()

    def _check_vocabulary(self) -> None:
        is_bag = self.modality.has_tokens and self.tokenizer == NGRAMS
        if is_bag != (self.vocabulary is not None):
            raise SpecError(f"kind={self.kind}: a vocabulary is for n-grams, and only for them")

    @property
    def modality(self) -> Modality:
        """The kind of samples, with the settings of its decoder."""
        settings = {"mel": self.mel} if self.mel else {}
        return find_modality(self.kind, **settings).with_tokens(self.tokenizer, self.stored[0])

    @property
    def shape(self) -> torch.Size:
        """The shape of a sample as the network sees it."""
        return torch.Size(self.modality.network_shape(self.scaling, self.stored, self.size))

    @property
    def scaling(self) -> Scaling:
        """The scaling of samples as stored."""
        if self.table:
            return TableScaling(self.table)
        if self.vocabulary:
            return BagScaling(self.vocabulary)
        return Scaling(self.per_channel(self.mean), self.per_channel(self.std))

    @property
    def summary(self) -> str:
        """What the model takes, in words."""
        return self.modality.summary(self)

    @property
    def prepare(self) -> Prepare:
        """The function from samples as stored to the network's inputs, as in evaluation."""
        return self.modality.prepare(self.scaling, self.stored, self.size, trim=True)

    def per_channel(self, values: Sequence[float]) -> Tensor:
        """One number per channel or feature, shaped to broadcast over a batch of samples."""
        return torch.tensor(values).view(-1, *(1 for _ in self.stored[1:]))

    def from_array(self, values: Any, where: str = "") -> Tensor:
        """Check an array or tensor of samples; convert it to samples as stored."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        prefix, wanted = f"{where}: " if where else "", f"numbers, samples × {self._stored_text}"
        if array.dtype.kind not in "fiub" or array.ndim not in (2, 3, 4) or not len(array):
            raise DataError(f"{prefix}{array.dtype} of shape {array.shape}; give {wanted}")
        x = to_channels_first(self.modality.resize(array, self.stored[-1]))
        if tuple(x.shape[1:]) != self.stored:
            raise DataError(f"{prefix}samples of shape {array.shape[1:]}; give {wanted}")
        if not x.isfinite().all():
            row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise DataError(f"{prefix}NaN or infinity in sample {row}; remove or fill such samples")
        if self.dtype == "uint8" and not torch.equal(x.clamp(0, 255).round(), x):
            raise DataError(f"{prefix}not integers from 0 to 255; give {wanted}")
        return x.to(getattr(torch, self.dtype))

    @property
    def _stored_text(self) -> str:
        return " × ".join(map(str, self.stored))

    def read_array_file(self, file: Path) -> tuple[Tensor, list[str]]:
        """Read the samples of an array file and their names: ``file[3]``, or from its `names`.

        An ``.npz`` file must have an array X (or x), or only one array.
        """
        keys, arrays = _read_arrays(file)
        if len(keys) != 1:
            raise DataError(f"{file}: has no array X, but {', '.join(keys) or 'no array at all'}")
        x = self.from_array(arrays[keys[0]], str(file))
        values = arrays.get("names", np.empty(0)).ravel()
        names = [str(name) for name in values if isinstance(name, str)]
        if len(names) != len(x):
            names = [str(number) for number in range(len(x))]
        return x, [f"{file}[{name}]" for name in names]


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
