"""What a modality is: a kind of samples, and everything that depends on it.

A modality is one class in ``modalities/``. Its attribute `name` stands in stored models, and its
`cache_form` names entries of the cache: neither may change.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield import registry
from afield.data.augmentation import Resize
from afield.data.domains import Domain
from afield.data.file_batches import FileBatch, decode_ahead, sample_batches, split_files
from afield.data.samples import Prepare, Rows
from afield.data.scaling import Scaling
from afield.data.training_settings import Training
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.data.inputs import Inputs


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Fact:
    """A fact about a dataset, or about its domain `subject`.

    If `value` counts samples, `total` is the number of samples among which it counts them.
    """

    name: str
    value: int | tuple[int, int]
    subject: str = ""
    total: int = 0

    def __str__(self) -> str:
        """The value, as it is shown."""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return " × ".join(map(str, values))


@dataclass(frozen=True)
class ExportForm:
    """What an exported file takes, for programs and for people.

    `axes` has the names of its inputs, and the axes of each that may have any length. `summary`
    describes the inputs, `steps` says how a user makes them from files, and `note` is what else the
    model card says about them.
    """

    axes: Mapping[str, tuple[int, ...]]
    summary: str
    steps: str
    note: str = ""


class DeployedNetwork(nn.Module):
    """A network together with its scaling, temperature and softmax."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, scaling: Scaling, temperature: float) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", scaling.mean)
        self.register_buffer("std", scaling.std)
        self.temperature = temperature

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits and probabilities of samples that are not scaled yet."""
        logits = self.module((x - self.mean) / self.std)
        return logits, (logits / self.temperature).softmax(dim=1)


class Modality:
    """A kind of samples; the methods have the behavior of numbers in arrays.

    `name` is its name in stored models and `noun` what messages call one of its files, which end in
    one of the `suffixes`. `task` is its pipeline tag on the Hugging Face hub, `example` stands for
    a user's files in a model card, and `python_example` for a sample in Python. `preparation` is
    what a user of an exported file does to files, and `no_export` says why there is no such file.
    `training` has the defaults for a user's own data.

    Samples that are `resizable` can be decoded at any size. Samples that have `has_tokens` are
    token ids: batches differ in their lengths, and inputs cannot be mixed. Samples that have
    `has_columns` are rows of a table. A modality that `decodes_files` has one sample per file.
    Samples that are `raw` are the numbers of a file as they are. `classical_methods` are rows of
    every benchmark that names no methods.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    task: ClassVar[str]
    example: ClassVar[str]
    python_example: ClassVar[str]
    preparation: ClassVar[str] = "decode files"
    no_export: ClassVar[str] = ""
    training: ClassVar[Training] = Training()
    resizable: ClassVar[bool] = False
    has_tokens: ClassVar[bool] = False
    has_columns: ClassVar[bool] = False
    decodes_files: ClassVar[bool] = False
    raw: ClassVar[bool] = False
    classical_methods: ClassVar[tuple[str, ...]] = ("logistic", "extra_trees")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the decoder, as a stored model names them."""
        return {}

    def stored_side(self, size: int) -> int:
        """Side at which samples are stored for a network that sees `size` pixels; 0: no choice."""
        return 0

    def with_tokens(self, tokenizer: str, tokens: int) -> Self:
        """The modality for the tokenizer and the number of tokens of a run."""
        return self

    def decoding(self) -> AbstractContextManager[None]:
        """Context in which files are decoded, around all threads."""
        return nullcontext()

    def check_values(self, x: Tensor, where: str) -> None:
        """Raise an error, which begins with `where`, if samples cannot be trained on."""

    def facts(self, domains: Mapping[str, Domain]) -> list[Fact]:
        """Facts about the samples of a dataset that only this modality has."""
        return []

    def remarks(self, domains: Mapping[str, Domain]) -> list[str]:
        """What a model for one of the domains, trained on the others, could not read of it."""
        del domains
        return []

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Properties of samples as stored that people can compare: one number per sample."""
        values = x.flatten(1).float()
        return {"mean value": values.mean(dim=1), "spread": values.std(dim=1)}

    def file_statistics(self, file: Path) -> dict[str, float]:
        """Properties of the file of a sample; empty if there are none, or it cannot be read."""
        del file
        return {}

    def upright(self, x: Tensor) -> Tensor:
        """Turn samples with rows and columns the way a person expects to see them."""
        return x

    def to_rgb(self, x: Tensor) -> NDArray[np.float32]:
        """Show a sample as height × width × RGB; two channels become red and green."""
        values = self.upright(x)[:3].float()
        low, high = (0.0, 255.0)
        if x.dtype != torch.uint8:
            low, high = values.min().item(), values.max().item()
        pixels = ((values - low) / max(1e-6, high - low)).permute(1, 2, 0).numpy()
        if pixels.shape[2] == 2:
            return np.pad(pixels, ((0, 0), (0, 0), (0, 1)))
        return pixels

    def fit_scaling(self, x: Rows, *, by_sources: bool = False, robust: bool = False) -> Scaling:
        """Fit the scaling to the samples to train on, which may decide the types of columns.

        With `robust`, single large numbers in columns have little influence.
        """
        del by_sources, robust
        return Scaling.fit(x)

    def network_shape(self, scaling: Scaling, stored: Shape, size: int) -> Shape:
        """Shape of a sample as the network sees it; `size` is the side in pixels, 0: as stored."""
        shape = scaling.network_shape(stored)
        return (shape[0], size, size) if size and len(shape) == 3 else shape

    def prepare(self, scaling: Scaling, stored: Shape, size: int, *, trim: bool = False) -> Prepare:
        """The function from samples as stored to the network's inputs.

        With `trim`, it removes the padding that all samples of a batch have.
        """
        return Resize(size, scaling) if size and len(stored) == 3 else scaling

    def summary(self, inputs: "Inputs") -> str:
        """What a model takes, in words."""
        shape = " × ".join(map(str, inputs.stored))
        return f"arrays of n × {shape} numbers" + " from 0 to 255" * (inputs.dtype == "uint8")

    def to_stored(self, inputs: "Inputs", values: Any, where: str = "") -> Tensor:
        """Check an array, tensor or data frame of samples; convert it to samples as stored."""
        return inputs.from_array(values, where)

    def resize(self, x: NDArray[Any], side: int) -> NDArray[Any]:
        """Resize samples that a user gives as an array to those in files."""
        return x

    def batches(
        self, inputs: "Inputs", values: Any, size: int, column: str = ""
    ) -> Iterator[FileBatch]:
        """Batches of at most `size` samples of an array, tensor or data frame, or of files.

        `column` is the column of a table with texts, where samples are texts.
        """
        return sample_batches(inputs, values, size)

    def read_batches(
        self, inputs: "Inputs", files: Sequence[Path], size: int
    ) -> Iterator[FileBatch]:
        """Read the samples of files in order, in batches of at most `size`."""
        return split_files(lambda file: (*inputs.read_array_file(file), None), files, size)

    def export_form(self, inputs: "Inputs") -> ExportForm:
        """What an exported file takes."""
        shape = " × ".join(("n", *map(str, inputs.shape)))
        levels = ", 0 to 255" * (inputs.dtype == "uint8")
        steps = f"stack samples to {shape}, float32; scaling is part of the file"
        return ExportForm({"x": (0,)}, f"x ({shape}, float32{levels})", steps)

    def export_metadata(self, inputs: "Inputs") -> dict[str, str]:
        """Facts that are written into an exported file."""
        del inputs
        return {}

    def export_example(self, inputs: "Inputs", count: int) -> tuple[Tensor, ...]:
        """Random inputs of an exported file, for `count` samples."""
        generator = torch.Generator().manual_seed(count)
        noise = torch.randn(count, *inputs.shape, generator=generator)
        x = noise * inputs.per_channel(inputs.std) + inputs.per_channel(inputs.mean)
        return (x.clamp(0, 255).round() if inputs.dtype == "uint8" else x,)

    def export_network(self, inputs: "Inputs", module: nn.Module, temperature: float) -> nn.Module:
        """The network that is exported: from inputs of the file to logits and probabilities."""
        return DeployedNetwork(module, inputs.scaling, temperature)


