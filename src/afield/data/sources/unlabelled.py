"""Images without labels: one file, or a folder whose files are in no folders of classes."""

from functools import partial
from pathlib import Path

from afield.data.cache import contents_digest
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.modality import IMAGE
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile

__all__ = ["unlabelled_images"]

# Depth of a file in root/<domain>/<class>/<file>.
LABELED_DEPTH = 3


def unlabelled_images(path: Path) -> DomainSet | None:
    """The images of a file or folder as one domain without classes; None if they have labels."""
    path = path.expanduser()
    if not path.exists() or (path.is_file() and path.suffix.lower() not in IMAGE.suffixes):
        return None
    path = path.resolve()
    root = path if path.is_dir() else path.parent
    files = [path] if path.is_file() else _images(root)
    depths = {len(file.relative_to(root).parts) for file in files}
    if not files or (path.is_dir() and min(depths) >= LABELED_DEPTH):
        return None
    entries = [LabeledFile(file, 0) for file in files]
    return DomainSet(
        name=path.stem,
        domains=(path.stem,),
        classes=(),
        reader=partial(_read, root, path.stem, entries),
        origin=str(path),
        fingerprint=contents_digest(root, files),
        modality=IMAGE,
    )


def _images(root: Path) -> list[Path]:
    """Images at any depth; hidden files and folders are ignored."""
    images = [file for file in root.rglob("*") if file.suffix.lower() in IMAGE.suffixes]
    shown = [
        file
        for file in images
        if not any(part.startswith(".") for part in file.relative_to(root).parts)
    ]
    return sorted(shown)


def _read(
    root: Path, name: str, entries: list[LabeledFile], options: ReadOptions
) -> dict[str, Domain]:
    return read_files(root, {name: entries}, IMAGE, options)
