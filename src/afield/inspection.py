"""What is in a dataset, before anything is trained on it: counts, broken files, copies, a picture.

Copies are samples that are the same byte for byte once they are decoded. Within a domain they are
harmless but for the probe part; across domains a model is tested on what it was trained on.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from afield.domains import Domain, DomainSet, Reading, data_root
from afield.errors import SpecError
from afield.pictures import stored_side
from afield.progress import progress
from afield.readers import find_dataset

__all__ = ["Inspection", "contact_sheet", "inspected"]

SIZE = 64
# A class or a domain this many times as frequent as another is worth a word.
UNEVEN = 3.0
# The most rows and columns of a contact sheet.
MOST = 12


@dataclass(frozen=True)
class Inspection:
    """A dataset and what was found in it; `counts` has a row a domain and a column a class."""

    dataset: DomainSet
    domains: Mapping[str, Domain]
    counts: NDArray[np.int64]
    broken: Mapping[str, str]
    copies: Sequence[tuple[str, str]]

    @property
    def remarks(self) -> list[str]:
        """What a person should know, one sentence each."""
        found = [f"broken: {name} ({reason})" for name, reason in self.broken.items()]
        found += _missing(self.dataset, self.counts) + _uneven(self.dataset, self.counts)
        if self.copies:
            first, second = self.copies[0]
            found.append(
                f"{len(self.copies)} sample(s) are in two domains, byte for byte once decoded: "
                f"{first} is {second}"
            )
        return found


def inspected(dataset: str | Path, root: Path | None = None) -> Inspection:
    """Read a dataset, leaving out what is broken, and look at it."""
    found = find_dataset(dataset, root)
    side = stored_side(SIZE) if found.resizable else 0
    domains = found.load(Reading(root or data_root(), side=side, skip_broken=True))
    counts = [domain.y.bincount(minlength=len(found.classes)) for domain in domains.values()]
    return Inspection(
        dataset=found,
        domains=domains,
        counts=np.stack([row.numpy() for row in counts]),
        broken={name: why for domain in domains.values() for name, why in domain.broken.items()},
        copies=_copies(domains),
    )


def contact_sheet(inspection: Inspection, out: str | Path) -> Path:
    """Draw one sample of every domain (rows) and class (columns); of many, the first dozen."""
    from matplotlib.figure import Figure

    path = Path(out).expanduser()
    names, classes = inspection.dataset.domains[:MOST], inspection.dataset.classes[:MOST]
    first = inspection.domains[names[0]].x
    if first.ndim != 4:
        raise SpecError(f"{inspection.dataset.name}: no pictures or sounds; leave --out out")
    figure = Figure(figsize=(1.0 + 0.9 * len(classes), 0.5 + 0.95 * len(names)), dpi=120)
    cells = figure.subplots(len(names), len(classes), squeeze=False)
    for row, name in zip(cells, names, strict=True):
        domain = inspection.domains[name]
        for number, (cell, label) in enumerate(zip(row, classes, strict=True)):
            cell.set_xticks([])
            cell.set_yticks([])
            index = (domain.y == number).nonzero().flatten()
            if len(index):
                cell.imshow(**_shown(domain.x[index[0]]))
            if name == names[0]:
                cell.set_title(label[:14], fontsize=7)
        row[0].set_ylabel(name[:18], fontsize=7)
    figure.tight_layout(pad=0.4)
    part = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(part)
        part.replace(path)
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: the picture cannot be written ({error})") from None
    return path


def _shown(x: Tensor) -> dict[str, Any]:
    """A sample as matplotlib takes it: colour, grey, or two channels as red and green."""
    if x.shape[0] == 1:
        return {"X": x[0].float().numpy(), "cmap": "gray", "origin": "upper"}
    pixels = x[:3].permute(1, 2, 0).numpy()
    if pixels.shape[2] == 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[..., :1])], axis=2)
    return {"X": pixels}


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
    for what, names, sums in (
        ("domain", dataset.domains, counts.sum(axis=1)),
        ("class", dataset.classes, counts.sum(axis=0)),
    ):
        most, least = int(sums.argmax()), int(sums.argmin())
        if sums[most] >= UNEVEN * max(1, sums[least]):
            found.append(
                f"{what} {names[most]!r} has {sums[most]} samples, {names[least]!r} {sums[least]}: "
                "uneven; look at balanced accuracy too, or use --set balance=true"
            )
    return found
