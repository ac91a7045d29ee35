"""Datasets before training: which are available, and what is in them.

An inspection has counts, broken files, duplicates and a contact sheet. Duplicates are samples with
the same bytes after decoding, or texts that begin with the same bytes. Within a domain they only
affect the validation split; across domains, a model is tested on samples it was trained on.
"""

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from afield import registry
from afield.data.domains import Domain, DomainSet, ReadOptions, data_root
from afield.data.downloads import fetch, unpack
from afield.data.lookup import find_dataset
from afield.data.modality import Fact, FileModality
from afield.data.prompts import dataset_prompts
from afield.data.scaling import extreme_value_warnings
from afield.data.sources.hub import write_hub_images
from afield.errors import AfieldError, DataError, SpecError
from afield.files import atomic_write, sha256
from afield.progress import progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Availability:
    """Whether the files of a dataset are available, and how to get them."""

    name: str
    available: bool
    how_to_get: str


def list_availability(root: Path | None = None) -> list[Availability]:
    """Availability of all datasets of afield and of other packages."""
    return [_availability(name, root or data_root()) for name in registry.names("datasets")]


def get_dataset(name: str, root: Path | None = None) -> DomainSet:
    """Download the missing files of a dataset; an error says what to do if that is impossible."""
    root = root or data_root()
    dataset = find_dataset(name, root)
    if dataset.origin:
        raise DataError(f"{name}: these are your own data; there is nothing to download")
    if dataset.missing_files(root):
        if dataset.download.hub:
            _get_from_hub(dataset, root)
        elif not dataset.download.archives:
            instructions = dataset.download.instructions
            raise DataError(
                f"{name}: afield cannot download it; {instructions} (data root: {root})"
            )
        root.mkdir(parents=True, exist_ok=True)
        for archive in dataset.download.archives:
            file = fetch(archive, root / "downloads")
            _unpack_or_move(file, root / archive.folder)
            file.unlink(missing_ok=True)
        dataset = find_dataset(name, root)
        missing = dataset.missing_files(root)
        if missing:
            raise DataError(f"{name}: downloaded and unpacked, but {missing[0]} is missing")
    return dataset


def _get_from_hub(dataset: DomainSet, root: Path) -> None:
    """Write the images of the hub home; without a connection, say how to get them by hand."""
    home = dataset.download
    try:
        write_hub_images(home.hub, root / home.folder, lists=home.hub_lists)
    except DataError as error:
        raise DataError(f"{error}; or {home.instructions}") from None


def _unpack_or_move(file: Path, into: Path) -> None:
    """Unpack an archive; move a file that readers open as it is, such as MNIST's."""
    if file.name.endswith((".zip", ".tar", ".tar.gz", ".tgz")):
        unpack(file, into)
    else:
        into.mkdir(parents=True, exist_ok=True)
        file.replace(into / file.name)


def _availability(name: str, root: Path) -> Availability:
    try:
        dataset = find_dataset(name, root)
    except (AfieldError, ImportError, AttributeError) as error:
        # A dataset of another package may fail to load; list the others all the same.
        return Availability(name, available=False, how_to_get=str(error))
    command, instructions = f"afield data get {name}", dataset.download.instructions
    automatic = bool(dataset.download.archives or dataset.download.hub)
    how_to_get = command if automatic else instructions or "comes with afield"
    return Availability(name, available=not dataset.missing_files(root), how_to_get=how_to_get)


IMAGE_SIZE = 64
# Of more files, only the headers are read unless all are to be decoded.
MAX_DECODED = 20_000
# Beginning of a file by which files of one size are told apart.
HEAD_BYTES = 4096
# Beginning of a text by which duplicates are found.
INSPECTED_BYTES = 1024
# Maximum number of class names to list.
MAX_NAMES = 20
# A class or domain that is this many times as large as another gets a remark.
IMBALANCE_RATIO = 3.0
# The same for the classes of one domain.
WITHIN_RATIO = 5.0
# Maximum number of rows and columns of a contact sheet, and the gray value between its cells.
MAX_CELLS, GAP_GRAY = 12, 0.8
# Widths of a cell and of a character, in inches.
CELL_INCHES, CHARACTER_INCHES = 0.9, 0.06


@dataclass(frozen=True)
class Inspection:
    """Contents of a dataset; `counts` has a row per domain and a column per class.

    Unless files were `decoded`, their headers were read, and duplicates are equal files.
    """

    dataset: DomainSet
    domains: Mapping[str, Domain]
    counts: NDArray[np.int64]
    broken: Mapping[str, str]
    duplicates: Sequence[tuple[str, str]]
    decoded: bool = True

    @property
    def facts(self) -> list[Fact]:
        """Facts that only the modality of the dataset has."""
        return self.dataset.modality.facts(self.domains)

    @property
    def remarks(self) -> list[str]:
        """Problems of the dataset, one sentence each."""
        remarks = [f"broken: {name} ({reason})" for name, reason in self.broken.items()]
        remarks += _missing_classes(self.dataset, self.counts)
        remarks += _imbalances(self.dataset, self.counts)
        remarks += _imbalances_within(self.dataset, self.counts)
        remarks += extreme_value_warnings(self.domains)
        remarks += self.dataset.modality.remarks(self.domains)
        if self.duplicates:
            first, second = self.duplicates[0]
            remarks.append(
                f"{len(self.duplicates)} sample(s) are duplicates of samples in another domain: "
                f"{first} equals {second}"
            )
        return remarks


