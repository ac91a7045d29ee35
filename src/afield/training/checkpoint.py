"""What a checkpoint keeps: the scores of a model on splits of domains. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from afield.training.counts import Confusion

__all__ = ["PARTS", "Checkpoint", "Score", "Scores"]

PARTS = ("main", "probe", "sample", "known", "test")


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
