"""Datasets in folders: images, audio files or texts in ``root/<domain>/<class>/<file>``.

The tree is checked before training, and every file is decoded once (`afield.data.cache`).

A folder may have the lists ``<domain>_train.txt`` and ``<domain>_test.txt`` for all of its domains:
one path per line, relative to the folder; what follows a space is ignored, as in DomainNet's lists.
A source domain then trains on its training list and validates on its test list, an unseen domain is
evaluated on its test list, and files on neither list are left out. With a third list
``<domain>_val.txt`` of all domains, a source validates on it, and its test list selects nothing.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.cache import DecodedFiles, contents_digest, decode_files
from afield.data.domains import Domain, DomainSet, Reader, ReadOptions
from afield.data.listing import Entry, once
from afield.data.modalities.image import Image
from afield.data.modalities.text import Text
from afield.data.modality import FileModality, modality_of_file
from afield.data.sources.strays import Stray, find_strays, visible_entries
from afield.errors import DataError
from afield.files import read_text
from afield.progress import track


@dataclass(frozen=True, slots=True)
class LabeledFile:
    """A file, the index of its class, and whether it is on a test list; None without lists.

    `validation` is whether it is on a validation list.
    """

    file: Path
    label: int
    test: bool | None = None
    validation: bool = False


def find_files(
    root: Path, domains: Sequence[str], classes: Sequence[str], modality: FileModality
) -> dict[str, list[LabeledFile]]:
    """Find the files of all domains, checked; with lists, only the files on them."""
    lists = find_lists(root, domains)
    target = f"{root}/<domain>/<class>"
    _check_no_stray_files(root, modality, "a domain folder", target, lists)
    label_of = {name: label for label, name in enumerate(classes)}
    files = {domain: _domain_files(root / domain, label_of, modality) for domain in domains}
    if not lists:
        return files
    return {domain: _apply_lists(root, domain, entries) for domain, entries in files.items()}


def find_lists(root: Path, domains: Sequence[str]) -> list[Path]:
    """Training, test and perhaps validation lists of all domains; empty if there are none."""
    try:
        splits = _splits(root, domains)
        lists = [root / f"{name}_{split}.txt" for name in domains for split in splits]
        existing = [path for path in lists if path.is_file()]
    except OSError:  # the name of a domain is nearly as long as a file name may be
        return []
    if existing and len(existing) < len(lists):
        missing = next(path for path in lists if path not in existing)
        raise DataError(f"{missing}: missing, unlike {existing[0].name}; give all lists or none")
    return existing


def _splits(root: Path, domains: Sequence[str]) -> tuple[str, ...]:
    """Names of the lists: three if any domain has a validation list."""
    validated = any((root / f"{name}_val.txt").is_file() for name in domains)
    return ("train", "val", "test") if validated else ("train", "test")


def list_folders(path: Path) -> list[Path]:
    """Folders in a folder, sorted, without hidden ones; their names must be UTF-8."""
    folders = [child.path for child in _children(path) if child.is_folder]
    for folder in folders:
        try:
            folder.name.encode()
        except UnicodeEncodeError:
            raise DataError(f"{str(folder)!r}: the name is not UTF-8; rename it") from None
    return folders


def list_files(path: Path) -> list[Path]:
    """Files in a folder, sorted, without hidden ones."""
    return [child.path for child in _children(path) if not child.is_folder]


def _domain_files(
    folder: Path, label_of: dict[str, int], modality: FileModality
) -> list[LabeledFile]:
    if not folder.is_dir():
        raise DataError(f"{folder.parent}: no folder {folder.name!r}; the dataset is not complete")
    _check_no_stray_files(folder, modality, "a class folder", f"{folder}/<class>")
    class_folders = list_folders(folder)
    unknown = [path for path in class_folders if path.name not in label_of]
    if unknown:
        raise DataError(f"{unknown[0]}: not a class of this dataset; move it elsewhere")
    entries = [
        LabeledFile(file, label_of[path.name])
        for path in class_folders
        for file in _class_files(path, modality)
    ]
    if not entries:
        raise DataError(
            f"{folder}: no {modality.noun} in this domain; add some or remove the folder"
        )
    return entries


def _class_files(folder: Path, modality: FileModality) -> list[Path]:
    subfolders = list_folders(folder)
    if subfolders:
        raise DataError(
            f"{subfolders[0]}: a folder in a class folder; move its {modality.noun}s up"
        )
    files = list_files(folder)
    for file in files:
        if file.suffix.lower() not in modality.suffixes:
            suffixes = ", ".join(modality.suffixes)
            raise DataError(f"{file}: not an {modality.noun} ({suffixes}); move it elsewhere")
    return files


def _apply_lists(root: Path, domain: str, entries: Sequence[LabeledFile]) -> list[LabeledFile]:
    """Keep the files of a domain that are on its lists, and mark those on the test list."""
    labels = {entry.file: entry.label for entry in entries}
    listed: dict[Path, LabeledFile] = {}
    splits = _splits(root, [domain])
    for split in splits:
        path = root / f"{domain}_{split}.txt"
        for line in _read_lines(path):
            # A name may contain spaces, and a number may follow it.
            file = root / line if root / line in labels else root / line.rpartition(" ")[0]
            if file not in labels:
                raise DataError(f"{path}: {line!r} is not a file of domain {domain!r}")
            if file in listed:
                raise DataError(f"{path}: {line!r} is listed twice, or on both lists")
            listed[file] = LabeledFile(file, labels[file], split == "test", split == "val")
    if len({(entry.test, entry.validation) for entry in listed.values()}) < len(splits):
        names = ", ".join(f"_{split}.txt" for split in splits)
        raise DataError(f"{root / domain}{names}: one of the lists is empty")
    return [listed[entry.file] for entry in entries if entry.file in listed]


def _read_lines(path: Path) -> list[str]:
    try:
        # utf-8-sig: some editors write a BOM, which is not part of the first name.
        lines = read_text(path, encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list ({error})") from None
    return [line.strip() for line in lines if line.strip()]


def _check_no_stray_files(
    path: Path, modality: FileModality, outside: str, target: str, lists: Sequence[Path] = ()
) -> None:
    files = [file for file in list_files(path) if file not in lists]
    stray = [file for file in files if file.suffix.lower() in modality.suffixes]
    if stray:
        raise DataError(f"{stray[0]}: outside {outside}; move it to {target}")


def folder_strays(root: Path) -> list[Stray]:
    """All files and folders in the wrong place; none if this is no folder of domains."""
    folders = [child.path for child in visible_entries(root) if child.is_folder]
    if sum(any(child.is_folder for child in visible_entries(path)) for path in folders) < 2:
        return []
    return find_strays(root, _detect_modality(root))


def _children(path: Path) -> list[Entry]:
    """Files and folders in a folder, without hidden and ignored ones.

    A broken link is an error, and so is a pipe, device or socket, whose reading may never end.
    """
    children = visible_entries(path)
    others = [child.path for child in children if child.is_other]
    if others:
        what = "not a regular file" if others[0].exists() else "a broken link"
        raise DataError(f"{others[0]}: {what}; remove it")
    return children


# Number of broken files that an error message names.
MAX_NAMED_FILES = 5

DomainFiles = Mapping[str, Sequence[LabeledFile]]


def _has_domains(path: Path) -> bool:
    """Whether two or more folders in it have folders themselves, as domains have classes."""
    return sum(bool(list_folders(child)) for child in list_folders(path)) > 1


def folder_dataset(path: Path) -> DomainSet:
    """Dataset of a user's folder; its subfolders are the domains, theirs are the classes."""
    path = path.resolve()
    return once(("dataset", path), lambda: _folder_dataset(path))


