"""What is in a dataset, before anything is trained on it: counts, broken files, copies, a picture.

Copies are samples that are the same byte for byte once they are decoded. Within a domain they are
harmless but for the probe part; across domains a model is tested on what it was trained on.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from afield.data.domains import Domain, DomainSet, ReadOptions, data_root
from afield.data.images import to_rgb
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError
from afield.files import atomic_write
from afield.progress import progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Inspection", "contact_sheet", "inspect_dataset"]

IMAGE_SIZE = 64
# A class or a domain this many times as frequent as another is worth a word.
IMBALANCE_RATIO = 3.0
# The most rows and columns of a contact sheet, and the grey around its cells.
MAX_CELLS, GAP_GREY = 12, 0.8
# The widths of a cell and of a letter, in inches.
CELL_INCHES, CHARACTER_INCHES = 0.9, 0.06


@dataclass(frozen=True)
class Inspection:
    """A dataset and what was found in it; `counts` has a row a domain and a column a class."""

    dataset: DomainSet
    domains: Mapping[str, Domain]
    counts: NDArray[np.int64]
    broken: Mapping[str, str]
    duplicates: Sequence[tuple[str, str]]

    @property
    def remarks(self) -> list[str]:
        """What a person should know, one sentence each."""
        found = [f"broken: {name} ({reason})" for name, reason in self.broken.items()]
        found += _missing(self.dataset, self.counts) + _uneven(self.dataset, self.counts)
        if self.duplicates:
            first, second = self.duplicates[0]
            found.append(
                f"{len(self.duplicates)} sample(s) are in two domains, byte for byte once decoded: "
                f"{first} is {second}"
            )
        return found


def inspect_dataset(dataset: str | Path, root: Path | None = None) -> Inspection:
    """Read a dataset, leaving out what is broken, and look at it."""
    found = find_dataset(dataset, root)
    side = found.modality.stored_side(IMAGE_SIZE)
    reading = ReadOptions(root or data_root(), side=side, skip_broken=True)
    try:
        domains = found.load(reading)
    except DataError:
        # Broken files may have left a domain empty: the error that names them says more.
        found.load(replace(reading, skip_broken=False))
        raise
    counts = [domain.y.bincount(minlength=len(found.classes)) for domain in domains.values()]
    return Inspection(
        dataset=found,
        domains=domains,
        counts=np.stack([row.numpy() for row in counts]),
        broken={name: why for domain in domains.values() for name, why in domain.broken.items()},
        duplicates=_copies(domains),
    )


def contact_sheet(inspection: Inspection, out: str | Path) -> Path:
    """Draw one sample of every domain (rows) and class (columns); of many, the first dozen."""
    path = Path(out).expanduser()
    path = path if path.suffix else path.with_name(f"{path.name}.png")
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph")
        figure = _drawn(inspection)
        try:
            with atomic_write(path, parents=False) as temporary:
                figure.savefig(temporary, format=path.suffix[1:])
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SpecError(f"{path}: the picture cannot be written ({reason})") from None
    return path


def _drawn(inspection: Inspection) -> "Figure":
    """One picture of them all: a dozen by a dozen axes would take many seconds."""
    from matplotlib.figure import Figure

    names, classes = inspection.dataset.domains[:MAX_CELLS], inspection.dataset.classes[:MAX_CELLS]
    first = inspection.domains[names[0]].x
    modality = inspection.dataset.modality
    if first.ndim != 4:
        raise SpecError(f"{inspection.dataset.name}: no pictures or sounds; leave --out out")
    height, width = first.shape[2:]
    gap = max(1, width // 24)
    tops = [row * (height + gap) for row in range(len(names))]
    lefts = [column * (width + gap) for column in range(len(classes))]
    sheet = np.full((tops[-1] + height, lefts[-1] + width, 3), GAP_GREY, np.float32)
    for top, name in zip(tops, names, strict=True):
        domain = inspection.domains[name]
        for number, left in enumerate(lefts):
            index = (domain.y == number).nonzero().flatten()
            if len(index):
                cell = to_rgb(modality.upright(domain.x[index[0]]))
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


def _copies(domains: Mapping[str, Domain]) -> list[tuple[str, str]]:
    """Pairs of samples of different domains that are the same, each sample named once."""
    seen: dict[bytes, tuple[str, str]] = {}
    found = []
    with progress("looking for copies", sum(len(domain.y) for domain in domains.values())) as tell:
        done = 0
        for name, domain in domains.items():
            for i in range(len(domain.y)):
                content = domain.x[i].contiguous().numpy().tobytes()
                digest = hashlib.blake2b(content, digest_size=16).digest()
                told = domain.names[i] if domain.names else f"sample {i} of {name}"
                other, first = seen.setdefault(digest, (name, told))
                if other != name:
                    found.append((told, first))
                done += 1
            tell(done)
    return found


def _missing(dataset: DomainSet, counts: NDArray[np.int64]) -> list[str]:
    found = []
    for name, row in zip(dataset.domains, counts, strict=True):
        absent = [dataset.classes[i] for i in np.flatnonzero(row == 0)]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            found.append(f"domain {name!r} has no sample of {', '.join(absent[:3])}{more}")
    return found


def _uneven(dataset: DomainSet, counts: NDArray[np.int64]) -> list[str]:
    found = []
    of_domains = "every step draws from all domains alike, so those of the small come more often"
    of_classes = "look at balanced accuracy too, or use --set balance=true"
    for what, names, sums, advice in (
        ("domain", dataset.domains, counts.sum(axis=1), of_domains),
        ("class", dataset.classes, counts.sum(axis=0), of_classes),
    ):
        most, least = int(sums.argmax()), int(sums.argmin())
        if sums[most] >= IMBALANCE_RATIO * max(1, sums[least]):
            told = f"has {sums[most]} samples, {names[least]!r} {sums[least]}"
            found.append(f"{what} {names[most]!r} {told}: uneven; {advice}")
    return found
