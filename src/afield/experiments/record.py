"""What is asked (`Run`, `Plan`), how far it is (`Progress`), what came out (`Record`)."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from afield.errors import SpecError
from afield.experiments.selection import DEFAULT_RULES
from afield.seeds import derive_seed
from afield.training.evaluation import PARTS, Checkpoint

__all__ = ["Failure", "Plan", "Progress", "Record", "Run"]

# These say how a run is read and shown, not what is trained; with or without them it is one run.
NOT_IN_KEY = ("rules", "given")


# Largest values; a larger one is a slip of the keyboard, and would exhaust time or memory.
LIMITS = {"steps": 10**9, "batch": 2**20, "batch_total": 2**20, "size": 4096}
# What may be zero: nothing of it is asked for then.
COUNTS = ("size", "domains_per_step", "limit", "batch_total", "freeze_blocks")
# Declared ahead of the code that uses them, so that keys stay as they are when it comes.
RESERVED = (
    "precision",
    "inexact",
    "compile",
    "metric",
    "prompts",
    "freeze_blocks",
)


@dataclass(frozen=True)
class Run:
    """All that determines one training. What is not in `sources` is unseen.

    `params` are the method's hyperparameters in full, `given` those settings that somebody chose by
    hand (they label the row in a table), `rules` the selection rules that will read the record, and
    `data` and `start` the fingerprints of a user's own data and of a file of weights. `tested` are,
    where a share of the domains is held out, those to be tested on; other unseen ones validate, but
    for the `unused`. Of merging, `role` is that of a run (base, expert or merged), `base` the key
    of the run from whose weights it starts, `experts` the keys of those that are merged: `method`
    is then the merge. `report` is ``whole`` if all samples of the domains to test on are reported
    on, instead of their test split, and `split` is ``random`` if a dataset's own lists do not split
    its domains. With `epochs`, `steps` is what they come to. `classes` are those of the sources if
    the dataset has more: the network has no output for the others. The rest is as in `Training`,
    with nothing left open.

    Reserved for later versions, and empty until then: `precision` (of the arithmetic), `inexact`
    (kernels that do not repeat bit for bit), `compile`, `metric` (that selects; empty is accuracy),
    `prompts` (digest of the class names shown to CLIP), `freeze_blocks`, and the role
    `adapted` (a run that adapts the model of its base to unlabelled samples).
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
    rules: tuple[str, ...] = DEFAULT_RULES
    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sources:
            raise SpecError(f"{self.method} on {self.dataset}: no source domain to train on")
        self._check_counts()
        for name in ("steps", "every", "batch", "lr"):
            if getattr(self, name) <= 0:
                raise SpecError(f"{name}={getattr(self, name)}: must be above 0")
        for name in ("weight_decay", "clip_norm", "epochs", "trial", "draw", *COUNTS):
            if getattr(self, name) < 0:
                raise SpecError(f"{name}={getattr(self, name)}: must not be below 0")

    def _check_counts(self) -> None:
        for name in ("trial", "draw", "steps", "every", "batch", *COUNTS):
            if not isinstance(getattr(self, name), int):
                raise SpecError(f"{name}={getattr(self, name)!r}: must be a whole number")
        for name, limit in LIMITS.items():
            if getattr(self, name) > limit:
                raise SpecError(f"{name}={getattr(self, name)}: must be at most {limit:,}")

    def check_supported(self) -> None:
        """Refuse a run that asks for a capability of a later version."""
        for name in RESERVED:
            if getattr(self, name):
                value = getattr(self, name)
                raise SpecError(f"{name}={value!r}: this version of afield cannot do that")
        if self.role == "adapted":
            raise SpecError("role='adapted': this version of afield cannot do that")

    @cached_property
    def key(self) -> str:
        """The run's name on disk: the method, and a digest of everything else."""
        return f"{self.method}-{_digest(self, NOT_IN_KEY)}"

    @property
    def order(self) -> int:
        """When a run can be done: after its base, and after the experts that it merges."""
        return 2 if self.experts else 1 if self.base else 0

    @cached_property
    def recipe(self) -> str:
        """What the run shares with its twins: all but the source domains.

        The same number of epochs is another number of steps on other sources.
        """
        in_steps = ("steps", "every") if self.epochs else ()
        return _digest(self, (*NOT_IN_KEY, "sources", *in_steps))

    @property
    def seed(self) -> int:
        """The seed of everything random in this run.

        Methods share it, so that they start from the same weights and see the same batches. It does
        not depend on the data's fingerprint: labels of an unseen domain must not reach training.
        """
        return derive_seed("run", self.sources, self.trial, self.draw)


@dataclass(frozen=True)
class Record:
    """A run and all that is known of it.

    `dropped` counts broken files that were left out. `memory` is the most that was in use while it
    ran, in bytes: on a GPU what its tensors took, on a CPU the whole process, in which other runs
    may have been before; 0 is not known.
    """

    run: Run
    checkpoints: tuple[Checkpoint, ...]
    seconds: float
    versions: Mapping[str, str]
    device: str
    dropped: int = 0
    memory: int = 0

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains of the dataset that the run has to do with, in its order."""
        return tuple(self.checkpoints[-1].scores)

    @property
    def problem(self) -> str:
        """Why the record cannot be that of a finished run; empty if it can."""
        if not self.checkpoints:
            return "has no checkpoint"
        if not self.candidates:
            return "has no checkpoint that may be picked"
        needed = {*self.run.sources, *self.run.tested}
        for checkpoint in self.checkpoints:
            if not needed <= set(checkpoint.scores):
                missing = next(iter(needed - set(checkpoint.scores)))
                return f"has no scores of domain {missing!r} at step {checkpoint.step}"
            for domain, scores in checkpoint.scores.items():
                parts = (getattr(scores, part) for part in PARTS)
                if not all(score is None or 0 <= score.accuracy <= 1 for score in parts):
                    return f"has an impossible accuracy on {domain!r} at step {checkpoint.step}"
        return ""

    @property
    def candidates(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that a rule may pick."""
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.deployed)

    @property
    def unseen(self) -> tuple[str, ...]:
        """The domains that were not trained on."""
        return tuple(domain for domain in self.domains if domain not in self.run.sources)

    @property
    def tests(self) -> tuple[str, ...]:
        """The unseen domains that are reported on; others only validate."""
        return self.run.tested or self.unseen


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error, at a time (in seconds, as of `time.time`)."""

    run: Run
    error: str
    trace: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Progress:
    """How far a run is: steps done, the sources' validation accuracy then, by which process."""

    run: Run
    unseen: tuple[str, ...]
    step: int
    seconds: float
    host: str
    pid: int
    accuracy: float | None = None


@dataclass(frozen=True)
class Plan:
    """What somebody asked for at once: the keys of its runs, with what words, by which process.

    So many of them were `known` when it started.
    """

    keys: tuple[str, ...]
    known: int
    command: str
    host: str
    pid: int
    started: float


def _digest(run: Run, leaving_out: tuple[str, ...]) -> str:
    """A digest of a run's fields; what is zero or empty is left out, and where own files lie.

    So a field that is added later, and is zero or empty for all that could be asked before, changes
    no key: what is finished stays finished.
    """
    known = asdict(run)
    known |= {"dataset": "" if run.data else run.dataset}
    known |= {"weights": "" if run.start else run.weights}
    fields = {name: v for name, v in known.items() if v and name not in leaving_out}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