def _folder_dataset(path: Path) -> DomainSet:
    modality = _detect_modality(path)
    names = [child.name for child in list_folders(path)]
    if len(names) < 2:
        inner = [path / name for name in names if _has_domains(path / name)]
        guess = f"; did you mean {inner[0]}?" if inner else ""
        raise DataError(
            f"{path}: {len(names)} domain folder(s); at least two are needed, as "
            f"root/<domain>/<class>/<{modality.noun}>{guess}"
        )
    classes = sorted({folder.name for name in names for folder in list_folders(path / name)})
    if not classes and _has_domains(path.parent):
        raise DataError(f"{path}: no class folders; did you mean {path.parent}?")
    files = find_files(path, names, classes, modality)
    if len(classes) < 2:
        present = f"only class {classes[0]!r}" if classes else "no class folders"
        raise DataError(f"{path}: {present}; a classifier needs two classes")
    contents = contents_digest(path, [*_paths(files), *find_lists(path, names)])
    return DomainSet(
        name=path.name,
        domains=tuple(names),
        classes=tuple(classes),
        reader=partial(read_files, path, files, modality),
        training=modality.training,
        origin=str(path),
        fingerprint=_fingerprint(contents, names, classes),
        modality=modality,
    )


def folder_reader(
    folder: str,
    domains: Sequence[str],
    classes: Sequence[str],
    modality: FileModality = Image(),  # noqa: B008
) -> Reader:
    """Reader of ``<data root>/folder/<domain>/<class>/<file>``, for a declared dataset."""

    def read(options: ReadOptions) -> dict[str, Domain]:
        path = options.root.resolve() / folder
        return read_files(path, find_files(path, domains, classes, modality), modality, options)

    return read


