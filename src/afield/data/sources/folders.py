"""Folders as data: pictures or sounds in ``root/<domain>/<class>/<file>``, or a folder of fonts.

Files are decoded once (`cache`), and everything is checked before training. Where a folder has the
lists ``<domain>_train.txt`` and ``<domain>_test.txt`` for all of its domains (one path a line,
relative to the folder; what follows a space is ignored, as in DomainNet's), sources train on the
one and validate on the other, unseen domains report on the test list, and files in neither are left
out.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from afield.data.cache import contents_digest, decode_files
from afield.data.domains import Domain, DomainSet, Reader, ReadOptions
from afield.data.images import silence_pillow
from afield.data.modality import IMAGE, FileModality, modality_of_file
from afield.errors import DataError

__all__ = [
    "LabeledFile",
    "folder_dataset",
    "folder_reader",
    "read_files",
]

# Left behind by operating systems; hidden files are passed over as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")
# How many broken files are named in one error.
MAX_NAMED_FILES = 5


@dataclass(frozen=True)
class LabeledFile:
    """One file: its class, and whether it is on the test list where there are lists."""

    file: Path
    label: int
    test: bool | None = None


DomainFiles = Mapping[str, Sequence[LabeledFile]]


def folder_dataset(path: Path) -> DomainSet:
    """A user's own ``root/<domain>/<class>/<file>``; domains and classes are read off the tree."""
    path = path.resolve()
    modality = _modality_of(path)
    names = [child.name for child in _folders(path)]
    if len(names) < 2:
        raise DataError(
            f"{path}: {len(names)} domain folder(s); leaving one out takes at least two "
            f"(root/<domain>/<class>/<{modality.noun}>)"
        )
    classes = sorted({label.name for name in names for label in _folders(path / name)})
    files = _tree(path, names, classes, modality)
    if len(classes) < 2:
        known = f"only class {classes[0]!r}" if classes else "no class folders"
        raise DataError(f"{path}: {known}; a classifier needs two classes")
    every = [entry.file for entries in files.values() for entry in entries]
    return DomainSet(
        name=path.name,
        domains=tuple(names),
        classes=tuple(classes),
        reader=partial(read_files, path, files, modality),
        origin=str(path),
        fingerprint=_fingerprint(
            contents_digest(path, [*every, *_lists(path, names)]), names, classes
        ),
        modality=modality,
    )


def _fingerprint(*parts: object) -> str:
    """Of the files, and of the folders: one without files is a class all the same."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def folder_reader(
    folder: str, domains: Sequence[str], classes: Sequence[str], modality: FileModality = IMAGE
) -> Reader:
    """Reads ``<root of all data>/folder/<domain>/<class>/<file>``, for a declared dataset."""

    def read(reading: ReadOptions) -> dict[str, Domain]:
        path = reading.root.resolve() / folder
        return read_files(path, _tree(path, domains, classes, modality), modality, reading)

    return read


def read_files(
    root: Path, files: DomainFiles, modality: FileModality, options: ReadOptions
) -> dict[str, Domain]:
    """The domains that these files make, decoded and mapped into memory."""
    side = options.side or modality.stored_side(64)
    every = [entry.file for entries in files.values() for entry in entries]
    with silence_pillow():
        found = decode_files(
            root,
            every,
            partial(modality.decode, side=side),
            description=modality.cache_form(side),
            like=modality.empty_row(side),
            decode_errors=modality.decode_errors,
        )
    if found.broken and not options.skip_broken:
        raise DataError(_told(root, found.broken, modality))
    domains, start = {}, 0
    for name, entries in files.items():
        left = [entry for entry in entries if entry.file not in found.broken]
        rows = found.rows[start : start + len(left)]
        reasons = [(entry.file, found.broken.get(entry.file)) for entry in entries]
        broken = {str(f.relative_to(root)): _plain(why, f) for f, why in reasons if why}
        domains[name] = _domain(root, modality.to_samples(rows), left, broken)
        start += len(left)
    return domains


def _domain(
    root: Path, x: Tensor, entries: Sequence[LabeledFile], broken: Mapping[str, str]
) -> Domain:
    tests = [entry.test for entry in entries]
    return Domain(
        x=x,
        y=torch.tensor([entry.label for entry in entries]),
        test=None if None in tests or not tests else torch.tensor(tests),
        names=[str(entry.file.relative_to(root)) for entry in entries],
        broken=broken,
    )


def _told(root: Path, broken: Mapping[Path, str], modality: FileModality) -> str:
    """All broken files in one line, relative to their folder."""
    named = [f"{file.relative_to(root)} ({_plain(why, file)})" for file, why in broken.items()]
    more = f" and {len(named) - MAX_NAMED_FILES} more" if len(named) > MAX_NAMED_FILES else ""
    what = f"{len(named)} of its files are no {modality.noun}s, or broken ones"
    listed = "; ".join(named[:MAX_NAMED_FILES])
    return f"{root}: {what}: {listed}{more}; replace them, or use --skip-broken"


def _plain(reason: str, file: Path) -> str:
    """A library's reason without the path, which is told anyway."""
    return reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :") or "unreadable"