# A side at which files are decoded that have no header.
HEADER_SIDE = 64


class FileModality(Modality):
    """A modality whose samples are decoded from one file each."""

    decodes_files = True
    decode_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError)

    @abstractmethod
    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode a file to one row of the cache; one of `decode_errors` says what is wrong."""

    def read_header(self, file: Path) -> None:
        """Read the beginning of a file; one of `decode_errors` says what is wrong with it.

        A modality without headers decodes the file.
        """
        self.decode(file, self.stored_side(HEADER_SIDE))

    @abstractmethod
    def cache_form(self, side: int) -> str:
        """Name of the decoded form in the cache."""

    @abstractmethod
    def empty_row(self, side: int) -> NDArray[Any]:
        """Array with the shape and type of a row of the cache."""

    def to_samples(self, rows: Tensor) -> Tensor:
        """View rows of the cache as samples with channels first."""
        return rows

    def stack(self, rows: Sequence[NDArray[Any]]) -> Tensor:
        """Stack decoded rows to a batch of samples, in the memory layout of the cache."""
        return self.to_samples(torch.from_numpy(np.stack(rows)))

    def count_cut(self, rows: Tensor) -> int:
        """Number of rows of the cache that hold only the beginning of a file."""
        return 0

    def summary(self, inputs: "Inputs") -> str:
        """The noun and the suffixes."""
        return f"{self.noun}s ({', '.join(self.suffixes)})"

    def read_batches(
        self, inputs: "Inputs", files: Sequence[Path], size: int
    ) -> Iterator[FileBatch]:
        """Decode the files in threads, ahead of the network."""
        with self.decoding():
            yield from decode_ahead(partial(self._decode, inputs), self.stack, files, size)

    def _decode(self, inputs: "Inputs", file: Path) -> tuple[NDArray[Any] | None, str]:
        """The sample in a file, or None and the reason why it cannot be read."""
        errors: tuple[type[Exception], ...] = (*self.decode_errors, MemoryError)
        try:
            return self.decode(file, inputs.stored[-1]), ""
        except FileNotFoundError:
            return None, "no such file or folder"
        except errors as error:
            reason = (str(error).splitlines() or ["unreadable"])[0]
            reason = reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :")
            known_suffix = file.suffix.lower() in self.suffixes
            advice = "" if known_suffix else f" (this model takes {self.summary(inputs)})"
            return None, f"{reason or 'unreadable'}{advice}"


@cache
def modalities() -> dict[str, type[Any]]:
    """All modalities by the name that stands in stored models."""
    kinds = [registry.find("modalities", name) for name in registry.names("modalities")]
    return {kind.name: kind for kind in kinds}


def find_modality(name: str, **settings: Any) -> Modality:
    """Return the modality with the name and settings of a stored model."""
    if name not in modalities():
        raise SpecError(f"no kind of samples {name!r}; {registry.hint(name, list(modalities()))}")
    try:
        modality: Modality = modalities()[name](**settings)
    except TypeError:
        raise SpecError(f"kind={name}: takes no {', '.join(settings)}") from None
    return modality


def modality_of_file(file: Path) -> FileModality | None:
    """Return the modality, with its default settings, of a file's suffix; None if unknown."""
    suffix = file.suffix.lower()
    kinds = [kind for kind in modalities().values() if kind.decodes_files]
    return next((kind() for kind in kinds if suffix in kind.suffixes), None)
