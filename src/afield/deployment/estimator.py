"""What an estimator is: the accuracy on a domain without labels, from outputs for held-out domains.

Each estimator is one file in ``estimators/``. It is calibrated on the held-out domains of `fit`,
each of which was scored by a model that was not trained on it. Its error is measured there too:
each held-out domain is taken away in turn, the estimator is calibrated on the others, and its
estimate is compared with the true accuracy::

    error of an estimator on d = estimate(held-out domains without d, d) − accuracy on d
    chosen                     = the estimator with the smallest mean of the absolute errors
    interval                   = estimate ± t(K − 1) · √(mean of error² · (1 + 1/K) + p (1 − p) / n)

with K held-out domains, n new samples, the estimate p, and the 90 % quantile t of Student's t, so
that the interval is one of 80 %. With fewer than three held-out domains, or for a domain that is
farther away than all of them, there is no number.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from afield import registry
from afield.deployment.held_out import DomainOutputs
from afield.errors import DataError, SpecError
from afield.networks.ensemble import capture_votes
from afield.training.calibration import fit_temperature

if TYPE_CHECKING:
    from afield.deployment.model import Model

# Fewer held-out domains say nothing about the error of an estimator.
MIN_DOMAINS = 3
# The level of the interval of an estimate.
LEVEL = 0.8
# Too far away is a domain whose mean distance is so many times that of the farthest held-out one.
TOO_FAR = 1.1


class Estimator:
    """Estimates the accuracy on a domain without labels.

    `needs` names a score of the samples that the estimator uses, such as ``distance``.
    """

    needs: ClassVar[str] = ""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The accuracy on `new`, after calibration on held-out domains."""
        raise NotImplementedError

    def applies(self, domains: Sequence[DomainOutputs]) -> bool:
        """Whether all domains have the score that the estimator needs."""
        return not self.needs or all(self.needs in domain.scores for domain in domains)


def common_temperature(held_out: Sequence[DomainOutputs]) -> float:
    """The temperature that calibrates held-out domains."""
    logits = [domain.logits for domain in held_out]
    return fit_temperature(logits, [domain.labels for domain in held_out])


def mean_accuracy(held_out: Sequence[DomainOutputs]) -> float:
    """The mean of the accuracies on held-out domains."""
    return float(np.mean([domain.accuracy for domain in held_out]))


def on_line(x: Sequence[float], y: Sequence[float], new: float) -> float:
    """The value at `new` of a line through points, clipped to shares.

    The slope is that of least squares, times (n − 2) / (n − 1): two points say nothing about it.

    >>> round(on_line([0.0, 0.5, 1.0], [0.2, 0.4, 0.6], 1.0), 6)
    0.5
    """
    centered = np.asarray(x) - np.mean(x)
    spread = float(centered @ centered)
    slope = float(centered @ np.asarray(y)) / spread if spread > 0 else 0.0
    slope *= max(0, len(x) - 2) / max(1, len(x) - 1)
    return float(np.clip(np.mean(y) + slope * (new - np.mean(x)), 0, 1))


def share_above(held_out: Sequence[Tensor], hits: Sequence[Tensor], new: Tensor) -> float:
    """The share of new scores above the threshold above which as many held-out scores lie as hit.

    Held-out domains have the same weight.
    """
    scores = torch.cat(list(held_out)).double()
    weights = torch.cat([torch.full((len(each),), 1 / len(each)) for each in held_out]).double()
    accuracy = float(np.mean([float(each.mean()) for each in hits]))
    order = scores.argsort(descending=True)
    above = weights[order].cumsum(0) / weights.sum()
    threshold = scores[order][min(int((above < accuracy).sum()), len(scores) - 1)]
    return float((new.double() >= threshold).double().mean())


