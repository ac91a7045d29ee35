"""How well a model does on labelled samples, beside what its card had promised.

    accuracy     the share of right predictions, with the Wilson interval of 95 %
    balanced     the mean of the recalls of the classes that occur
    coverage     for a share to abstain from on held-out domains: the share of these samples that
                 is answered, and the accuracy on it
    promise      the 90 % prediction interval for one more domain, as on the card

If only some samples were labelled, chosen by strata, every sample counts by its weight, and the
variance is the sum over strata of share² · variance / samples.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from afield.deployment.labelled import LabelledSamples, read_labelled
from afield.deployment.model_folder import PREDICTION_LEVEL
from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output, guard_formula
from afield.training.calibration import calibration_error

if TYPE_CHECKING:
    from afield.deployment.model import Model
    from afield.deployment.model_folder import Estimate

# The shares of held-out samples to abstain from, for which coverage is shown.
ABSTENTIONS = (0.0, 0.05, 0.1, 0.2, 0.5)
# The level of the intervals of accuracies.
LEVEL = 0.95
EVALUATION_SUFFIXES = (".html", ".json", ".csv")


@dataclass(frozen=True)
class DomainScore:
    """The scores on the samples of one domain, or of all; `low` and `high` are the interval."""

    name: str
    samples: int
    accuracy: float
    low: float
    high: float
    balanced_accuracy: float
    calibration_error: float
    verdict: str = ""


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class; `mistaken_for` is the most frequent wrong prediction."""

    name: str
    samples: int
    recall: float
    precision: float | None
    mistaken_for: str = ""


@dataclass(frozen=True)
class Coverage:
    """The share of the samples that is answered at a level of abstention, and its accuracy."""

    abstain: float
    answered: float
    accuracy: float | None


@dataclass(frozen=True)
class Promise:
    """What the card says: the mean accuracy on held-out domains, their number, and an interval.

    The ends are those of the prediction interval for one more domain; None if one was held out.
    """

    accuracy: float
    low: float | None
    high: float | None
    domains: int

    @classmethod
    def of(cls, estimate: "Estimate | None") -> "Promise | None":
        """The promise of an estimate; None without one."""
        if estimate is None:
            return None
        low, high = estimate.interval or (None, None)
        return cls(estimate.accuracy, low, high, len(estimate.domains))

    def verdict(self, accuracy: float) -> str:
        """Where an accuracy lies: within the interval, below it, or above it; "" without one."""
        if self.low is None or self.high is None:
            return ""
        if accuracy < self.low:
            return "below"
        return "above" if accuracy > self.high else "within"

    def compare(self, accuracy: float) -> str:
        """The sentence part that sets an accuracy beside what the card says."""
        if self.low is None or self.high is None:
            return (
                f"on the only held-out domain it was {100 * self.accuracy:.1f} %, which gives no "
                "interval for another one"
            )
        return (
            f"the card's {100 * PREDICTION_LEVEL:.0f} % prediction interval, from {self.domains} "
            f"held-out domains, is {100 * self.low:.1f} to {100 * self.high:.1f} %, so it is "
            f"{self.verdict(accuracy)} that interval"
        )


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on labelled samples.

    Attributes
    ----------
    model
        The name of the model.
    overall, domains, classes
        The scores on all samples, by domain and by class.
    confusion
        For each true class the number of predictions of every class, in the order of the classes.
    coverage
        What abstaining would bring; empty if the model cannot abstain.
    promise
        What the card says, if it has an estimate.
    unknown
        The number of samples of each class that the model does not know; they are in no score.
    unread
        The samples that could not be read, with the reason.
    trained
        The domains that have the name of a training domain.
    weighted
        Whether samples count by the weights of a chosen sample.
    rows
        A row per sample: file, domain, label, class, confidence and whether it is right.
    """

    model: str
    overall: DomainScore
    domains: Sequence[DomainScore]
    classes: Sequence[ClassScore]
    confusion: Sequence[Sequence[int]]
    class_names: Sequence[str]
    coverage: Sequence[Coverage]
    promise: Promise | None
    unknown: Mapping[str, int]
    unread: Sequence[tuple[str, str]]
    trained: Sequence[str]
    weighted: bool
    rows: pd.DataFrame

    @property
    def headline(self) -> str:
        """The accuracy with its interval, and what the card had promised."""
        score = self.overall
        text = (
            f"accuracy {100 * score.accuracy:.1f} % (95 % interval {100 * score.low:.1f} to "
            f"{100 * score.high:.1f} %, {score.samples:,} samples)"
        )
        if self.promise is None:
            return f"{text}; the card promises nothing about unseen domains"
        return f"{text}; {self.promise.compare(score.accuracy)}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON has them; without the rows of samples."""
        values = asdict(self)
        del values["rows"]
        return values


