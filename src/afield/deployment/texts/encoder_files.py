"""The encoder of a model for texts in its model folder: its configuration and its tokenizer.

    encoder/config.json       the configuration from which the library transformers builds it
    encoder/tokenizer.json    its tokenizer

Its weights are among those of the model. In memory, a description has the paths of these files. On
disk it has names without paths, and whatever they are, the files of the folder are used: reading a
model neither downloads an encoder nor looks at another folder.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from afield.deployment.description import Architecture, Description
from afield.deployment.model_files import ENCODER_FILES, file_inside
from afield.errors import DataError
from afield.experiments.run import name_without_path
from afield.files import read_json_object, sha256
from afield.networks.backbone import find_backbone

__all__ = ["copy_encoder", "locate_encoder", "without_paths"]

FAMILY = "hf:"
CONFIG, TOKENIZER = ENCODER_FILES
# Values of a configuration that name code, or the place where it was read.
DROPPED_VALUES = ("auto_map", "_name_or_path")


def without_paths(about: Description) -> Description:
    """The description as it is written to the disk, and shown on the card."""
    run = about.run
    if run is not None:
        given = {
            name: name_without_path(value) if name == "backbone" else value
            for name, value in run.given.items()
        }
        run = replace(run, backbone=name_without_path(run.backbone), given=given)
    inputs = replace(about.inputs, tokenizer=TOKENIZER if about.inputs.tokenizer else "")
    return replace(about, run=run, inputs=inputs, architecture=_renamed(about, name_without_path))


def locate_encoder(about: Description, folder: Path) -> Description:
    """The description with the paths of the encoder's files in a model folder; checks the files."""
    if not _encoder_name(about):
        if about.inputs.tokenizer:
            raise DataError(f"{folder}: has a tokenizer without its encoder; get the folder again")
        return about
    for name in ENCODER_FILES:
        _check_file(about, folder, name)
    home = file_inside(folder, CONFIG).absolute().parent

    def located(backbone: str) -> str:
        options = backbone.partition("?")[2]
        here = f"{FAMILY}{home}{f'?{options}' if options else ''}"
        return here if backbone.startswith(FAMILY) else backbone

    inputs = replace(about.inputs, tokenizer=str(home / Path(TOKENIZER).name))
    return replace(about, inputs=inputs, architecture=_renamed(about, located))


def copy_encoder(about: Description, folder: Path) -> tuple[str, ...]:
    """Copy configuration and tokenizer of a model's encoder to its folder; return their names."""
    name = _encoder_name(about)
    if not name:
        return ()
    tokenizer = Path(find_backbone(name).tokenizer)
    content = read_json_object(tokenizer.with_name(Path(CONFIG).name))
    (folder / CONFIG).parent.mkdir()
    kept = {key: value for key, value in content.items() if key not in DROPPED_VALUES}
    (folder / CONFIG).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (folder / TOKENIZER).write_bytes(tokenizer.read_bytes())
    return ENCODER_FILES


def _encoder_name(about: Description) -> str:
    """The encoder of texts in a model: its backbone, or the frozen network in front; or empty."""
    spec = about.architecture
    names = (spec.backbone, spec.encoder.backbone if spec.encoder else "")
    return next((name for name in names if name.startswith(FAMILY)), "")


def _renamed(about: Description, rename: Any) -> Architecture:
    spec = about.architecture
    front = spec.encoder and replace(spec.encoder, backbone=rename(spec.encoder.backbone))
    return replace(spec, backbone=rename(spec.backbone), encoder=front)


def _check_file(about: Description, folder: Path, name: str) -> None:
    """Raise unless a file of the encoder is in the folder, unchanged, and names no code."""
    path = file_inside(folder, name)
    try:
        changed = sha256(path) != about.files.get(name)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if changed:
        raise DataError(f"{path}: its SHA-256 is not the one in model.json; get the folder again")
    if name == CONFIG and "auto_map" in read_json_object(path):
        raise DataError(f"{path}: names code (auto_map), which is never run; get another model")
