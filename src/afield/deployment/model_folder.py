"""The model folder: all that is needed to use a model, and no code.

    model.safetensors      the weights, as a plain state dict
    distance.safetensors   where the sources lie in its features (see `distances`), if known
    encoder/               configuration and tokenizer of an encoder of texts (see `encoder_files`)
    model.json             everything else: `Description`
    README.md              the model card, the same for people (see `model_card`)

The folder is written under a temporary name and renamed, so it is complete or absent. When it is
read, the hashes of its files must be those in model.json. That detects accidents, and
files that were changed without their hash. Even if both are changed, no code can run: only JSON and
safetensors are read, and the network is one of afield's, built by its name.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from afield.deployment.description import (
    FORMAT_VERSION,
    Architecture,
    Calibration,
    Description,
    Estimate,
    Selection,
)
from afield.deployment.distances import Distances
from afield.deployment.model_files import (
    CARD_FILE,
    DESCRIPTION_FILE,
    DISTANCES_FILE,
    WEIGHTS_FILE,
    check_model_folder,
    file_inside,
    is_model_folder,
)
from afield.deployment.texts.encoder_files import copy_encoder, locate_encoder, without_paths
from afield.errors import DataError, SpecError
from afield.files import atomic_write, sha256, unwritable_reason

__all__ = [
    "Architecture",
    "Calibration",
    "Description",
    "Estimate",
    "Selection",
    "check_output_folder",
    "read_description",
    "read_model",
    "write_model",
]

# Far more than any valid description.
MAX_DESCRIPTION_BYTES = 64 * 2**20

_DESCRIPTION = TypeAdapter(Description)


def check_output_folder(out: Path, *, overwrite: bool = False) -> None:
    """Raise before any work if a model cannot be written there, or something would be lost."""
    if out.name in ("", ".."):
        raise SpecError(f"{out}: not the name of a folder; give a new folder")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise SpecError(f"{out}: is a file or a link; give a folder to write the model to")
    if out.exists() and any(out.iterdir()):
        if not is_model_folder(out):
            raise SpecError(f"{out}: exists and is not a model folder; give a new folder")
        if not overwrite:
            raise SpecError(f"{out}: exists already; give a new folder, or --force to replace it")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(existing, os.W_OK):
        reason = unwritable_reason(existing)
        raise SpecError(f"{out}: cannot be written ({reason}); give another folder")


def write_model(
    out: Path,
    description: Description,
    weights: Mapping[str, Tensor],
    distances: Distances | None,
    card: str,
    *,
    overwrite: bool = False,
) -> Description:
    """Write a complete model folder or nothing; return the description with its hashes."""
    check_output_folder(out, overwrite=overwrite)
    tensors = {WEIGHTS_FILE: {name: value.cpu().contiguous() for name, value in weights.items()}}
    if distances is not None:
        tensors[DISTANCES_FILE] = distances.tensors()
    try:
        with atomic_write(out, durable=True) as folder:
            folder.mkdir()
            for name, content in tensors.items():
                (folder / name).write_bytes(save(content, metadata={"format": "pt"}))
            files = (*tensors, *copy_encoder(description, folder))
            hashed = replace(description, files={name: sha256(folder / name) for name in files})
            fields = _DESCRIPTION.dump_python(without_paths(hashed), mode="json", by_alias=True)
            text = json.dumps(fields, indent=1) + "\n"
            (folder / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
            (folder / CARD_FILE).write_text(card, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another folder"
        ) from None
    return hashed


def read_model(folder: Path) -> tuple[Description, dict[str, Tensor], Distances | None]:
    """Read and check the description, weights and distances of a model; no code is run."""
    check_model_folder(folder)
    description = read_description(folder)
    if WEIGHTS_FILE not in description.files:
        raise DataError(
            f"{folder / DESCRIPTION_FILE}: has no hash of {WEIGHTS_FILE}; get the folder again"
        )
    weights = _read_tensors(folder, WEIGHTS_FILE, description.files[WEIGHTS_FILE])
    if DISTANCES_FILE not in description.files:
        return description, weights, None
    tensors = _read_tensors(folder, DISTANCES_FILE, description.files[DISTANCES_FILE])
    return description, weights, _to_distances(folder / DISTANCES_FILE, tensors)


def read_description(folder: Path) -> Description:
    """Read and check the description in a model folder."""
    path = file_inside(folder, DESCRIPTION_FILE)
    if path.stat().st_size > MAX_DESCRIPTION_BYTES:
        raise DataError(f"{path}: too large to describe a model; get the folder again")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable JSON ({error}); get the folder again") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        later = isinstance(version, int) and version > FORMAT_VERSION
        problem = f"has format {version}, from a later afield" if later else "not from afield"
        raise DataError(f"{path}: {problem}; this version reads format {FORMAT_VERSION}")
    try:
        about: Description = _DESCRIPTION.validate_python(content)
    except (ValidationError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            field_name = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            reason = f"{field_name}: {message}" if field_name else message
        raise DataError(f"{path}: not a valid description of a model ({reason})") from None
    return locate_encoder(about, folder)


def _read_tensors(folder: Path, name: str, expected_hash: str) -> dict[str, Tensor]:
    path = file_inside(folder, name)
    try:
        unchanged = sha256(path) == expected_hash
        tensors = load_file(path) if unchanged else {}
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: not readable safetensors ({error}), and no other format is read"
        ) from None
    if not unchanged:
        raise DataError(
            f"{path}: its SHA-256 is not the one in {DESCRIPTION_FILE}, so it was changed or cut "
            "short; get the folder again"
        )
    bad = next((key for key, value in tensors.items() if not value.isfinite().all()), None)
    if bad is not None:
        raise DataError(f"{path}: NaN or infinity in {bad}; fit the model again")
    return tensors


def _to_distances(path: Path, tensors: Mapping[str, Tensor]) -> Distances:
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    centers, whitening = shapes.get("centres", ()), shapes.get("whitening", ())
    if len(centers) != 2 or whitening != (centers[1], centers[1]) or not centers[0]:
        raise DataError(f"{path}: not the distances of a model; get the folder again")
    return Distances.from_tensors(tensors)
