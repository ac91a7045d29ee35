"""What a checkpoint keeps: the scores of a model on splits of domains.

Tables of ten thousand records read them, so nothing here imports torch, and there is a compact form
for the checkpoints of a run (`CompactCheckpoints`), which takes a tenth of the memory.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import add, attrgetter
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from afield.training.metrics import find_metric, metric_value

# With more classes, a split keeps counts per class instead of the whole matrix.
MAX_CONFUSION_CLASSES = 100


@dataclass(frozen=True)
class Confusion:
    """How often samples of one class were taken for another, in one split.

    Up to 100 classes, `cells` are the nonzero cells of the matrix, each as class × `classes` +
    predicted class, and `counts` their counts. With more classes, both are None, and `samples`,
    `predictions` and `hits` are the counts of each class.
    """

    classes: int
    cells: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    samples: tuple[int, ...] | None = None
    predictions: tuple[int, ...] | None = None
    hits: tuple[int, ...] | None = None

    @property
    def matrix(self) -> NDArray[np.int64] | None:
        """One row per class, one column per predicted class; None above 100 classes.

        >>> Confusion(2, cells=(0, 3), counts=(5, 4)).matrix.tolist()
        [[5, 0], [0, 4]]
        """
        if self.cells is None or self.counts is None:
            return None
        flat = np.zeros(self.classes**2, dtype=np.int64)
        flat[list(self.cells)] = self.counts
        return flat.reshape(self.classes, self.classes)

    @property
    def per_class(self) -> NDArray[np.int64]:
        """Samples, predictions and hits (rows) of every class (columns)."""
        matrix = self.matrix
        if matrix is None:
            return np.array([self.samples, self.predictions, self.hits])
        return np.stack([matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()])


@dataclass(frozen=True)
class ClassCounts:
    """The counts of several splits at once.

    `split_index` (the split), `labels` and `predicted` (classes) have one entry per sample.
    """

    splits: int
    classes: int
    split_index: NDArray[Any]
    labels: NDArray[Any]
    predicted: NDArray[Any]

    @cached_property
    def matrices(self) -> NDArray[np.int64]:
        """Splits × classes × predicted classes."""
        cell = (self.split_index * self.classes + self.labels) * self.classes + self.predicted
        shape = (self.splits, self.classes, self.classes)
        return np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)

    @cached_property
    def per_class(self) -> NDArray[np.int64]:
        """Samples, predictions and hits (first axis) by split and class."""
        if self.classes <= MAX_CONFUSION_CLASSES:
            matrices = self.matrices
            hits = matrices.diagonal(axis1=1, axis2=2)
            return np.stack([matrices.sum(axis=2), matrices.sum(axis=1), hits])
        right = self.labels == self.predicted
        counted = [(self.labels, ...), (self.predicted, ...), (self.labels, right)]
        return np.stack([self._count(classes, chosen) for classes, chosen in counted])

    def _count(self, classes: NDArray[Any], chosen: Any) -> NDArray[np.int64]:
        cell = (self.split_index * self.classes + classes)[chosen]
        counts = np.bincount(cell, minlength=self.splits * self.classes)
        return counts.reshape(self.splits, self.classes)

    def confusion(self, split: int) -> Confusion:
        """The counts of one split, as a record keeps them."""
        if self.classes > MAX_CONFUSION_CLASSES:
            samples, predictions, hits = (tuple(row.tolist()) for row in self.per_class[:, split])
            return Confusion(self.classes, samples=samples, predictions=predictions, hits=hits)
        flat = self.matrices[split].ravel()
        cells = np.flatnonzero(flat)
        return Confusion(self.classes, tuple(cells.tolist()), tuple(flat[cells].tolist()))


def class_metrics(per_class: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Balanced accuracy, macro F1 and worst class from counts as in `ClassCounts.per_class`."""
    samples, predictions, hits = per_class
    present = samples > 0
    recall = _shares(hits, samples, present)
    f1 = _shares(2 * hits, samples + predictions, present)
    return {
        "balanced_accuracy": np.nanmean(recall, axis=-1),
        "macro_f1": np.nanmean(f1, axis=-1),
        "worst_class": np.nanmin(recall, axis=-1),
    }


def _shares(
    numerator: NDArray[Any], denominator: NDArray[Any], present: NDArray[Any]
) -> NDArray[np.float64]:
    out = np.full(present.shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=present)