def evaluate(model: "Model", data: Any, *, label: str = "", domain: str = "") -> Evaluation:
    """Evaluate a model on labelled samples; see `read_labelled` for what `data` can be.

    Parameters
    ----------
    model
        A loaded model. An adapted one adapts to each domain by itself.
    data
        A path, or arrays (X, y) or (X, y, domain).
    label, domain
        Columns of a table; by default those with a usual name.
    """
    samples = read_labelled(data, model.about.inputs, label=label, domain=domain)
    rows, unread = _predict(model, samples)
    known = rows["label"].isin(model.classes)
    unknown = Counter(rows["label"][~known])
    if not known.any():
        wrong = ", ".join(sorted(unknown)[:5])
        raise DataError(
            f"no sample has a class that the model knows ({wrong}); its classes are "
            f"{', '.join(model.classes[:10])}"
            if unknown
            else "no sample could be read; see `afield predict`"
        )
    scored = rows[known]
    promise = Promise.of(model.about.estimate)
    by_domain = [_score(str(name), part, promise) for name, part in scored.groupby("domain")]
    overall = _score("all", scored, promise)
    return Evaluation(
        model=model.about.name,
        overall=overall,
        domains=by_domain,
        classes=_class_scores(scored, model.classes),
        confusion=_confusion(scored, model.classes),
        class_names=model.classes,
        coverage=_coverage(model, scored),
        promise=promise,
        unknown=dict(sorted(unknown.items())),
        unread=unread,
        trained=[each.name for each in by_domain if each.name in model.about.sources],
        weighted=bool(samples.weights),
        rows=rows,
    )


def _predict(model: "Model", samples: LabelledSamples) -> tuple[pd.DataFrame, list[Any]]:
    """A row per sample that could be read, and the others with the reason."""
    rows, unread = [], []
    of_domain = np.asarray(samples.domains, dtype=object)
    for domain in dict.fromkeys(samples.domains):
        numbers = np.flatnonzero(of_domain == domain).tolist()
        answers = model.predictions(samples.take(numbers))
        for number, answer in zip(numbers, answers, strict=True):
            if answer.error:
                unread.append((samples.names[number], answer.error))
                continue
            weight = samples.weights[number] if samples.weights else 1.0
            rows.append(
                {
                    "file": samples.names[number],
                    "domain": domain,
                    "label": samples.labels[number],
                    "class": answer.label,
                    "confidence": answer.confidence,
                    "right": answer.label == samples.labels[number],
                    "weight": weight,
                    "stratum": samples.strata[number] if samples.strata else "",
                }
            )
    names = ["file", "domain", "label", "class", "confidence", "right", "weight", "stratum"]
    return pd.DataFrame(rows, columns=names), unread


def _score(name: str, rows: pd.DataFrame, promise: Promise | None) -> DomainScore:
    right = rows["right"].to_numpy(dtype=float)
    weights = rows["weight"].to_numpy(dtype=float)
    accuracy = float(np.average(right, weights=weights))
    low, high = wilson_interval(accuracy, _effective_samples(rows, accuracy))
    recalls = [
        np.average(part["right"].astype(float), weights=part["weight"])
        for _, part in rows.groupby("label")
    ]
    confidence = rows["confidence"].to_numpy(dtype=float)
    return DomainScore(
        name=name,
        samples=len(rows),
        accuracy=accuracy,
        low=low,
        high=high,
        balanced_accuracy=float(np.mean(recalls)),
        calibration_error=calibration_error(confidence, right.astype(bool)),
        verdict=promise.verdict(accuracy) if promise else "",
    )