def read_files(
    root: Path,
    files: DomainFiles,
    modality: FileModality,
    options: ReadOptions,
    *,
    decode: Callable[[Path], NDArray[Any]] | None = None,
    stated: Sequence[Path] | None = None,
    selection: str = "",
) -> dict[str, Domain]:
    """Decode the files of all domains; samples are mapped into memory.

    Samples within one file have paths such as ``samples.parquet/17``; then `decode` reads such a
    path and `stated` are the files themselves. `selection` distinguishes selections of the files.
    """
    side = options.side or modality.stored_side(64)
    modality = modality.with_tokens(options.tokenizer, options.tokens)
    paths = _paths(files)
    with modality.decoding():
        if (
            decode is None
            and options.most_decoded is not None
            and len(paths) > options.most_decoded
        ):
            decoded = _read_headers(root, paths, modality, modality.empty_row(side))
        else:
            decoded = decode_files(
                root,
                paths,
                decode or partial(modality.decode, side=side),
                description=modality.cache_form(side) + selection,
                like=modality.empty_row(side),
                decode_errors=modality.decode_errors,
                stated=stated,
            )
    reasons = {file: _strip_path(reason, file) for file, reason in decoded.broken.items()}
    if reasons and not options.skip_broken:
        raise DataError(_describe_broken(root, reasons, modality))
    domains, start = {}, 0
    for name, entries in files.items():
        good = [entry for entry in entries if entry.file not in reasons]
        rows = decoded.rows[start : start + len(good)]
        broken = {
            str(entry.file.relative_to(root)): reasons[entry.file]
            for entry in entries
            if entry.file in reasons
        }
        domain = _domain(root, modality.to_samples(rows), good, broken)
        cut, folder = modality.count_cut(rows), None if decode else root
        domains[name] = replace(domain, truncated=cut, folder=folder)
        start += len(good)
    return domains


def _read_headers(
    root: Path, paths: Sequence[Path], modality: FileModality, like: NDArray[Any]
) -> DecodedFiles:
    """Which files are broken, from their headers; all rows are one row of zeros in memory."""
    broken = {}
    for path in track(paths, f"reading headers of {root.name}", len(paths)):
        try:
            modality.read_header(path)
        except modality.decode_errors as error:
            broken[path] = (str(error).splitlines() or ["unreadable"])[0]
    row = torch.zeros_like(torch.from_numpy(like))
    return DecodedFiles(row.expand(len(paths) - len(broken), *like.shape), broken)


def _paths(files: DomainFiles) -> list[Path]:
    return [entry.file for entries in files.values() for entry in entries]


