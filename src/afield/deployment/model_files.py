"""The files of a model folder, and whether a path is one; nothing large is imported here."""

import json
from pathlib import Path

from afield.data.listing import similar_path
from afield.errors import DataError
from afield.files import read_text, restore_folder

DESCRIPTION_FILE, CARD_FILE = "model.json", "README.md"
WEIGHTS_FILE, DISTANCES_FILE = "model.safetensors", "distance.safetensors"
# Outputs for held-out domains; not uploaded unless it is asked for.
HELD_OUT_FILE = "held_out.safetensors"
# Of an encoder of texts: its configuration and its tokenizer.
ENCODER_FILES = ("encoder/config.json", "encoder/tokenizer.json")
# Of a model that is kept as a LoRA on a base: what PEFT calls these.
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MODEL_FILES = (
    *ADAPTER_FILES,
    DESCRIPTION_FILE,
    CARD_FILE,
    WEIGHTS_FILE,
    DISTANCES_FILE,
    *ENCODER_FILES,
)
# Suffixes of weights that can only be read by unpickling.
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def is_model_folder(path: Path) -> bool:
    """Whether a path looks like a folder that `write_model` has written."""
    try:
        content = json.loads(read_text(path / DESCRIPTION_FILE))
        return isinstance(content, dict) and {"format", "architecture", "files"} <= content.keys()
    except (OSError, ValueError, RecursionError):
        return False


def check_model_folder(folder: Path) -> None:
    """Raise an error unless this is a folder with the description of a model."""
    restore_folder(folder)
    if not folder.is_dir():
        guess = similar_path(folder)
        advice = f"did you mean {guess}?" if guess else "`afield fit … --out` writes one"
        raise DataError(f"{folder}: no such model folder; {advice}")
    file_inside(folder, DESCRIPTION_FILE)


def file_inside(folder: Path, name: str) -> Path:
    """The path of a file in the folder; links must not lead to a file elsewhere.

    In the hub's cache, a snapshot has links to the files of its repository.
    """
    path = folder / name
    inside = folder.resolve()
    if inside.parent.name == "snapshots" and inside.parents[1].name.startswith("models--"):
        inside = inside.parents[1]
    if not path.resolve().is_relative_to(inside):
        raise DataError(f"{path}: a link that leads out of the folder; put the file itself there")
    if not path.is_file():
        pickled = next((file for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES), None)
        note = f" ({pickled.name} is not read: it could run code)" if pickled else ""
        raise DataError(f"{folder}: no {name} in it{note}; give a folder of `afield fit`")
    return path
