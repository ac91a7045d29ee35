"""What a run is: everything that determines one training, and the key made of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

from afield.data.frames import split_spec
from afield.errors import SpecError
from afield.runs.selection import DEFAULT_RULES
from afield.seeds import derive_seed
from afield.training.metrics import find_metric

# Fields that change how a run is selected and shown, but not what is trained.
NOT_IN_KEY = ("rules", "given", "class_names", "templates", "folder", "encoder", "images")
# Roles of runs that others are made from; tables have no row for them.
AUXILIARY_ROLES = ("base", "expert", "member")
# The role of a run of a classical method, which is fitted once instead of trained in steps.
CLASSICAL_ROLE = "classical"
# The word in `given` for the targets of all folds, each a list, if domains were chosen by name.
TARGETS = "targets"
# Choices about images in `given` that the features of a run were computed with.
FEATURE_CHOICES = ("weights", "size", "skip_broken")
# Of networks; empty is float32.
PRECISIONS = ("", "bf16", "fp16")
# Largest values; a larger one is a slip of the keyboard, and would exhaust time or memory.
LIMITS = {"steps": 10**9, "batch": 2**20, "batch_total": 2**20, "size": 4096, "tokens": 2**14}
# Numbers that may be 0, which means 'not set' or 'none'.
AMOUNTS = ("weight_decay", "clip_norm", "epochs", "layer_decay", "head_lr")
# Numbers of repetitions.
NUMBERS = ("trial", "draw", "member")
# Counts that may be 0, which means 'not set'.
COUNTS = ("batch", "size", "tokens", "domains_per_step", "limit", "batch_total", "freeze_blocks")


@dataclass(frozen=True)
class Run:
    """Everything that determines one training run.

    Attributes
    ----------
    dataset, sources
        The dataset, and the domains to train on; all other domains are unseen.
    method, params, average, average_params
        The method and the weight averaging, with all their hyperparameters. The method of a merged
        run is the merge.
    trial, draw
        Number of the repetition and of the hyperparameter sample.
    tested, unused
        If a share of the domains is held out: the domains to test on, and those that are neither
        trained on nor evaluated. The other unseen domains validate.
    role, base, experts
        The role of a run that is not an ordinary one (base, expert, merged, adapted, member,
        ensemble or classical), the key of the run from whose weights this one starts, and the keys
        of the runs to merge.
    member, members
        The number of the run within an ensemble, which changes its seed and nothing else; 0 is the
        ordinary run. The keys of the runs whose predictions an ensemble averages.
    adaptation, adaptation_params
        The test-time adaptation of an adapted run, with its hyperparameters; all other fields are
        those of its base.
    freeze_head, tune
        Whether the last layer is not trained, as in experts of a pretrained network; what is
        trained if it is a part of the network: ``head``, ``norms``, ``attention`` or a LoRA. Other
        spellings of `Training.tune` are kept in the fields that they stand for.
    report, split
        ``whole`` if all samples of the domains to test on are reported on, instead of their test
        split; ``random`` if a dataset's own lists do not split its domains.
    columns
        ``robust`` if the sources of the run decide which columns of a table hold numbers, which
        are scaled by their quartiles; ``sources`` if they are scaled by their moments; None, as in
        older runs, if any text in the table makes a column one of categories.
    classes
        The classes of the sources if the dataset has more; the network has no output for the
        others.
    epochs
        If set, `steps` is the number of steps that they amount to.
    metric, group
        The metric that selects (empty means accuracy), and groups of samples whose hits are
        counted; `group` is in the key only if a metric of groups selects.
    start, data, prompts
        Digests of the files of initial weights, of your own data, and of CLIP's prompts unless they
        are class names in the default templates.
    code
        Digests of the user's own code that the run uses, by kind and name; empty if it uses none.
    rules, given
        The selection rules that will read the record, and the settings that were chosen by hand,
        which label the row in a table. Neither changes the key.
    folder, encoder
        If the samples are features of a folder of images: the folder, and the frozen network that
        computed them. Neither changes the key, because `data` identifies the features.
    images
        The digest of the images of that folder, which the features of several networks share.

    The other fields are those of `Training`, resolved; an empty `precision` is float32.
    """

    dataset: str
    method: str
    sources: tuple[str, ...]
    trial: int = 0
    draw: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    average: str = "last"
    average_params: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "small:cnn"
    steps: int = 300
    every: int = 6
    batch: int = 16
    lr: float = 1e-3
    weight_decay: float = 0.0
    optimizer: str = ""
    lr_schedule: str = ""
    clip_norm: float = 0.0
    weights: str = ""
    freeze_bn: bool = False
    size: int = 0
    tokens: int = 0
    augment: str = ""
    domains_per_step: int = 0
    balance: bool = False
    limit: int = 0
    skip_broken: bool = False
    tested: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    role: str = ""
    base: str = ""
    experts: tuple[str, ...] = ()
    freeze_head: bool = False
    adaptation: str = ""
    adaptation_params: Mapping[str, Any] = field(default_factory=dict)
    start: str = ""
    data: str = ""
    precision: str = ""
    inexact: bool = False
    compile: bool = False
    metric: str = ""
    prompts: str = ""
    classes: tuple[str, ...] = ()
    batch_total: int = 0
    freeze_blocks: int = 0
    epochs: float = 0.0
    report: str = ""
    split: str = ""
    group: str = ""
    tune: str | None = None
    columns: str | None = None
    class_names: str = ""
    templates: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = DEFAULT_RULES
    given: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    encoder: str | None = None
    images: str | None = None
    member: int = 0
    members: tuple[str, ...] = ()
    layer_decay: float = 0.0
    head_lr: float = 0.0

    def __post_init__(self) -> None:
        if not self.sources:
            raise SpecError(f"{self.method} on {self.dataset}: no source domain to train on")
        self._check_counts()
        if self.precision not in PRECISIONS:
            raise SpecError(f"precision={self.precision}: use fp32, bf16, fp16 or auto")
        for name in ("steps", "every", "lr"):
            if getattr(self, name) <= 0:
                raise SpecError(f"{name}={getattr(self, name)}: must be above 0")
        for name in (*AMOUNTS, *NUMBERS, *COUNTS):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}={getattr(self, name)}: must not be below 0")

    def _check_counts(self) -> None:
        for name in (*NUMBERS, "steps", "every", *COUNTS):
            if not isinstance(getattr(self, name), int):
                raise SpecError(f"{name}={getattr(self, name)!r}: must be a whole number")
        for name, limit in LIMITS.items():
            if getattr(self, name) > limit:
                raise SpecError(f"{name}={getattr(self, name)}: must be at most {limit:,}")

    @cached_property
    def key(self) -> str:
        """The name of the run on disk: its method, and a digest of all its fields."""
        return f"{self.method}-{_digest(self, NOT_IN_KEY)}"

    def __repr__(self) -> str:
        sources = ", ".join(self.sources)
        return f"<Run {self.key}: {self.data_name}, trained on {sources}; {self.steps} steps>"

    @property
    def data_name(self) -> str:
        """The name of the data to show: that of the folder, if the samples are features of it."""
        if self.folder:
            return self.folder
        path = split_spec(self.dataset)[0] if "?" in self.dataset else self.dataset
        return PurePath(path).name.removesuffix(".npz")

    @property
    def content(self) -> str:
        """The digest of the data before any network saw them; empty for those of afield."""
        return self.images or self.data

    @property
    def network(self) -> str:
        """The network that sees the data: the frozen one, if the run trains on its features."""
        return self.encoder or self.backbone

    @property
    def is_derived(self) -> bool:
        """Whether the model is made from finished runs, without training."""
        return bool(self.made_of or self.adaptation)

    @property
    def is_auxiliary(self) -> bool:
        """Whether the run is done only because others are made from it."""
        return self.role in AUXILIARY_ROLES

    @property
    def made_of(self) -> tuple[str, ...]:
        """The keys of the runs whose models this one merges or averages."""
        return (*self.experts, *self.members)

    @property
    def order(self) -> int:
        """Runs of a lower order come first: bases, experts, merges, ensembles, adapted models."""
        if self.adaptation:
            return 3
        return 2 if self.made_of else 1 if self.base else 0

    @cached_property
    def recipe(self) -> str:
        """A digest of everything but the source domains, which twins share.

        The same number of epochs is another number of steps on other sources. The base of an
        adapted run, and of a run that starts from a fitted head, is trained on the same sources,
        so the bases of twins differ as well; so do the members of an ensemble.
        """
        in_steps = ("steps", "every") if self.epochs else ()
        has_own_base = bool(self.base) and self.role in ("", "adapted", "member", "ensemble")
        own: dict[str, Any] = {"base": "own"} if has_own_base else {}
        own |= {"members": ("own",) * len(self.members)} if self.members else {}
        run = replace(self, **own) if own else self
        return _digest(run, (*NOT_IN_KEY, "sources", *in_steps))

    @property
    def seed(self) -> int:
        """The seed of all random numbers of this run.

        Methods share it, so they start from the same weights and see the same batches. It does not
        depend on the fingerprint of the data, so labels of unseen domains cannot affect training.
        """
        member = (self.member,) if self.member else ()
        return derive_seed("run", self.sources, self.trial, self.draw, *member)


def name_without_path(name: str) -> str:
    """The name of a backbone, or of a file, to show: without its path, which is private.

    >>> name_without_path("hf:/home/ada/minilm?pooling=mean"), name_without_path("small:cnn")
    ('hf:minilm?pooling=mean', 'small:cnn')
    >>> name_without_path("/home/ada/resnet18.safetensors")
    'resnet18.safetensors'
    """
    family = "hf:" if name.startswith("hf:") else ""
    source, mark, options = name.removeprefix(family).partition("?")
    if not source.startswith(("/", "./", "../", "~/")):
        return name
    return f"{family}{PurePath(source).name}{mark}{options}"


def _without_path(backbone: str) -> str:
    """The name of a backbone, without the folder of an encoder from Hugging Face."""
    family, _, model = backbone.partition(":")
    return f"hf:?{model.partition('?')[2]}" if family == "hf" else backbone


def _digest(run: Run, leaving_out: tuple[str, ...]) -> str:
    """A digest of the fields that are neither zero nor empty, without paths of your own files.

    A field that is added later changes no key as long as it is zero or empty, so runs that were
    finished before stay finished.
    """
    values = {each.name: getattr(run, each.name) for each in fields(run)}
    values |= {"dataset": "" if run.data else run.dataset}
    values |= {"weights": "" if run.start else run.weights}
    values |= {"backbone": _without_path(run.backbone) if run.start else run.backbone}
    # Of a file with groups, only the digest counts.
    values |= {"group": run.group.rpartition("@")[2] if find_metric(run.metric).of_groups else ""}
    stated = {name: v for name, v in values.items() if v and name not in leaving_out}
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:16]