def describe_prompts(dataset: DomainSet, class_names: str = "", templates: str = "") -> list[str]:
    """What a CLIP is asked: the sentences about the first class, and the names of all classes."""
    if not dataset.modality.resizable and not (class_names or templates):
        return []
    prompts = dataset_prompts(dataset, class_names, templates)
    shown = ", ".join(prompts.names[:MAX_NAMES])
    more = f" and {len(prompts) - MAX_NAMES} more" if len(prompts) > MAX_NAMES else ""
    return [
        f"prompts for CLIP: {' '.join(prompts.sentences(0))}",
        f"class names for CLIP: {shown}{more}",
    ]


def describe_facts(facts: Sequence[Fact]) -> list[str]:
    """One line for all facts with the same name."""
    by_name: dict[str, list[Fact]] = {}
    for fact in facts:
        by_name.setdefault(fact.name, []).append(fact)
    return [_describe(name, about) for name, about in by_name.items()]


def _describe(name: str, facts: Sequence[Fact]) -> str:
    if not facts[0].subject:
        return f"{facts[0]} of {facts[0].total} {name}"
    shown = ", ".join(f"{fact.subject} {fact}" for fact in facts[:MAX_NAMES])
    more = f" and {len(facts) - MAX_NAMES} more domains" if len(facts) > MAX_NAMES else ""
    return f"{name}: {shown}{more}"


def inspect_dataset(
    dataset: str | Path, root: Path | None = None, *, decode: bool = False
) -> Inspection:
    """Read a dataset, except for broken files, and count its samples and duplicates.

    Of more than 20,000 image files, only headers are read unless `decode` is true.
    """
    domain_set = find_dataset(dataset, root)
    modality = domain_set.modality
    side = modality.stored_side(IMAGE_SIZE)
    options = ReadOptions(
        root or data_root(),
        side=side,
        skip_broken=True,
        tokens=INSPECTED_BYTES,
        most_decoded=None if decode or not modality.resizable else MAX_DECODED,
    )
    try:
        domains = domain_set.load(options)
    except DataError:
        # Broken files may have left a domain empty: the error that names them says more.
        domain_set.load(replace(options, skip_broken=False))
        raise
    counts = [domain.y.bincount(minlength=len(domain_set.classes)) for domain in domains.values()]
    decoded = not any(_is_one_row(domain) for domain in domains.values())
    return Inspection(
        dataset=domain_set,
        domains=domains,
        counts=np.stack([row.numpy() for row in counts]),
        broken={name: why for domain in domains.values() for name, why in domain.broken.items()},
        duplicates=(_find_duplicates if decoded else _find_equal_files)(domains),
        decoded=decoded,
    )


def _is_one_row(domain: Domain) -> bool:
    """Whether all samples of a domain are one row in memory, because they were not decoded."""
    return len(domain.x) > 1 and domain.x.stride(0) == 0


def _find_equal_files(domains: Mapping[str, Domain]) -> list[tuple[str, str]]:
    """Pairs of equal files in different domains; the second is the first of its kind.

    Whole files are read only if their sizes and beginnings are equal.
    """
    alike: dict[bytes, list[tuple[str, str, Path]]] = {}
    for name, domain in domains.items():
        for file in domain.names if domain.folder else ():
            path = Path(domain.folder or "", file)
            alike.setdefault(_head_digest(path), []).append((name, file, path))
    duplicates = []
    for group in alike.values():
        if len({name for name, _, _ in group}) > 1:
            first: dict[str, tuple[str, str]] = {}
            for name, file, path in group:
                other, equal = first.setdefault(sha256(path), (name, file))
                if other != name:
                    duplicates.append((file, equal))
    return duplicates


def _head_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    return hashlib.blake2b(head + size.to_bytes(8, "little"), digest_size=16).digest()


def sheet_path(out: str | Path) -> Path:
    """The file of a contact sheet; .png is added to a name without a suffix."""
    path = Path(out).expanduser()
    return path if path.suffix or not path.name else path.with_name(f"{path.name}.png")


def contact_sheet(inspection: Inspection, out: str | Path) -> Path:
    """Draw one sample of every domain (rows) and class (columns), at most twelve of each."""
    path = sheet_path(out)
    with warnings.catch_warnings():
        # A character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = _draw(inspection)
        try:
            with atomic_write(path, parents=False) as temporary:
                figure.savefig(temporary, format=path.suffix[1:])
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SpecError(f"{path}: the image cannot be written ({reason})") from None
    return path


