"""The folder of a model in use: it needs nothing else, and nothing in it is ever run.

    model.safetensors      the weights, as a plain state dict
    distance.safetensors   where the sources lie in its features (see `distances`), if that is known
    model.json             all else: `Description`
    README.md              the same for people (see `model_card`)

It is written beside its place and renamed: whole or not there. Of a folder that is read, the hashes
of both files of tensors must be those in model.json; that tells of accidents, and of whoever has
changed a file and not its hash. Whoever changes both still cannot have code run: only JSON and
safetensors are read, and the network is one of ours, built by its name.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from afield.deployment.distances import Distances
from afield.deployment.inputs import Inputs
from afield.errors import DataError, SpecError
from afield.experiments.record import Run
from afield.files import atomic_write, sha256
from afield.training.calibration import TEMPERATURE_RANGE

__all__ = [
    "Architecture",
    "Calibration",
    "Description",
    "Estimate",
    "check_output_folder",
    "is_model_folder",
    "read_description",
    "read_model",
    "write_model",
]

FORMAT_VERSION = 1
DESCRIPTION_FILE, WEIGHTS_FILE, DISTANCES_FILE, CARD_FILE = (
    "model.json",
    "model.safetensors",
    "distance.safetensors",
    "README.md",
)
# No description of ours comes near to so many bytes.
MAX_DESCRIPTION_BYTES = 64 * 2**20
# Files of weights that only unpickling could read.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Architecture:
    """The network: its backbone, and the method that has put it in a wrapper, where one has."""

    backbone: str
    freeze_bn: bool = False
    wrapper: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """What is to be expected of a domain that was not trained on, each left out in turn.

    `domains` has the accuracy on each, a mean over trials; `accuracy` and `worst` are taken within
    a trial and averaged. `stderr` is that of `accuracy` over trials, `spread` the deviation over
    domains. `recipes` are as many as were compared by just these numbers, where some were.
    """

    accuracy: float
    worst: float
    in_domain: float
    domains: Mapping[str, float]
    trials: int
    stderr: float | None = None
    spread: float | None = None
    recipes: int = 1


@dataclass(frozen=True)
class Calibration:
    """What held-out domains say of confidence and distance, each read by a model without it.

    The quantiles go from least to most in equal steps; domains have the same weight. Of the errors
    one is with temperature 1, the other with the temperature that was fitted, on the same samples.
    """

    temperature: float
    confidences: tuple[float, ...]
    distances: tuple[float, ...]
    samples: int
    error_before: float
    error_after: float

    def __post_init__(self) -> None:
        least, most = TEMPERATURE_RANGE
        if not 0.99 * least <= self.temperature <= 1.01 * most:
            raise SpecError(f"temperature={self.temperature}: must be between {least} and {most}")
        for known in (self.confidences, self.distances):
            if len(known) < 2 or not all(map(math.isfinite, known)) or list(known) != sorted(known):
                raise SpecError("quantiles must be two numbers or more, from least to most")


@dataclass(frozen=True)
class Description:
    """All that is known of a model.

    `run` is the training (without where data and first weights lay), `merged` how the weights were
    made of others where they were, `files` the SHA-256 of the files of tensors.
    """

    name: str
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    inputs: Inputs
    architecture: Architecture
    versions: Mapping[str, str]
    command: str
    run: Run | None = None
    merged: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""
    estimate: Estimate | None = None
    calibration: Calibration | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise SpecError("classes must be two or more, each once")


_DESCRIPTION = TypeAdapter(Description)


def is_model_folder(path: Path) -> bool:
    """Whether this looks like a folder that `write_model` has written."""
    try:
        told = json.loads((path / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        return isinstance(told, dict) and {"format", "architecture", "files"} <= told.keys()
    except (OSError, ValueError, RecursionError):
        return False


def check_output_folder(out: Path, *, overwrite: bool = False) -> None:
    """Refuse a place where something would be lost, before any work."""
    if out.name in ("", ".."):
        raise SpecError(f"{out}: has no name of its own to be written under; give a new folder")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise SpecError(f"{out}: is a file or a link; give a folder to write the model to")
    if out.exists() and any(out.iterdir()):
        if not is_model_folder(out):
            raise SpecError(f"{out}: is there, and not the folder of a model; give a new one")
        if not overwrite:
            raise SpecError(f"{out}: is there already; give a new folder, or --force to replace it")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(there, os.W_OK):
        raise SpecError(f"{out}: cannot be written (no permission); give another place")


def write_model(
    out: Path,
    description: Description,
    weights: Mapping[str, Tensor],
    distances: Distances | None,
    card: str,
    *,
    overwrite: bool = False,
) -> Description:
    """Write the folder, whole or not at all; returns the description with its hashes."""
    check_output_folder(out, overwrite=overwrite)
    tensors = {WEIGHTS_FILE: {name: value.cpu().contiguous() for name, value in weights.items()}}
    if distances is not None:
        tensors[DISTANCES_FILE] = distances.tensors()
    try:
        with atomic_write(out, durable=True) as part:
            part.mkdir()
            for name, content in tensors.items():
                (part / name).write_bytes(save(content, metadata={"format": "pt"}))
            told = _with_hashes(description, {name: sha256(part / name) for name in tensors})
            text = json.dumps(_DESCRIPTION.dump_python(told, mode="json"), indent=1)
            (part / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")
            (part / CARD_FILE).write_text(card, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another place"
        ) from None
    return told


def read_model(folder: Path) -> tuple[Description, dict[str, Tensor], Distances | None]:
    """What is in the folder of a model, checked; nothing in it is run."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no folder of a model there; `afield fit … --out` writes one")
    description = read_description(folder)
    if WEIGHTS_FILE not in description.files:
        raise DataError(
            f"{folder / DESCRIPTION_FILE}: no hash of {WEIGHTS_FILE} in it; get the folder anew"
        )
    weights = _tensors(folder, WEIGHTS_FILE, description.files[WEIGHTS_FILE])
    if DISTANCES_FILE not in description.files:
        return description, weights, None
    found = _tensors(folder, DISTANCES_FILE, description.files[DISTANCES_FILE])
    return description, weights, _distances(folder / DISTANCES_FILE, found)