def _domain(
    root: Path, x: Tensor, entries: Sequence[LabeledFile], broken: Mapping[str, str]
) -> Domain:
    tests = [entry.test for entry in entries]
    validation = [entry.validation for entry in entries]
    return Domain(
        x=x,
        y=torch.tensor([entry.label for entry in entries]),
        test=None if None in tests or not tests else torch.tensor(tests),
        validation=torch.tensor(validation) if any(validation) else None,
        names=[str(entry.file.relative_to(root)) for entry in entries],
        broken=broken,
    )


def _fingerprint(*parts: object) -> str:
    """Digest of the contents and of the folders, since a folder without files is a class too."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _describe_broken(root: Path, reasons: Mapping[Path, str], modality: FileModality) -> str:
    """Name the broken files in one line, relative to the folder."""
    named = [f"{file.relative_to(root)} ({reason})" for file, reason in reasons.items()]
    more = f" and {len(named) - MAX_NAMED_FILES} more" if len(named) > MAX_NAMED_FILES else ""
    files = "; ".join(named[:MAX_NAMED_FILES])
    return (
        f"{root}: {len(named)} broken file(s), or not {modality.noun}s: {files}{more}; "
        "replace them, or use --skip-broken"
    )


def _strip_path(reason: str, file: Path) -> str:
    """Remove the path from the error message of a library; ours names it already."""
    return reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :") or "unreadable"


def _detect_modality(path: Path) -> FileModality:
    """Modality of the first file in a class folder whose suffix is known.

    Folders of images may contain notes: only a folder without other samples is one of texts.
    """
    notes: FileModality | None = None
    for file in _labeled_files(path):
        modality = modality_of_file(file)
        if modality and not modality.has_tokens:
            return modality
        notes = notes or modality
    return notes or Image()


def _labeled_files(path: Path) -> Iterator[Path]:
    """Files in the class folders of all domains; links that are broken are no files."""
    for domain in visible_entries(path):
        for of_class in visible_entries(domain.path) if domain.is_folder else ():
            for file in visible_entries(of_class.path) if of_class.is_folder else ():
                if not file.is_folder and not file.is_other:
                    yield file.path


# Depth of a file in root/<domain>/<class>/<file>.
LABELED_DEPTH = 3


def unlabelled_files(path: Path) -> DomainSet | None:
    """The images or texts of a file or folder as one domain without classes; None if labelled.

    Folders of other data may contain notes: only a folder in which all files are texts is one of
    texts.
    """
    path = path.expanduser()
    if not path.exists():
        return None
    path = path.resolve()
    files = _visible_files(path)
    return _of_images(path, files) or _of_texts(path, files)


def _of_images(path: Path, files: list[Path]) -> DomainSet | None:
    files = [file for file in files if file.suffix.lower() in Image.suffixes]
    if not files or (path.is_dir() and min(_depths(path, files)) >= LABELED_DEPTH):
        return None
    return _dataset(path, files, Image())


def _of_texts(path: Path, files: list[Path]) -> DomainSet | None:
    if not files or any(file.suffix.lower() not in Text.suffixes for file in files):
        return None
    # Labelled texts may lie beside notes and lists of files, which are texts, too.
    if path.is_dir() and max(_depths(path, files)) >= LABELED_DEPTH:
        return None
    return _dataset(path, files, Text())


def _dataset(path: Path, files: list[Path], modality: FileModality) -> DomainSet:
    root = path if path.is_dir() else path.parent
    entries = [LabeledFile(file, 0) for file in files]
    return DomainSet(
        name=path.stem,
        domains=(path.stem,),
        classes=(),
        reader=partial(_read, root, path.stem, entries, modality),
        origin=str(path),
        fingerprint=contents_digest(root, files),
        modality=modality,
    )


def _visible_files(path: Path) -> list[Path]:
    """The file itself, or the files at any depth of a folder; hidden ones are ignored."""
    if path.is_file():
        return [path]
    files: list[Path] = []
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _depths(root: Path, files: list[Path]) -> set[int]:
    return {len(file.relative_to(root).parts) for file in files}


def _read(
    root: Path,
    name: str,
    entries: list[LabeledFile],
    modality: FileModality,
    options: ReadOptions,
) -> dict[str, Domain]:
    return read_files(root, {name: entries}, modality, options)