@dataclass(frozen=True)
class EstimatorResult:
    """The estimate of one estimator, and its errors on the held-out domains in turn."""

    name: str
    estimate: float
    errors: tuple[float, ...]

    @property
    def mean_error(self) -> float:
        """The mean of the absolute errors."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst_error(self) -> float:
        """The largest absolute error."""
        return float(np.max(np.abs(self.errors)))

    def interval(self, samples: int, level: float = LEVEL) -> tuple[float, float]:
        """The interval in which the accuracy probably lies."""
        count = len(self.errors)
        squares = float(np.mean(np.square(self.errors))) * (1 + 1 / count)
        squares += self.estimate * (1 - self.estimate) / samples
        half = float(stats.t.ppf((1 + level) / 2, count - 1)) * math.sqrt(squares)
        return max(0.0, self.estimate - half), min(1.0, self.estimate + half)


@dataclass(frozen=True)
class NewDomain:
    """What is estimated about samples without labels.

    Attributes
    ----------
    model, samples
        The name of the model, and the number of samples that could be read.
    results
        The estimate of every estimator, the smallest measured error first.
    low, high
        The interval of the first of them.
    held_out
        The accuracies on the held-out domains.
    distance, distances
        The mean distance of the samples, and those of the held-out domains.
    shares
        The share of each class among the predictions.
    strangest
        The samples that are farthest from the training data, with their distances.
    unread
        The samples that could not be read, with the reason.
    refusal
        Why there is no number; empty if there is one.
    rows
        File, predicted class, confidence and distance of every sample.
    """

    model: str
    samples: int
    results: tuple[EstimatorResult, ...]
    low: float
    high: float
    held_out: dict[str, float]
    distance: float
    distances: dict[str, float]
    shares: dict[str, float]
    strangest: tuple[tuple[str, float], ...]
    unread: tuple[tuple[str, str], ...]
    refusal: str
    rows: Any

    @property
    def headline(self) -> str:
        """The estimate with its interval and its measured error, or why there is none."""
        if self.refusal:
            return f"no estimate: {self.refusal}"
        best = self.results[0]
        return (
            f"about {100 * best.estimate:.0f} % accuracy, probably {100 * self.low:.0f} to "
            f"{100 * self.high:.0f} %: on your {len(self.held_out)} held-out domains this estimate "
            f"({best.name}) was off by {100 * best.mean_error:.1f} points on average and "
            f"{100 * best.worst_error:.1f} at worst"
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON has them; without the rows of samples."""
        values = asdict(self)
        del values["rows"]
        return {**values, "headline": self.headline}


def measure_estimators(
    held_out: Sequence[DomainOutputs], new: DomainOutputs
) -> list[EstimatorResult]:
    """The estimates for a new domain, the smallest error on held-out domains first."""
    results = []
    for name in registry.names("estimators"):
        estimator: Estimator = registry.find("estimators", name)()
        if not estimator.applies([*held_out, new]):
            continue
        errors = []
        for number, domain in enumerate(held_out):
            others = [*held_out[:number], *held_out[number + 1 :]]
            errors.append(estimator.estimate(others, domain) - domain.accuracy)
        results.append(EstimatorResult(name, estimator.estimate(held_out, new), tuple(errors)))
    return sorted(results, key=lambda result: result.mean_error)


def estimate(model: "Model", inputs: Any, *, text: str = "") -> NewDomain:
    """Estimate the accuracy of a model on samples of a new domain, which have no labels.

    Parameters
    ----------
    model
        A loaded model whose folder has the outputs for held-out domains.
    inputs, text
        As in `Model.predictions`.
    """
    held_out = model.held_out
    if not held_out:
        raise SpecError(
            f"{model.about.name}: its folder has no outputs for held-out domains "
            "(held_out.safetensors), so nothing can be estimated; fit it again without "
            "--no-estimate and --no-held-out"
        )
    if model.about.adaptation:
        raise SpecError(
            f"{model.about.name}: adapts to its samples ({model.about.adaptation}), and the "
            "estimators are calibrated on models that do not; fit it with --adapt none"
        )
    names, new, unread = read_outputs(model, inputs, text=text)
    results = measure_estimators(held_out, new) if len(held_out) >= MIN_DOMAINS else []
    refusal = _refusal(held_out, new)
    low, high = results[0].interval(len(new)) if results else (0.0, 1.0)
    return NewDomain(
        model=model.about.name,
        samples=len(new),
        results=tuple(results),
        low=low,
        high=high,
        held_out={domain.name: domain.accuracy for domain in held_out},
        distance=_mean_distance(new),
        distances={domain.name: _mean_distance(domain) for domain in held_out},
        shares=_shares(new, model.classes),
        strangest=_strangest(names, new),
        unread=tuple(unread),
        refusal=refusal,
        rows=_rows(names, new, model),
    )