def group_metrics(groups: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Worst group, 10th percentile and mean from the hits and samples of every group.

    >>> group_metrics([(1, 2), (3, 3)])
    {'worst_group': 0.5, 'p10_group': 0.55, 'mean_group': 0.75}
    """
    accuracies = np.array([hits / samples for hits, samples in groups])
    return {
        "worst_group": float(accuracies.min()),
        "p10_group": float(np.percentile(accuracies, 10)),
        "mean_group": float(accuracies.mean()),
    }


def roc_auc(scores: NDArray[Any], positive: NDArray[Any]) -> float | None:
    """Area under the ROC curve; None without samples of both classes, or with a NaN.

    It is the share of pairs of a positive and a negative sample whose scores are in this order;
    a tie counts half.
    """
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs or np.isnan(scores).any():
        return None
    # The mean rank of equal scores, as scipy.stats computes it, whose import takes a while.
    _, place, equal = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (equal.cumsum() - (equal - 1) / 2)[place]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / pairs)


Answer = TypeVar("Answer")

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


# The fields of a score without details.
COLUMNS = ("accuracy", "balanced_accuracy", "loss", "size")


@dataclass(frozen=True, slots=True)
class Track:
    """Where the scores of one split are: a row of `CompactCheckpoints.scores` per checkpoint.

    `at` are the numbers of the checkpoints that have a score without details.
    """

    at: Sequence[int]
    rows: NDArray[np.intp]


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
        The scores without details, by domain and part; records with the same splits share them.
    scores
        A row for each of these scores, with `COLUMNS`.
    details
        The scores with more than `COLUMNS`, by domain and part, then by checkpoint.
    logs
        Names of the logs, and their values: a row per checkpoint.
    answers
        What `remember` has computed from them.
    """

    steps: tuple[int, ...]
    deployed: tuple[bool, ...]
    domains: tuple[str, ...]
    tracks: Mapping[tuple[str, str], Track]
    scores: NDArray[np.float64]
    details: Mapping[tuple[str, str], Mapping[int, Score]]
    logs: tuple[tuple[str, ...], NDArray[np.float64]]
    answers: dict[Hashable, Any] = field(default_factory=dict, repr=False)

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
        for domain, part in dict.fromkeys((*self.tracks, *self.details)):
            score = self.score(number, domain, part)
            if score is not None:
                by_domain[domain][part] = score
        return {domain: Scores(**scores) for domain, scores in by_domain.items()}

    def score(self, number: int, domain: str, part: str) -> Score | None:
        """The score of a checkpoint on one split of one domain; None if it was not evaluated."""
        number = range(len(self))[number]
        track = self.tracks.get((domain, part))
        if track is None or number not in track.at:
            return self.details.get((domain, part), {}).get(number)
        row = self.scores[track.rows[track.at.index(number)]]
        accuracy, balanced, loss, size = row.tolist()
        return Score(accuracy, balanced, loss, int(size))

    @property
    def has_valid_accuracies(self) -> bool:
        """Whether all accuracies are between 0 and 1."""
        accuracies = self.scores[:, 0]
        details = (score for by_number in self.details.values() for score in by_number.values())
        return bool(((accuracies >= 0) & (accuracies <= 1)).all()) and all(
            0 <= score.accuracy <= 1 for score in details
        )

    def means(self, domains: Sequence[str], part: str, name: str) -> NDArray[np.float64] | None:
        """The mean of a field over domains; None unless all have finite values in `scores`."""
        tracks = [self.tracks.get((domain, part)) for domain in domains]
        rows = [track.rows for track in tracks if track and len(track.at) == len(self)]
        if len(rows) < len(domains):
            return None
        column = self.scores[:, COLUMNS.index(name)]
        means: NDArray[np.float64] = reduce(add, (column[each] for each in rows)) / len(rows)
        return means if np.isfinite(means).all() else None

    def values(
        self, domain: str, part: str, column: str, of_score: Callable[[Score], float | None]
    ) -> list[float | None]:
        """A value of every checkpoint: a field of its score, or from a score with details."""
        values: list[float | None] = [None] * len(self)
        track = self.tracks.get((domain, part))
        if track is not None and column:
            numbers: list[float | None] = self.scores[track.rows, COLUMNS.index(column)].tolist()
            if len(numbers) == len(values):
                return numbers
            for at, number in zip(track.at, numbers, strict=True):
                values[at] = number
        for at, score in self.details.get((domain, part), {}).items():
            values[at] = of_score(score)
        return values


def score_at(
    checkpoints: Sequence[Checkpoint], number: int, domain: str, part: str
) -> Score | None:
    """The score of one checkpoint on one split of one domain; None if it was not evaluated."""
    if isinstance(checkpoints, CompactCheckpoints):
        return checkpoints.score(number, domain, part)
    return checkpoints[number].score(domain, part)


def remember(
    checkpoints: Sequence[Checkpoint], question: Hashable, answer: Callable[[], Answer]
) -> Answer:
    """What a function without arguments returns; for compact checkpoints, it is called only once.

    Several parts of a report ask the same of ten thousand records. The answer must not be changed.
    """
    if not isinstance(checkpoints, CompactCheckpoints):
        return answer()
    if question not in checkpoints.answers:
        checkpoints.answers[question] = answer()
    known: Answer = checkpoints.answers[question]
    return known


def metric_values(
    checkpoints: Sequence[Checkpoint], domain: str, part: str, metric: str = ""
) -> list[float | None]:
    """A metric on one split at every checkpoint; None where the scores do not hold it."""
    column = find_metric(metric).field
    return _values(checkpoints, domain, part, column, lambda score: metric_value(score, metric))


def plain_means(
    checkpoints: Sequence[Checkpoint], domains: Sequence[str], part: str, metric: str = ""
) -> list[float] | None:
    """The mean of a metric over domains at every checkpoint, if all have plain, finite scores.

    It is None in all other cases, which may have a mean as well.
    """
    name = find_metric(metric).field
    if not isinstance(checkpoints, CompactCheckpoints) or not name or not domains:
        return None
    compute = partial(checkpoints.means, domains, part, name)
    means = remember(checkpoints, ("means", tuple(domains), part, name), compute)
    return None if means is None else means.tolist()


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
