"""A dataset of domains: what it is called, how it is read, and how a domain is cut in two.

Each domain is cut once per trial into `main` (80 %) and `probe` (20 %). Sources train on main and
validate on probe; an unseen domain reports on main, and only the rule named for it looks at probe.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from afield.data.audio import LogMel
from afield.data.downloads import Archive
from afield.errors import DataError, SpecError, UnknownNameError
from afield.hyperparameters import Around, LogUniform
from afield.registry import hint
from afield.seeds import derive_seed

__all__ = [
    "DOMAINBED_DEFAULTS",
    "PROBE_FRACTION",
    "Domain",
    "DomainSet",
    "Download",
    "Parts",
    "ReadOptions",
    "Reader",
    "Training",
    "data_root",
    "listed_parts",
    "missing_class_warnings",
    "parts",
    "validate_domain",
]


PROBE_FRACTION = 0.2
# What tables call their other columns.
TABLE_COLUMNS = (
    "mean",
    "worst",
    "spread",
    "in-domain",
    "known domain",
    "calibration error",
    "accuracy at 90 %",
)


@dataclass(frozen=True)
class Domain:
    """Samples of one domain: `x` (uint8 pictures, or numbers) and class indices `y`.

    `test` marks the samples of an official test list, where there is one, `names` are those of the
    files, and `broken` says of files that were left out on request why they could not be read.
    """

    x: Tensor
    y: Tensor
    test: Tensor | None = None
    names: Sequence[str] = field(default=(), repr=False)
    broken: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class ReadOptions:
    """How data are to be read: where datasets lie, and of pictures in files their stored side."""

    root: Path
    side: int = 0
    skip_broken: bool = False


Reader = Callable[[ReadOptions], Mapping[str, Domain]]


@dataclass(frozen=True)
class Download:
    """Where a dataset comes from: archives to fetch, or what a person has to do."""

    archives: tuple[Archive, ...] = ()
    instructions: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Training:
    """A dataset's own defaults, for what no method should know; ranges are multiples of them.

    `optimizer` is one of torch.optim's, with options as in sgd:momentum=0.9; nothing is adam. Its
    rate follows the `lr_schedule` (cosine:warmup=500; nothing is constant), and gradients longer
    than `clip_norm` are cut to it (0: none). A checkpoint comes `every` so many steps; None is
    every 2 % of them. `size` is that of the pictures that the network sees, `augment` is none,
    light or full; None is what fits. `weights` are the network's first ones (hub, none or a file),
    and `freeze_bn` says whether its BatchNorm layers keep their statistics. A step takes its
    batches from so many `domains_per_step` (0: all), with `balance` from all classes alike; `limit`
    is the most samples of a class and a domain that are trained on (0: all), and `skip_broken`
    leaves files out that cannot be read.
    """

    seed_name: ClassVar[str] = "Training"

    steps: int = 600
    every: int | None = None
    batch: Annotated[int, Around(0.25, 2.0)] = 16
    lr: Annotated[float, Around(0.1, 3.0)] = 1e-3
    weight_decay: Annotated[float, LogUniform(1e-6, 1e-2)] = 0.0
    optimizer: str = ""
    lr_schedule: str = ""
    clip_norm: float = 0.0
    backbone: str = "small:cnn"
    weights: str | None = None
    freeze_bn: bool | None = None
    size: int | None = None
    augment: Literal["none", "light", "full"] | None = None
    domains_per_step: int = 0
    balance: bool = False
    limit: int = 0
    skip_broken: bool = False


# DomainBed's defaults for photographs, with the weights of torchvision from which it starts; its
# 5,001st step is the evaluation of the 5,000th.
DOMAINBED_DEFAULTS = Training(
    steps=5000, every=300, batch=32, lr=5e-5, backbone="timm:resnet50.tv_in1k"
)


@dataclass(frozen=True)
class DomainSet:
    """A dataset of domains, before any file is read.

    `origin` is the path of a user's own data, and `fingerprint` changes when those data do; both
    are empty for the datasets that come with afield. These say which files they need under the
    root of all data, where these come from, and how many samples each domain must then have.
    `resizable` are pictures in files, which can be read at any size; `mel` is the form that sounds
    in files are brought into. Where there is neither, samples are arrays.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    reader: Reader = field(repr=False)
    training: Training = Training()
    origin: str = ""
    fingerprint: str = ""
    resizable: bool = False
    mel: LogMel | None = None
    needs: tuple[str, ...] = ()
    source: Download = Download()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken = [name for name in self.domains if name in TABLE_COLUMNS]
        if taken:
            raise SpecError(f"{self.name}: no domain may be called {taken[0]!r}, tables use it")

    @property
    def spec(self) -> str:
        """What one writes to get this dataset again."""
        return self.origin or self.name

    def missing_files(self, root: Path | None = None) -> list[Path]:
        """What the dataset needs and is not there."""
        paths = [(root or data_root()) / name for name in self.needs]
        return [path for path in paths if not path.exists()]

    def check_available(self, root: Path | None = None) -> None:
        """An error that says how to get what is not there."""
        missing = self.missing_files(root)
        if missing:
            get = f"`afield data get {self.name}` fetches it"
            how = get if self.source.archives else self.source.instructions
            where = f"the data root is {root or data_root()}, set AFIELD_DATA for another"
            raise DataError(f"{self.name}: {missing[0]} is not there; {how} ({where})")

    def load(self, options: ReadOptions | None = None) -> dict[str, Domain]:
        """Read and check all domains, in the declared order."""
        options = options or ReadOptions(data_root())
        self.check_available(options.root)
        found = self.reader(options)
        for name, size in self.sizes.items():
            whole = len(found[name].y) + len(found[name].broken)
            if whole != size:
                raise DataError(
                    f"{self.name}: domain {name!r} has {whole} samples, not {size}; some files are "
                    "missing or added: get the data anew, or give the folder's path as own data"
                )
        return {n: validate_domain(found[n], f"{self.name}: domain {n!r}") for n in self.domains}

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
    order = np.random.default_rng(derive_seed("parts", trial, domain)).permutation(size)
    probe = max(1, int(size * fraction))
    return Parts(main=torch.from_numpy(order[probe:]), probe=torch.from_numpy(order[:probe]))


def listed_parts(test: Tensor, *, seen: bool) -> Parts:
    """The parts of a domain with official lists: a source trains on one, validates on the other.

    An unseen domain reports on its test list, as the lists' authors meant it.
    """
    train, test = (~test).nonzero().flatten(), test.nonzero().flatten()
    return Parts(train, test) if seen else Parts(test, train)


def missing_class_warnings(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> list[str]:
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


def validate_domain(domain: Domain, where: str) -> Domain:
    """The domain, if its samples can be trained on."""
    if len(domain.x) != len(domain.y):
        raise DataError(f"{where}: {len(domain.x)} samples but {len(domain.y)} labels")
    if len(domain.y) < 2:
        raise DataError(f"{where}: {len(domain.y)} sample; it takes two to train and to validate")
    if domain.test is not None and domain.test.all() == domain.test.any():
        raise DataError(f"{where}: its train or its test list is empty; both are needed")
    # Half precision is what afield itself has computed from sounds, and checked.
    if domain.x.dtype == torch.float32 and not domain.x.isfinite().all():
        row = int((~domain.x.isfinite()).flatten(1).any(1).nonzero()[0])
        raise DataError(f"{where}: NaN or infinity in sample {row}; remove or fill such samples")
    return domain
