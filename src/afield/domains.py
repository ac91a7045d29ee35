"""A dataset of domains: what it is called, how it is read, and how a domain is cut in two.

Each domain is cut once per trial into `main` (80 %) and `probe` (20 %). Sources train on main and
validate on probe; an unseen domain reports on main, and only the rule named for it looks at probe.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from afield.catalog import hint
from afield.errors import DataError, SpecError, UnknownNameError
from afield.randomness import seed
from afield.space import Around, LogUniform

__all__ = [
    "PROBE_FRACTION",
    "Domain",
    "DomainSet",
    "Parts",
    "Reader",
    "Training",
    "checked_domain",
    "data_root",
    "gaps",
    "parts",
]


PROBE_FRACTION = 0.2


@dataclass(frozen=True)
class Domain:
    """Samples of one domain: `x` (uint8 pictures, or numbers) and class indices `y`."""

    x: Tensor
    y: Tensor


Reader = Callable[[Path], Mapping[str, Domain]]


@dataclass(frozen=True)
class Training:
    """A dataset's own defaults, for what no method should know; ranges are multiples of them.

    A checkpoint comes `every` so many steps; None is every 2 % of them.
    """

    steps: int = 600
    every: int | None = None
    batch: Annotated[int, Around(0.25, 2.0)] = 16
    lr: Annotated[float, Around(0.1, 3.0)] = 1e-3
    weight_decay: Annotated[float, LogUniform(1e-6, 1e-2)] = 0.0
    backbone: str = "small:cnn"


@dataclass(frozen=True)
class DomainSet:
    """A dataset of domains, before any file is read.

    `origin` is the path of a user's own data, and `fingerprint` changes when those data do; both
    are empty for the datasets that come with afield.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    reader: Reader = field(repr=False)
    training: Training = Training()
    origin: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        taken = [name for name in self.domains if name in ("mean", "worst")]
        if taken:
            raise SpecError(f"{self.name}: no domain may be called {taken[0]!r}, tables use it")

    @property
    def spec(self) -> str:
        """What one writes to get this dataset again."""
        return self.origin or self.name

    def load(self, root: Path | None = None) -> dict[str, Domain]:
        """Read and check all domains, in the declared order."""
        found = self.reader(data_root() if root is None else root)
        return {n: checked_domain(found[n], f"{self.name}: domain {n!r}") for n in self.domains}

    def without(self, *left_out: str) -> tuple[str, ...]:
        """All domains but some."""
        for name in left_out:
            if name not in self.domains:
                known = hint(name, self.domains)
                raise UnknownNameError(f"{self.name} has no domain {name!r}; {known}")
        return tuple(name for name in self.domains if name not in left_out)


class Parts(NamedTuple):
    """Indices of a domain's two parts."""

    main: Tensor
    probe: Tensor


def parts(size: int, *, trial: int, domain: str, fraction: float = PROBE_FRACTION) -> Parts:
    """Cut a domain in two; the cut depends on nothing but the trial and the domain's name.

    >>> [len(part) for part in parts(10, trial=0, domain="sketch")]
    [8, 2]
    """
    if size < 2:
        raise SpecError(f"domain {domain!r} has {size} sample; it takes two to train and validate")
    order = np.random.default_rng(seed("parts", trial, domain)).permutation(size)
    probe = max(1, int(size * fraction))
    return Parts(main=torch.from_numpy(order[probe:]), probe=torch.from_numpy(order[:probe]))


def gaps(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> list[str]:
    """One sentence for every domain that lacks a class: allowed, but worth knowing."""
    found = []
    for name, domain in domains.items():
        present = set(domain.y.unique().tolist())
        missing = [repr(label) for i, label in enumerate(classes) if i not in present]
        if missing:
            found.append(f"domain {name!r} has no sample of class {', '.join(missing)}")
    return found


def data_root() -> Path:
    """Where datasets lie: ``AFIELD_DATA``, or a cache folder in the user's home."""
    return Path(os.environ.get("AFIELD_DATA") or Path.home() / ".cache" / "afield").expanduser()


def checked_domain(domain: Domain, where: str) -> Domain:
    """The domain, if its samples can be trained on."""
    if len(domain.x) != len(domain.y):
        raise DataError(f"{where}: {len(domain.x)} samples but {len(domain.y)} labels")
    if len(domain.y) < 2:
        raise DataError(f"{where}: {len(domain.y)} sample; it takes two to train and to validate")
    if domain.x.is_floating_point() and not domain.x.isfinite().all():
        row = int((~domain.x.isfinite()).flatten(1).any(1).nonzero()[0])
        raise DataError(f"{where}: NaN or infinity in sample {row}; remove or fill such samples")
    return domain