def _refusal(held_out: Sequence[DomainOutputs], new: DomainOutputs) -> str:
    if len(held_out) < MIN_DOMAINS:
        return (
            f"{len(held_out)} held-out domains are too few to know how far an estimate is off; "
            "label some samples, and use afield evaluate"
        )
    farthest = max(map(_mean_distance, held_out))
    if _mean_distance(new) > TOO_FAR * farthest:
        return (
            f"these samples are farther from the training data ({_mean_distance(new):.2f}) than "
            f"every held-out domain (at most {farthest:.2f}), so the errors measured there do not "
            "apply; label some samples, and use afield evaluate"
        )
    return ""


def _mean_distance(domain: DomainOutputs) -> float:
    distances = domain.scores.get("distance")
    return float(distances.double().mean()) if distances is not None else 0.0


def _shares(new: DomainOutputs, classes: Sequence[str]) -> dict[str, float]:
    counts = torch.bincount(new.logits.argmax(dim=1), minlength=len(classes))
    return dict(zip(classes, (counts / len(new)).tolist(), strict=True))


def _strangest(
    names: Sequence[str], new: DomainOutputs, count: int = 10
) -> tuple[tuple[str, float], ...]:
    distances = new.scores.get("distance")
    if distances is None:
        return ()
    order = distances.argsort(descending=True)[:count].tolist()
    return tuple((names[row], float(distances[row])) for row in order)


def _rows(names: Sequence[str], new: DomainOutputs, model: "Model") -> Any:
    import pandas as pd

    best = new.probabilities(model.temperature).max(dim=1)
    rows = {
        "file": list(names),
        "class": [model.classes[index] for index in best.indices.tolist()],
        "confidence": best.values.tolist(),
    }
    return pd.DataFrame(rows | {name: each.tolist() for name, each in new.scores.items()})


def read_outputs(
    model: "Model", inputs: Any, *, text: str = "", batch: int = 64
) -> tuple[list[str], DomainOutputs, list[tuple[str, str]]]:
    """The names and outputs of the samples that can be read, and why the others cannot."""
    about, names, unread = model.about, list[str](), list[tuple[str, str]]()
    logits, distances = list[Tensor](), list[Tensor]()
    values = Path(inputs) if isinstance(inputs, str) and Path(inputs).exists() else inputs
    with capture_votes(model.module) as votes:
        for samples in about.inputs.modality.batches(about.inputs, values, batch, text):
            pairs = list(zip(samples.names, samples.errors, strict=True))
            unread += [(name, error) for name, error in pairs if error]
            names += [name for name, error in pairs if not error]
            if samples.x is not None:
                of_batch, features = model.logits_and_features(samples.x)
                logits.append(of_batch)
                if model.strangeness is not None:
                    distances.append(model.strangeness.classes(features))
    if not names:
        raise DataError(f"no sample could be read; {about.name} takes {about.inputs.summary}")
    scores = {"distance": torch.cat(distances)} if distances else {}
    agreement = votes.agreement()
    if agreement is not None and len(agreement) == len(names):
        scores["agreement"] = agreement
    new = DomainOutputs("new", torch.cat(logits), torch.empty(0, dtype=torch.long), scores)
    if not new.logits.isfinite().all():
        raise DataError("the outputs for some samples are not finite; their values are too large")
    return names, new, unread
