"""What a trained model takes: files or arrays, read and scaled exactly as in its evaluation.

    pictures   squeezed to a square of the stored side, as the cache keeps them; resized, scaled
    sounds     log-mel features of one form, scaled
    arrays     samples × features, or samples × (channels ×) height × width, scaled

The line is that of `read_files`, `Scaling` and `Resize`; nothing here is done in another way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield.data.audio import LogMel
from afield.data.augmentation import Resize
from afield.data.images import resize_square
from afield.data.modality import FileModality, Modality, ModalityName, find_modality
from afield.data.samples import Prepare
from afield.data.scaling import Scaling
from afield.data.sources.arrays import to_channels_first, translate_numpy_errors
from afield.errors import DataError, SpecError

__all__ = ["Inputs"]

DTYPES = {"uint8": torch.uint8, "float16": torch.float16, "float32": torch.float32}
# The most numbers in a sample: a description that asks for more is not one of ours.
MAX_SAMPLE_SIZE = 2**26


@dataclass(frozen=True)
class Inputs:
    """Of which kind samples are, how one is stored, and what is made of it for the network.

    `stored` is the shape of a sample as it is decoded, `size` the pixels a side that the network
    sees (0: as stored), `mean` and `std` the scaling, one number for each channel or feature, or
    one for all.
    """

    kind: ModalityName
    dtype: Literal["uint8", "float16", "float32"]
    stored: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int = 0
    mel: LogMel | None = None

    def __post_init__(self) -> None:
        if (
            len(self.stored) not in (1, 3)
            or not 1 <= min(self.stored) <= max(self.stored) <= MAX_SAMPLE_SIZE
        ):
            raise SpecError(f"stored={self.stored}: no shape of a sample")
        if self.shape.numel() > MAX_SAMPLE_SIZE or not 0 <= self.size <= MAX_SAMPLE_SIZE:
            raise SpecError(f"stored={self.stored}, size={self.size}: too large for a sample")
        if any(len(part) not in (1, self.stored[0]) for part in (self.mean, self.std)):
            raise SpecError("mean and std must have a number for each channel, or one for all")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise SpecError("mean and std must be numbers, std above 0")
        if self.modality.settings != self._settings:
            raise SpecError(f"kind={self.kind}: {', '.join(self.modality.settings)} is missing")

    @property
    def shape(self) -> torch.Size:
        """The shape of a sample as the network sees it."""
        if self.size and len(self.stored) == 3:
            return torch.Size((self.stored[0], self.size, self.size))
        return torch.Size(self.stored)

    @property
    def modality(self) -> Modality:
        """Kind of samples, with the settings of its decoder."""
        return find_modality(self.kind, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        return {"mel": self.mel} if self.mel else {}

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How the names of files that can be read end."""
        return self.modality.suffixes

    @property
    def told(self) -> str:
        """What is taken, in words."""
        form = " × ".join(map(str, self.stored))
        if isinstance(self.modality, FileModality):
            return f"{self.kind} ({', '.join(self.suffixes)})"
        return f"arrays of n × {form} numbers" + " from 0 to 255" * (self.dtype == "uint8")

    @property
    def prepare(self) -> Prepare:
        """From stored samples to what the network sees, as in evaluation."""
        scaling = Scaling(*(self.scale(part) for part in (self.mean, self.std)))
        return Resize(self.size, scaling) if self.size and len(self.stored) == 3 else scaling

    def scale(self, part: Sequence[float]) -> Tensor:
        """Numbers of channels or features, shaped so that they go along these."""
        if len(part) == 1 and self.stored[0] != 1:
            return torch.tensor(part[0])
        return torch.tensor(part).view(-1, *(1 for _ in self.stored[1:]))

    def decoded(self, file: Path) -> NDArray[Any]:
        """One picture or sound as it is stored; what is wrong with a broken one is raised."""
        return self.file_modality.decode(file, self.stored[1])

    def stack(self, samples: Sequence[NDArray[Any]]) -> Tensor:
        """Decoded samples as one batch, in the memory layout of the cache."""
        return self.file_modality.to_samples(torch.from_numpy(np.stack(samples)))

    @property
    def file_modality(self) -> FileModality:
        """The same of a model that takes a file for each sample."""
        modality = self.modality
        if not isinstance(modality, FileModality):
            raise SpecError(f"kind={self.kind}: one file has many samples")
        return modality

    def samples(self, values: Any, where: str = "") -> Tensor:
        """Samples of an array or a tensor, checked, as they are stored."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        before = f"{where}: " if where else ""
        if array.dtype.kind not in "fiub" or array.ndim not in (2, 3, 4) or not len(array):
            raise DataError(f"{before}{array.dtype} of shape {array.shape}; give {self._wanted}")
        x = to_channels_first(self._squeezed(array))
        if tuple(x.shape[1:]) != self.stored:
            raise DataError(f"{before}samples of shape {array.shape[1:]}; give {self._wanted}")
        if not x.isfinite().all():
            row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise DataError(f"{before}NaN or infinity in sample {row}; remove or fill such samples")
        if self.dtype == "uint8" and not torch.equal(x.clamp(0, 255).round(), x):
            raise DataError(f"{before}not whole numbers from 0 to 255; give {self._wanted}")
        return x.to(DTYPES[self.dtype])

    def _squeezed(self, array: NDArray[Any]) -> NDArray[Any]:
        """Pictures in colour of another size, squeezed to a square as those in files are."""
        if not self.modality.resizable or array.dtype != np.uint8 or array.shape[-1] != 3:
            return array
        side = self.stored[1]
        if array.ndim != 4 or array.shape[1:3] == (side, side):
            return array
        return np.stack([resize_square(Image.fromarray(each), side) for each in array])

    @property
    def _wanted(self) -> str:
        form = " × ".join(map(str, self.stored))
        return f"numbers, samples × {form}"

    def opened(self, file: Path) -> tuple[Tensor, list[str]]:
        """The samples of an array file, and what each is called: ``file[3]``, or by its `names`.

        Of an ``.npz`` it is the array X (or x), or the only one.
        """
        names: list[str] | None = None
        with translate_numpy_errors(file):
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.lib.npyio.NpzFile):
                with found as archive:
                    have = archive.files
                    named = [key for key in ("X", "x") if key in have] or have
                    if len(named) == 1:
                        array = archive[named[0]]
                    if "names" in have and archive["names"].dtype.kind in "U":
                        names = [str(name) for name in archive["names"]]
            else:
                have = named = ["X"]
                array = found
        if len(named) != 1:
            raise DataError(f"{file}: no array X in it, but {', '.join(have) or 'none at all'}")
        x = self.samples(array, str(file))
        if names is None or len(names) != len(x):
            names = [str(number) for number in range(len(x))]
        return x, [f"{file}[{name}]" for name in names]