def read_description(folder: Path) -> Description:
    """What the folder of a model says of it, checked."""
    path = _inside(folder, DESCRIPTION_FILE)
    if path.stat().st_size > MAX_DESCRIPTION_BYTES:
        raise DataError(f"{path}: too large to describe a model; get the folder anew")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable JSON ({error}); get the folder anew") from None
    version = told.get("format") if isinstance(told, dict) else None
    if version != FORMAT_VERSION:
        later = isinstance(version, int) and version > FORMAT_VERSION
        what = (
            f"of format {version}, by a later afield" if later else "not the model.json of afield"
        )
        raise DataError(f"{path}: {what}; this one reads format {FORMAT_VERSION}")
    try:
        return _DESCRIPTION.validate_python(told)
    except (ValidationError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise DataError(f"{path}: not a description of a model ({reason})") from None


def _tensors(folder: Path, name: str, known: str) -> dict[str, Tensor]:
    path = _inside(folder, name)
    try:
        if sha256(path) != known:
            raise DataError(
                f"{path}: not the file that {DESCRIPTION_FILE} tells of (another SHA-256): it "
                "was changed or "
                "cut short; get the folder anew"
            )
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: not readable safetensors ({error}); nothing else is read"
        ) from None
    bad = next((key for key, value in found.items() if not value.isfinite().all()), None)
    if bad is not None:
        raise DataError(f"{path}: NaN or infinity in {bad}; fit the model again")
    return found


def _distances(path: Path, tensors: Mapping[str, Tensor]) -> Distances:
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    centres, whitening = shapes.get("centres", ()), shapes.get("whitening", ())
    if len(centres) != 2 or whitening != (centres[1], centres[1]) or not centres[0]:
        raise DataError(f"{path}: not the distances of a model; get the folder anew")
    return Distances.from_tensors(tensors)


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder itself: a link must not lead elsewhere."""
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{path}: a link that leads out of the folder; put the file itself there")
    if not path.is_file():
        there = next((file for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES), None)
        more = f" ({there.name} is not read: it could run code)" if there else ""
        raise DataError(f"{folder}: no {name} in it{more}; give the folder of a model of afield")
    return path


def _with_hashes(description: Description, hashes: Mapping[str, str]) -> Description:
    return replace(description, files=hashes)
