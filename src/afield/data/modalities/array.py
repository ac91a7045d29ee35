"""Numbers, many samples to a file: feature vectors, or images as arrays."""

from dataclasses import dataclass

from torch import Tensor

from afield.data.modality import Modality
from afield.errors import DataError

__all__ = ["Array"]


@dataclass(frozen=True)
class Array(Modality):
    """Samples × features, or samples × (channels ×) height × width."""

    name = "arrays"
    noun = "array file"
    suffixes = (".npz", ".npy")
    task = "tabular-classification"
    example = "new.npz"
    python_example = "new.npz"
    raw = True

    def check_values(self, x: Tensor, where: str) -> None:
        """Raise an error if a value is not finite."""
        if x.is_floating_point() and not x.isfinite().all():
            row = int((~x.isfinite()).flatten(1).any(1).nonzero()[0])
            raise DataError(
                f"{where}: NaN or infinity in sample {row}; remove or fill such samples"
            )
