"""Datasets of domains: how they are read, how domains are split, and which classes are known.

Each domain is split once per trial into `main` (80 %) and `probe` (20 %). A source domain trains on
`main` and validates on `probe`. An unseen domain is tested on `main`; only test-domain validation
(the rule `target`) looks at its `probe`.

In a benchmark the target is unseen, so a class that only the target has must not add an output: its
existence is knowledge of the target, and one more output changes all trained weights. A dataset
with a list of classes that is given in advance may use the whole list (a closed set).
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from afield.data.downloads import Archive
from afield.data.training_settings import Training
from afield.errors import DataError, SpecError, UnknownNameError
from afield.registry import find, hint
from afield.seeds import derive_seed

if TYPE_CHECKING:
    from afield.data.modality import Modality


PROBE_FRACTION = 0.2


class Parts(NamedTuple):
    """Indices of the two splits of a domain."""

    main: Tensor
    probe: Tensor


def parts(size: int, *, trial: int, domain: str, fraction: float = PROBE_FRACTION) -> Parts:
    """Split a domain; the split depends only on its size, the trial and the domain's name.

    >>> [len(part) for part in parts(10, trial=0, domain="sketch")]
    [8, 2]
    """
    if size < 2:
        raise SpecError(
            f"domain {domain!r} has {size} sample(s); training and validation need at least two"
        )
    order = np.random.default_rng(derive_seed("parts", trial, domain)).permutation(size)
    probe = max(1, int(size * fraction))
    return Parts(main=torch.from_numpy(order[probe:]), probe=torch.from_numpy(order[:probe]))


def listed_parts(test: Tensor, validation: Tensor | None = None, *, seen: bool) -> Parts:
    """Split a domain by its official lists.

    A source domain trains on its train list and validates on its validation list, or on its test
    list if there are only two lists. An unseen domain is tested on its test list, as the authors of
    the lists intended.
    """
    if seen and validation is not None:
        train = ~(test | validation)
        return Parts(train.nonzero().flatten(), validation.nonzero().flatten())
    others, tested = (~test).nonzero().flatten(), test.nonzero().flatten()
    return Parts(others, tested) if seen else Parts(tested, others)


# Result tables use these names for columns that summarize domains.
RESERVED_NAMES = (
    *("mean", "worst", "worst 10 %", "spread"),
    *("in-domain", "known domain", "calibration error", "accuracy at 90 %"),
    *("unseen classes", "confidence on unseen classes"),
    *("worst group", "10 % group", "mean group"),
)


@dataclass(frozen=True)
class Domain:
    """Samples of one domain: `x` (numbers; images are uint8) and class indices `y`.

    `test` marks the samples of an official test list, if there is one, and `validation` those of a
    validation list, if there are three lists. `names` are the names of the files, in `folder` if
    each sample is a file. `broken` maps each unreadable file that was skipped on request to the
    reason. `columns` are further properties of the samples by name, such as the slide of a patch;
    they only group samples when scores are shown. Texts are token ids (int32, padded with -1);
    `truncated` counts those that were cut at the greatest number of tokens. If the samples are
    features of texts, `text_lengths` are the numbers of tokens of these texts.
    """

    x: Tensor
    y: Tensor
    test: Tensor | None = None
    validation: Tensor | None = None
    names: Sequence[str] = field(default=(), repr=False)
    broken: Mapping[str, str] = field(default_factory=dict, repr=False)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    folder: Path | None = field(default=None, repr=False)
    truncated: int = 0
    text_lengths: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ReadOptions:
    """How to read a dataset.

    `root` is the folder that contains all datasets, `side` the side in pixels at which image files
    are decoded (0: the default), and `skip_broken` leaves out files that cannot be read. Texts are
    read with the tokenizer of a file (empty: bytes), and cut at `tokens` tokens (0: the default).
    Of more than `most_decoded` files, only the headers are read, and all values are 0; None decodes
    any number.
    """

    root: Path
    side: int = 0
    skip_broken: bool = False
    tokenizer: str = ""
    tokens: int = 0
    most_decoded: int | None = None


Reader = Callable[[ReadOptions], Mapping[str, Domain]]


@dataclass(frozen=True)
class Download:
    """Where a dataset comes from: archives to fetch, or instructions for getting it by hand.

    `hub` is a repository of images on the Hugging Face hub at a fixed revision, with the same
    domains and classes, and `folder` the folder of the data root that its images are written to.
    With `hub_lists`, its splits become the lists of training and test files.
    """

    archives: tuple[Archive, ...] = ()
    hub: str = ""
    hub_lists: bool = False
    folder: str = ""
    instructions: str = ""
    license: str = ""


@dataclass(frozen=True)
class Published:
    """The published numbers of a dataset, by which costs are counted while its files are missing.

    `samples` are the samples of each domain, or of all together if no more is known; the sizes that
    a dataset checks come first. `tested` are the samples on the official test lists. `domains` is
    the number of domains of a dataset whose files name them.
    """

    samples: Mapping[str, int] | int = 0
    tested: Mapping[str, int] = field(default_factory=dict)
    domains: int = 0


def _array() -> "Modality":
    """The modality of a dataset that names none."""
    modality: Modality = find("modalities", "array")()
    return modality


@dataclass(frozen=True)
class DomainSet:
    """A dataset of domains, before any file is read.

    `modality` is the kind of its samples. For a user's own data, `origin` is their path and
    `fingerprint` changes when they change. Both are empty for the datasets that come with afield;
    those list in `needs` the files they require under the data root, in `download` where these come
    from, in `sizes` how many samples each domain must have, and in `published` other numbers.
    `averages` and `methods` have the settings that replace the defaults when a weight average or
    method is used: ``{"swad": {"every": 50}}``. `test_domains` and `validation_domains` are
    those of a published task; a benchmark tests and validates on them unless it names others.
    `class_names` and `templates` say how CLIP is asked for classes whose names are no words; see
    `Prompts`.
    `provenance` says how features were computed, if the samples are features; see `Encoder`.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    reader: Reader = field(repr=False)
    training: Training = field(default_factory=Training)
    origin: str = ""
    fingerprint: str = ""
    modality: "Modality" = field(default_factory=_array)
    needs: tuple[str, ...] = ()
    download: Download = Download()
    sizes: Mapping[str, int] = field(default_factory=dict)
    averages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    test_domains: tuple[str, ...] = ()
    validation_domains: tuple[str, ...] = ()
    class_names: Mapping[str, str] = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    published: Published = Published()

    def __post_init__(self) -> None:
        reserved = [name for name in self.domains if name in RESERVED_NAMES]
        if reserved:
            raise SpecError(
                f"{self.name}: a domain cannot be named {reserved[0]!r}, which is a column of the "
                "result tables; rename it"
            )

    @property
    def spec(self) -> str:
        """Name or path with which `find_dataset` finds this dataset again."""
        return self.origin or self.name

    def missing_files(self, root: Path | None = None) -> list[Path]:
        """Required files and folders that do not exist."""
        paths = [(root or data_root()) / name for name in self.needs]
        return [path for path in paths if not path.exists()]

    def check_available(self, root: Path | None = None) -> None:
        """Raise an error that says how to get the dataset if files are missing."""
        missing = self.missing_files(root)
        if missing:
            fetch = f"`afield data get {self.name}` downloads it"
            advice = fetch if self.download.archives else self.download.instructions
            if self.download.hub:
                advice = f"{fetch}, or {advice}"
            where = f"the data root is {root or data_root()}; set AFIELD_DATA for another"
            raise DataError(f"{self.name}: {missing[0]} is missing; {advice} ({where})")

    def load(self, options: ReadOptions | None = None) -> dict[str, Domain]:
        """Read and validate all domains, in the declared order."""
        options = options or ReadOptions(data_root())
        self.check_available(options.root)
        domains = self.reader(options)
        for name, size in self.sizes.items():
            count = len(domains[name].y) + len(domains[name].broken)
            if count != size:
                raise DataError(
                    f"{self.name}: domain {name!r} has {count} samples, not {size}; files "
                    "are missing or were added: download the data again, or pass the path of the "
                    "folder to use it as your own data"
                )
        # Samples without labels are not trained on.
        for name in self.domains if self.classes else ():
            where = f"{self.name}: domain {name!r}"
            validate_domain(domains[name], where)
            self.modality.check_values(domains[name].x, where)
        return {name: domains[name] for name in self.domains}

    def without(self, *left_out: str) -> tuple[str, ...]:
        """Names of all domains except those that are left out."""
        for name in left_out:
            if name not in self.domains:
                advice = hint(name, self.domains)
                raise UnknownNameError(f"{self.name} has no domain {name!r}; {advice}")
        return tuple(name for name in self.domains if name not in left_out)