def _effective_samples(rows: pd.DataFrame, accuracy: float) -> float:
    """The number of samples drawn at random whose accuracy would vary as much."""
    if (rows["stratum"] == "").all() or not 0 < accuracy < 1:
        return len(rows)
    total, variance = rows["weight"].sum(), 0.0
    for _, part in rows.groupby("stratum"):
        # One more right and one more wrong answer: a stratum without an error may have some.
        share = (part["right"].sum() + 1) / (len(part) + 2)
        variance += (part["weight"].sum() / total) ** 2 * share * (1 - share) / len(part)
    return accuracy * (1 - accuracy) / variance


def wilson_interval(share: float, samples: float, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a share that was measured on this many samples (Wilson, 1927).

    >>> [round(end, 3) for end in wilson_interval(0.5, 100)]
    [0.404, 0.596]
    """
    z = float(stats.norm.ppf((1 + level) / 2))
    center = (share + z**2 / (2 * samples)) / (1 + z**2 / samples)
    half = z / (1 + z**2 / samples)
    half *= math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    return max(0.0, center - half), min(1.0, center + half)


def _class_scores(rows: pd.DataFrame, classes: Sequence[str]) -> list[ClassScore]:
    scores = []
    for name in classes:
        of_class, predicted = rows[rows["label"] == name], rows[rows["class"] == name]
        wrong = Counter(of_class["class"][~of_class["right"].astype(bool)])
        if len(of_class):
            scores.append(
                ClassScore(
                    name=name,
                    samples=len(of_class),
                    recall=float(of_class["right"].mean()),
                    precision=float(predicted["right"].mean()) if len(predicted) else None,
                    mistaken_for=wrong.most_common(1)[0][0] if wrong else "",
                )
            )
    return scores


def _confusion(rows: pd.DataFrame, classes: Sequence[str]) -> list[list[int]]:
    numbers = {name: number for number, name in enumerate(classes)}
    counts: NDArray[np.int64] = np.zeros((len(classes), len(classes)), dtype=np.int64)
    pairs = (rows["label"].map(numbers).to_numpy(), rows["class"].map(numbers).to_numpy())
    np.add.at(counts, pairs, 1)
    return counts.tolist()


def _coverage(model: "Model", rows: pd.DataFrame) -> list[Coverage]:
    if model.about.calibration is None:
        return []
    coverage = []
    for share in ABSTENTIONS:
        kept = rows[rows["confidence"] >= model.threshold(share)] if share else rows
        answered = float(kept["weight"].sum() / rows["weight"].sum())
        right, weights = kept["right"].astype(float), kept["weight"]
        accuracy = float(np.average(right, weights=weights)) if len(kept) else None
        coverage.append(Coverage(share, answered, accuracy))
    return coverage


def check_result_file(out: Path, *, overwrite: bool) -> None:
    """Raise before any work if an evaluation or an estimate cannot be written to a file."""
    if out.suffix not in EVALUATION_SUFFIXES:
        raise SpecError(f"{out}: unknown format; use a suffix of {', '.join(EVALUATION_SUFFIXES)}")
    check_output(out, overwrite=overwrite)


def write_result(out: Path, *, page: str, values: Mapping[str, Any], rows: pd.DataFrame) -> None:
    """Write a page, all numbers as JSON, or a row per sample as CSV, by the suffix of a file."""
    try:
        with atomic_write(out) as temporary:
            if out.suffix == ".html":
                temporary.write_text(page, encoding="utf-8")
            elif out.suffix == ".json":
                text = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False)
                temporary.write_text(text + "\n", encoding="utf-8")
            else:
                safe = rows.map(lambda cell: guard_formula(cell) if isinstance(cell, str) else cell)
                safe.to_csv(temporary, index=False)
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another --out"
        ) from None