def _modality_of(path: Path) -> FileModality:
    """Pictures or sounds: what the first file in a class folder is."""
    for domain in _folders(path):
        for label in _folders(domain):
            for file in _files(label):
                if modality := modality_of_file(file):
                    return modality
    return IMAGE


def _tree(
    root: Path, domains: Sequence[str], classes: Sequence[str], modality: FileModality
) -> dict[str, list[LabeledFile]]:
    """The files of all domains, with the numbers of their classes."""
    _check_stray(root, modality, "a domain folder", f"{root}/<domain>/<class>")
    number = {label: i for i, label in enumerate(classes)}
    found = {}
    for domain in domains:
        if not (root / domain).is_dir():
            raise DataError(f"{root}: no folder {domain!r}; the dataset is not complete")
        _check_stray(root / domain, modality, "a class folder", f"{root / domain}/<class>")
        unknown = [label for label in _folders(root / domain) if label.name not in number]
        if unknown:
            raise DataError(f"{unknown[0]}: not a class of this dataset; move it elsewhere")
        entries = [
            LabeledFile(file, number[label.name])
            for label in _folders(root / domain)
            for file in _class_files(label, modality)
        ]
        if not entries:
            raise DataError(f"{root / domain}: no {modality.noun} in this domain; add or remove it")
        found[domain] = entries
    return _listed(root, found)


def _class_files(label: Path, modality: FileModality) -> list[Path]:
    deeper = _folders(label)
    if deeper:
        raise DataError(f"{deeper[0]}: a folder in a class folder; move its {modality.noun}s up")
    files = _files(label)
    for file in files:
        if file.suffix.lower() not in modality.suffixes:
            known = ", ".join(modality.suffixes)
            raise DataError(f"{file}: not an {modality.noun} ({known}); move it elsewhere")
    return files


def _listed(root: Path, found: dict[str, list[LabeledFile]]) -> dict[str, list[LabeledFile]]:
    """The files that are on a list, if every domain has its two lists; otherwise all."""
    if not _lists(root, list(found)):
        return found
    listed = {}
    for domain, entries in found.items():
        known = {entry.file: entry for entry in entries}
        chosen: dict[Path, LabeledFile] = {}
        for part in ("train", "test"):
            where = root / f"{domain}_{part}.txt"
            for line in _lines(where):
                # A name may have spaces, and a number may follow it.
                file = root / line if root / line in known else root / line.rpartition(" ")[0]
                if file not in known:
                    raise DataError(f"{where}: {line!r} is not a file of domain {domain!r}")
                if file in chosen:
                    raise DataError(f"{where}: {line!r} is listed twice, or in both lists")
                chosen[file] = LabeledFile(file, known[file].label, test=part == "test")
        listed[domain] = [chosen[entry.file] for entry in entries if entry.file in chosen]
        if len({entry.test for entry in listed[domain]}) < 2:
            raise DataError(f"{root / domain}_train.txt, _test.txt: one of the lists is empty")
    return listed


def _lists(root: Path, domains: Sequence[str]) -> list[Path]:
    lists = [root / f"{name}_{part}.txt" for name in domains for part in ("train", "test")]
    there = [path for path in lists if path.is_file()]
    if there and len(there) < len(lists):
        missing = next(path for path in lists if path not in there)
        raise DataError(f"{missing}: not there, but {there[0].name} is; give all lists or none")
    return there


def _lines(path: Path) -> list[str]:
    try:
        # Some editors begin a text with a mark, which is none of the first name.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list ({error})") from None
    return [line.strip() for line in lines if line.strip()]


def _check_stray(path: Path, modality: FileModality, outside: str, instead: str) -> None:
    stray = [file for file in _files(path) if file.suffix.lower() in modality.suffixes]
    if stray:
        raise DataError(f"{stray[0]}: outside {outside}; move it to {instead}")


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in _children(path) if child.is_dir())


def _files(path: Path) -> list[Path]:
    return sorted(child for child in _children(path) if not child.is_dir())


def _children(path: Path) -> list[Path]:
    """What a folder holds, without hidden files and clutter; dead links are told."""
    try:
        found = [
            child
            for child in path.iterdir()
            if not child.name.startswith(".") and child.name.lower() not in IGNORED_NAMES
        ]
        dead = [child for child in found if child.is_symlink() and not child.exists()]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if dead:
        raise DataError(f"{dead[0]}: a link that leads nowhere; remove it")
    return found
