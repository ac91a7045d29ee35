"""The contents of a store: records of runs, their failures, plans and progress."""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated

from pydantic import AfterValidator

from afield.runs.run import Run
from afield.training.scores import PARTS, Checkpoint, CompactCheckpoints, score_at


@dataclass(frozen=True)
class Record:
    """A finished run and its results.

    `dropped` counts unreadable files that were left out, `truncated` texts that were cut at the
    number of tokens of the run; `median_tokens` is the median length of the texts of the sources,
    cut as they are. If the samples are features of texts, both are about these texts, and
    `embedded_tokens` is the number of tokens at which `embed` cut them. `memory` is the peak
    memory in bytes: on a GPU that of the run's tensors, on a CPU that of the whole process, which
    may have done other runs before; 0 means unknown. `class_names` are those of confusion
    matrices, which have up to 100 classes; older records lack them. `at` is when the run was
    finished, as `time.time` counts; 0 in older records. `trained_weights` is the number of weights
    that the run's optimizer trained, in the network and in the method's other networks; 0 in older
    records and in runs without training. `parameters` and `macs` are those of the whole model that
    predicts, with the network in front of it if the samples are features, and `macs` are for one
    sample (see `afield.networks.cost`); 0 in older records and where they are unknown.
    """

    run: Run
    checkpoints: Annotated[Sequence[Checkpoint], AfterValidator(tuple)]
    seconds: float
    versions: Mapping[str, str]
    device: str
    dropped: int = 0
    memory: int = 0
    class_names: tuple[str, ...] = ()
    truncated: int = 0
    median_tokens: int = 0
    embedded_tokens: int = 0
    at: float = field(default=0.0, compare=False)
    trained_weights: int = 0
    parameters: int = 0
    macs: int = 0

    def __repr__(self) -> str:
        unseen = f"without {', '.join(self.unseen)}" if self.unseen else "on all domains"
        return f"<Record {self.run.key}: {unseen}, {len(self.checkpoints)} checkpoints>"

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """All domains that the run trains or is evaluated on, in the order of the dataset."""
        if isinstance(self.checkpoints, CompactCheckpoints):
            return self.checkpoints.domains
        return tuple(self.checkpoints[-1].scores)

    @property
    def problem(self) -> str:
        """Why the record cannot be that of a finished run; empty if it can."""
        if not self.checkpoints:
            return "has no checkpoint"
        if not self.candidate_numbers:
            return "has no checkpoint that may be picked"
        needed = {*self.run.sources, *self.run.tested}
        if isinstance(self.checkpoints, CompactCheckpoints):
            sound = self.checkpoints.has_valid_accuracies and needed <= set(self.domains)
            if sound:
                return ""
        return self._scores_problem(needed)

    def _scores_problem(self, needed: set[str]) -> str:
        for checkpoint in self.checkpoints:
            if not needed <= set(checkpoint.scores):
                missing = next(iter(needed - set(checkpoint.scores)))
                return f"has no scores of domain {missing!r} at step {checkpoint.step}"
            for domain, scores in checkpoint.scores.items():
                parts = (getattr(scores, part) for part in PARTS)
                if not all(score is None or 0 <= score.accuracy <= 1 for score in parts):
                    return f"has an impossible accuracy on {domain!r} at step {checkpoint.step}"
        return ""

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The step of every checkpoint."""
        if isinstance(self.checkpoints, CompactCheckpoints):
            return self.checkpoints.steps
        return tuple(checkpoint.step for checkpoint in self.checkpoints)

    @cached_property
    def candidate_numbers(self) -> tuple[int, ...]:
        """The numbers of the checkpoints that a rule may pick."""
        if isinstance(self.checkpoints, CompactCheckpoints):
            return _numbers_of_true(self.checkpoints.deployed)
        return _numbers_of_true(tuple(checkpoint.deployed for checkpoint in self.checkpoints))

    @property
    def candidates(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that a rule may pick."""
        return tuple(self.checkpoints[number] for number in self.candidate_numbers)

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """The domains that were not trained on."""
        return tuple(domain for domain in self.domains if domain not in self.run.sources)

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """The unseen domains that are tested on; the others only validate."""
        return self.run.tested or self.unseen

    @property
    def is_tested(self) -> bool:
        """Whether the record reports on its unseen domains; a twin only validates."""
        return bool(self.run.tested) or len(self.unseen) == 1


@lru_cache(maxsize=100)
def _numbers_of_true(flags: tuple[bool, ...]) -> tuple[int, ...]:
    """The numbers of the flags that are true; thousands of records share one tuple."""
    return tuple(number for number, flag in enumerate(flags) if flag)


def domain_sizes(records: Iterable[Record]) -> dict[str, int]:
    """The samples of each tested domain, from the sizes of its splits in the last evaluation."""
    sizes: dict[str, int] = {}
    for record in records:
        for name in record.tests:
            if name in sizes:
                continue
            main, probe = (score_at(record.checkpoints, -1, name, p) for p in ("main", "probe"))
            if main is not None:
                sizes[name] = main.size + (probe.size if probe and not record.run.report else 0)
    return sizes


def describe_size(records: Sequence[Record]) -> str:
    """How many samples the data of records have; empty if not every domain was tested."""
    sizes = domain_sizes(records)
    noun = "images" if records[0].run.folder else "samples"
    return f"{sum(sizes.values()):,} {noun}" if len(sizes) == len(records[0].domains) else ""


def format_days(times: Mapping[str, float]) -> dict[str, str]:
    """Times as days in UTC, with the year or the hour where that tells them apart; 0 is empty.

    >>> format_days({"old": 1e9, "new": 1e9 + 60, "unknown": 0})
    {'old': '9 September, 01:46', 'new': '9 September, 01:47', 'unknown': ''}
    """
    known = {name: time.gmtime(at) for name, at in times.items() if at}
    years = len({day.tm_year for day in known.values()}) > 1
    days = {
        name: f"{day.tm_mday} {time.strftime('%B %Y' if years else '%B', day)}"
        for name, day in known.items()
    }
    several = len(set(days.values())) < len(days)
    hours = {name: time.strftime(", %H:%M", day) if several else "" for name, day in known.items()}
    return {name: f"{days[name]}{hours[name]}" if name in days else "" for name in times}


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error, and when (as `time.time` counts)."""

    run: Run
    error: str
    trace: str
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Progress:
    """Progress of a run: its steps so far, its validation accuracy, and the process doing it."""

    run: Run
    unseen: tuple[str, ...]
    step: int
    seconds: float
    host: str
    pid: int
    accuracy: float | None = None


@dataclass(frozen=True)
class Plan:
    """The runs of one benchmark by their keys, the command, and the process that does it.

    `known` of the runs were finished when it started. `threads` and `device` are those of the
    command, for workers; an empty device is the fastest one there is.
    """

    keys: tuple[str, ...]
    known: int
    command: str
    host: str
    pid: int
    started: float
    threads: int = 1
    device: str = ""

    @property
    def number(self) -> str:
        """The name of the plan in its store; plans of the same runs share it."""
        return hashlib.sha256(" ".join(sorted(self.keys)).encode()).hexdigest()[:16]
