"""What a checkpoint keeps: the scores of a model on splits of domains.

Tables of ten thousand records read them, so nothing here imports torch, and there is a compact form
for the checkpoints of a run (`CompactCheckpoints`), which takes a tenth of the memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from afield.training.counts import Confusion
from afield.training.metrics import find_metric, metric_value

__all__ = ["PARTS", "Checkpoint", "CompactCheckpoints", "Score", "Scores", "Track"]
__all__ += ["metric_values", "sample_counts"]

PARTS = ("main", "probe", "sample", "known", "test")


@dataclass(frozen=True, slots=True)
class Score:
    """Accuracy, accuracy averaged over classes, mean cross-entropy, and number of samples.

    Two more scores tell how far the confidence (the greatest probability) can be trusted:

        calibration_error   Σ over 15 equal bins of confidence: |hits - confidence|, summed in the
                            bin, over all samples; the expected calibration error
        accuracy_at_90      accuracy on the 90 % most confident samples; where samples tie at the
                            limit, a share of each counts

    Both are None for splits that are not reported, and in older records.

    Checkpoints that a selection rule can pick have details, which older records lack:

        metrics     further metrics by name; see `afield.training.metrics`
        confusion   counts of hits and confusions by class
        groups      hits and samples of every group, if there are groups finer than a domain

    If a model has no output for the classes of some samples, these samples are left out of all
    scores. `unseen_classes` is their number and `unseen_confidence` the mean confidence on them;
    both are None if there are no such samples.
    """

    accuracy: float
    balanced_accuracy: float
    loss: float
    size: int
    calibration_error: float | None = None
    accuracy_at_90: float | None = None
    metrics: Mapping[str, float] | None = None
    confusion: Confusion | None = None
    groups: Mapping[str, tuple[int, int]] | None = None
    unseen_classes: int | None = None
    unseen_confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores on the splits of one domain that were evaluated.

    Attributes
    ----------
    main, probe
        Training and validation split of a source; test and validation split of an unseen domain.
    sample
        Sample of an unseen domain's test split (all of it where that is cheap), for curves only: no
        selection rule and no table of results uses it.
    known
        Validation split of a source with the domain label given, for models that can use it; or its
        test list, where that was evaluated.
    test
        Test list of a source whose validation list is another one. Nothing is selected by it.
    """

    main: Score | None = None
    probe: Score | None = None
    sample: Score | None = None
    known: Score | None = None
    test: Score | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Scores of a model after `step` steps, and the means of the logs since the last checkpoint.

    The model is what would be deployed now, unless `deployed` is false. Then the average deploys
    only at the end of training, the scores are those of the trained model, and no selection rule
    may pick this checkpoint.
    """

    step: int
    scores: Mapping[str, Scores]
    logs: Mapping[str, float]
    deployed: bool = True

    def score(self, domain: str, part: str) -> Score | None:
        """Score on one split of one domain; None if it was not evaluated."""
        scores = self.scores.get(domain)
        return getattr(scores, part) if scores else None


# The columns of a `Track`.
COLUMNS = ("accuracy", "balanced_accuracy", "loss", "size")


@dataclass(frozen=True, slots=True)
class Track:
    """Scores of one split without details: a row for each of the checkpoints `at`."""

    at: Sequence[int]
    rows: NDArray[np.float64]

    def score(self, checkpoint: int) -> Score | None:
        """The score at a checkpoint; None if there is none."""
        if checkpoint not in self.at:
            return None
        accuracy, balanced, loss, size = self.rows[self.at.index(checkpoint)].tolist()
        return Score(accuracy, balanced, loss, int(size))


@dataclass(frozen=True, slots=True, eq=False)
class CompactCheckpoints(Sequence[Checkpoint]):
    """The checkpoints of a finished run, as numbers in arrays; objects are made when asked for.

    Attributes
    ----------
    steps, deployed
        Of every checkpoint.
    domains
        The domains that were evaluated, in the order of the dataset.
    tracks
        Scores by domain and part.
    details
        The scores with more than `COLUMNS`, by checkpoint, domain and part.
    logs
        Names of the logs, and their values: a row per checkpoint.
    """

    steps: tuple[int, ...]
    deployed: tuple[bool, ...]
    domains: tuple[str, ...]
    tracks: Mapping[tuple[str, str], Track]
    details: Mapping[tuple[int, str, str], Score]
    logs: tuple[tuple[str, ...], NDArray[np.float64]]

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> Checkpoint: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Checkpoint, ...]: ...
    def __getitem__(self, index: int | slice) -> Checkpoint | tuple[Checkpoint, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        number = range(len(self))[index]
        names, values = self.logs
        logs = dict(zip(names, values[number].tolist(), strict=True))
        return Checkpoint(self.steps[number], self._scores(number), logs, self.deployed[number])

    def __iter__(self) -> Iterator[Checkpoint]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.steps)

    def _scores(self, number: int) -> dict[str, Scores]:
        by_domain: dict[str, dict[str, Score]] = {domain: {} for domain in self.domains}
        for domain, part in self.tracks:
            score = self.tracks[domain, part].score(number)
            if score is not None:
                by_domain[domain][part] = score
        for (at, domain, part), score in self.details.items():
            if at == number:
                by_domain[domain][part] = score
        return {domain: Scores(**scores) for domain, scores in by_domain.items()}

    @property
    def has_valid_accuracies(self) -> bool:
        """Whether all accuracies are between 0 and 1."""
        plain = (track.rows[:, 0] for track in self.tracks.values())
        return all(((column >= 0) & (column <= 1)).all() for column in plain) and all(
            0 <= score.accuracy <= 1 for score in self.details.values()
        )

    def values(
        self, domain: str, part: str, column: str, of_score: Callable[[Score], float | None]
    ) -> list[float | None]:
        """A value of every checkpoint: a column of the track, or from a score with details."""
        values: list[float | None] = [None] * len(self)
        track = self.tracks.get((domain, part))
        if track is not None and column:
            numbers = track.rows[:, COLUMNS.index(column)].tolist()
            for at, number in zip(track.at, numbers, strict=True):
                values[at] = number
        for (at, *where), score in self.details.items():
            if where == [domain, part]:
                values[at] = of_score(score)
        return values


def metric_values(
    checkpoints: Sequence[Checkpoint], domain: str, part: str, metric: str = ""
) -> list[float | None]:
    """A metric on one split at every checkpoint; None where the scores do not hold it."""
    column = find_metric(metric).field
    return _values(checkpoints, domain, part, column, lambda score: metric_value(score, metric))


def sample_counts(checkpoints: Sequence[Checkpoint], domain: str, part: str) -> list[float | None]:
    """The size of one split at every checkpoint; None where it was not evaluated."""
    return _values(checkpoints, domain, part, "size", attrgetter("size"))


def _values(
    checkpoints: Sequence[Checkpoint],
    domain: str,
    part: str,
    column: str,
    of_score: Callable[[Score], Any],
) -> list[float | None]:
    if isinstance(checkpoints, CompactCheckpoints):
        return checkpoints.values(domain, part, column, of_score)
    scores = [checkpoint.score(domain, part) for checkpoint in checkpoints]
    return [None if score is None else of_score(score) for score in scores]
