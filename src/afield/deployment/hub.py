"""Models on the Hugging Face hub: `afield push` and ``afield.load("hf:user/name")``."""

import re
from pathlib import Path

from afield.data.listing import HUB_PREFIX
from afield.deployment.model_files import (
    CARD_FILE,
    DESCRIPTION_FILE,
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
    return download_snapshot(repository, revision, kind="model", patterns=list(MODEL_FILES))


def push(model: str | Path, repository: str, *, private: bool = False) -> str:
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
    """
    from huggingface_hub import HfApi

    folder = Path(model).expanduser()
    if FORM.fullmatch(repository) is None or "@" in repository:
        raise SpecError(f"{repository}: not a name on the hub; write user/name")
    about, _, _ = read_model(folder)
    files = _published_files(folder, about)
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


def _published_files(folder: Path, about: Description) -> list[str]:
    """The files of a model folder that are uploaded; a link that leads elsewhere is an error."""
    names = [DESCRIPTION_FILE, *(name for name in MODEL_FILES if name in about.files)]
    card = folder / CARD_FILE
    names += [CARD_FILE] * (card.exists() or card.is_symlink())
    for name in names:
        file_inside(folder, name)
    return names
