"""Models on the Hugging Face hub: `afield push` and ``afield.load("hf:user/name")``."""

import re
from pathlib import Path

from afield.data.listing import HUB_PREFIX
from afield.deployment.model_files import (
    CARD_FILE,
    DESCRIPTION_FILE,
    HELD_OUT_FILE,
    MODEL_FILES,
    file_inside,
)
from afield.deployment.model_folder import Description, read_model
from afield.errors import DataError, SpecError

FORM = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def fetch_model(spec: str) -> Path:
    """Folder of a model in the hub's cache, downloaded if it is not there."""
    from afield.data.sources.hub import download_snapshot

    match = FORM.fullmatch(spec.removeprefix(HUB_PREFIX))
    if match is None:
        raise SpecError(f"{spec}: not a model of the hub; write hf:user/name")
    repository, revision = match.groups()
    patterns = [*MODEL_FILES, HELD_OUT_FILE]
    return download_snapshot(repository, revision, kind="model", patterns=patterns)


def push(
    model: str | Path, repository: str, *, private: bool = False, with_held_out: bool = False
) -> str:
    """Upload a model folder to the hub, as a new commit of a repository; return its address.

    Only model.json, the files that it lists, and the card are uploaded. Log in first:
    ``hf auth login``.

    Parameters
    ----------
    model
        A model folder that `fit` has written; it is read and checked first.
    repository
        ``user/name``, created if it does not exist.
    private
        Whether a new repository is private.
    with_held_out
        Whether to upload the outputs for held-out domains too, which `afield estimate` needs.
    """
    from huggingface_hub import HfApi

    folder = Path(model).expanduser()
    if FORM.fullmatch(repository) is None or "@" in repository:
        raise SpecError(f"{repository}: not a name on the hub; write user/name")
    about, _, _ = read_model(folder)
    files = _published_files(folder, about, with_held_out=with_held_out)
    api = HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=files,
            commit_message=f"Upload {about.name}",
        )
    except Exception as error:  # of the hub, of its transport, or of the file system
        reason = str(error).partition("\n")[0][:160]
        raise DataError(
            f"{repository}: cannot be written on the hub ({reason}); log in with `hf auth login`, "
            "and check the name and the connection"
        ) from error
    return str(commit.repo_url)


def _published_files(folder: Path, about: Description, *, with_held_out: bool) -> list[str]:
    """The files of a model folder that are uploaded; a link that leads elsewhere is an error."""
    published = (*MODEL_FILES, HELD_OUT_FILE) if with_held_out else MODEL_FILES
    names = [DESCRIPTION_FILE, *(name for name in published if name in about.files)]
    card = folder / CARD_FILE
    names += [CARD_FILE] * (card.exists() or card.is_symlink())
    for name in names:
        file_inside(folder, name)
    return names