def data_root() -> Path:
    """Folder of all datasets: ``AFIELD_DATA``, or a cache folder in the user's home."""
    return Path(os.environ.get("AFIELD_DATA") or Path.home() / ".cache" / "afield").expanduser()


def validate_domain(domain: Domain, where: str) -> None:
    """Raise an error, which begins with `where`, if a domain cannot be trained on."""
    if len(domain.x) != len(domain.y):
        raise DataError(f"{where}: {len(domain.x)} samples but {len(domain.y)} labels")
    if len(domain.y) < 2:
        raise DataError(
            f"{where}: {len(domain.y)} sample(s); training and validation need at least two"
        )
    if domain.test is not None and domain.test.all() == domain.test.any():
        raise DataError(f"{where}: its train list or its test list is empty; both need samples")


# The label of samples whose class a training does not know.
UNKNOWN = -1

ClassesByDomain = Mapping[str, frozenset[str]]


def uses_all_classes(dataset: DomainSet, choice: str | None = None) -> bool:
    """Whether a training has an output for every class of a dataset.

    `choice` is ``all`` or ``sources``. By default, datasets with a name use all classes, because
    their list is given in advance; a user's own data use the classes of the sources.
    """
    return choice == "all" if choice else not dataset.origin


def classes_by_domain(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> ClassesByDomain:
    """The classes that each domain has samples of."""
    return {
        name: frozenset(classes[label] for label in domain.y.unique().tolist())
        for name, domain in domains.items()
    }


def source_classes(
    dataset: DomainSet, known: ClassesByDomain | None, sources: Iterable[str]
) -> tuple[str, ...]:
    """The classes that the sources have, in the order of the dataset.

    Empty if these are all classes, and if `known` is None: then the whole list is used.
    """
    if known is None:
        return ()
    present = frozenset[str]().union(*(known[name] for name in sources))
    kept = tuple(name for name in dataset.classes if name in present)
    return kept if len(kept) < len(dataset.classes) else ()


def relabel(
    domains: Mapping[str, Domain], classes: tuple[str, ...], kept: tuple[str, ...]
) -> dict[str, Domain]:
    """Number the labels by the list `kept`; samples of other classes become `UNKNOWN`."""
    if not kept:
        return dict(domains)
    numbers = {name: number for number, name in enumerate(kept)}
    table = torch.tensor([numbers.get(name, UNKNOWN) for name in classes])
    return {name: replace(domain, y=table[domain.y]) for name, domain in domains.items()}


def missing_class_warnings(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> list[str]:
    """One warning for every domain without samples of a class, which is allowed."""
    warnings = []
    for name, present in classes_by_domain(domains, classes).items():
        missing = [repr(label) for label in classes if label not in present]
        if missing:
            warnings.append(f"domain {name!r} has no sample of class {', '.join(missing)}")
    return warnings