def _draw(inspection: Inspection) -> "Figure":
    """Draw all cells as one image, because 12 × 12 axes would take many seconds."""
    from matplotlib.figure import Figure

    names, classes = inspection.dataset.domains[:MAX_CELLS], inspection.dataset.classes[:MAX_CELLS]
    first = inspection.domains[names[0]].x
    modality = inspection.dataset.modality
    if first.ndim != 4:
        raise SpecError(f"{inspection.dataset.name}: no images or audio files; leave out --out")
    height, width = first.shape[2:]
    gap = max(1, width // 24)
    tops = [row * (height + gap) for row in range(len(names))]
    lefts = [column * (width + gap) for column in range(len(classes))]
    sheet = np.full((tops[-1] + height, lefts[-1] + width, 3), GAP_GRAY, np.float32)
    for top, name in zip(tops, names, strict=True):
        domain = inspection.domains[name]
        for number, left in enumerate(lefts):
            index = (domain.y == number).nonzero().flatten()
            if len(index):
                cell = modality.to_rgb(_sample(inspection, domain, int(index[0])))
                sheet[top : top + height, left : left + width] = cell
    tall = CELL_INCHES * len(names) * min(2.0, height / width)
    rows = [name[:18] for name in names]
    aside = 0.2 + CHARACTER_INCHES * max(len(name) for name in rows)
    figure = Figure(figsize=(aside + CELL_INCHES * len(classes), 0.5 + tall), dpi=120)
    axes = figure.subplots()
    axes.imshow(sheet, aspect="auto")
    style: dict[str, Any] = {"fontsize": 7, "parse_math": False}
    axes.set_xticks([x + width / 2 for x in lefts], [label[:14] for label in classes], **style)
    axes.set_yticks([y + height / 2 for y in tops], rows, **style)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    figure.tight_layout(pad=0.4)
    return figure


def _sample(inspection: Inspection, domain: Domain, index: int) -> Tensor:
    """A sample, decoded now if only headers were read."""
    if inspection.decoded or domain.folder is None:
        return domain.x[index]
    modality = cast(FileModality, inspection.dataset.modality)
    row = modality.decode(domain.folder / domain.names[index], modality.stored_side(IMAGE_SIZE))
    return modality.stack([row])[0]


def _find_duplicates(domains: Mapping[str, Domain]) -> list[tuple[str, str]]:
    """Pairs of equal samples in different domains; the second is the first of its kind."""
    seen: dict[bytes, tuple[str, str]] = {}
    duplicates = []
    total = sum(len(domain.y) for domain in domains.values())
    with progress("looking for duplicates", total) as advance:
        done = 0
        for name, domain in domains.items():
            for i in range(len(domain.y)):
                content = domain.x[i].contiguous().numpy().tobytes()
                digest = hashlib.blake2b(content, digest_size=16).digest()
                sample = domain.names[i] if domain.names else f"sample {i} of {name}"
                other, first = seen.setdefault(digest, (name, sample))
                if other != name:
                    duplicates.append((sample, first))
                done += 1
            advance(done)
    return duplicates


def _missing_classes(dataset: DomainSet, counts: NDArray[np.int64]) -> list[str]:
    remarks = []
    for name, row in zip(dataset.domains, counts, strict=True):
        absent = [dataset.classes[i] for i in np.flatnonzero(row == 0)]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            remarks.append(f"domain {name!r} has no sample of {', '.join(absent[:3])}{more}")
    return remarks


def _imbalances_within(dataset: DomainSet, counts: NDArray[np.int64]) -> list[str]:
    """Domains whose largest class has many times as many samples as their smallest one."""
    remarks = []
    for name, row in zip(dataset.domains, counts, strict=True):
        most, present = int(row.argmax()), np.flatnonzero(row)
        least = min(present, key=lambda label: row[label], default=most)
        if len(present) and row[most] >= WITHIN_RATIO * row[least]:
            sizes = f"{row[most]} samples of {dataset.classes[most]!r}, "
            sizes += f"{row[least]} of {dataset.classes[least]!r}"
            remarks.append(f"domain {name!r} has {sizes}: imbalanced within the domain")
    return remarks


def _imbalances(dataset: DomainSet, counts: NDArray[np.int64]) -> list[str]:
    remarks = []
    domain_advice = "a step draws equally from all domains, so small ones repeat their samples"
    class_advice = "look at balanced accuracy too, or use --set balance=true"
    for noun, names, sums, advice in (
        ("domain", dataset.domains, counts.sum(axis=1), domain_advice),
        ("class", dataset.classes, counts.sum(axis=0), class_advice),
    ):
        most, least = int(sums.argmax()), int(sums.argmin())
        if sums[most] >= IMBALANCE_RATIO * max(1, sums[least]):
            sizes = f"has {sums[most]} samples, {names[least]!r} has {sums[least]}"
            remarks.append(f"{noun} {names[most]!r} {sizes}: imbalanced; {advice}")
    return remarks
