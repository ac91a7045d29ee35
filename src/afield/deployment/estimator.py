"""What an estimator is: the accuracy on a domain without labels, from outputs for held-out domains.

Each estimator is one file in ``estimators/``. It is calibrated on the held-out domains of `fit`,
each of which was scored by a model that was not trained on it. Its error is measured there too:
each held-out domain is taken away in turn, the estimator is calibrated on the others, and its
estimate is compared with the true accuracy::

    error of an estimator on d = estimate(held-out domains without d, d) − accuracy on d
    chosen                     = `consensus`, unless the mean absolute error of another estimator
                                 is smaller in a paired t-test (one-sided, 1 %)
    interval                   = estimate ± t(K − 1) · √(v · (1 + 1/K) + p (1 − p) / n)
    v                          = mean of error² − mean sampling variance of the true accuracies

with K held-out domains, n new samples, the estimate p, and the 90 % quantile t of Student's t, so
that the interval is one of 80 %. The smallest of ten mean errors over a few domains is mostly luck;
therefore another estimator must be clearly better than the default (docs/deployment.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from afield import registry
from afield.deployment.held_out import DomainOutputs
from afield.training.calibration import fit_temperature

# Fewer held-out domains say nothing about the error of an estimator.
MIN_DOMAINS = 3
# The level of the interval of an estimate.
LEVEL = 0.8
# The estimator that is used unless another one is better, and the level of the test for that.
DEFAULT, SIGNIFICANCE = "consensus", 0.01


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
    """The estimate of one estimator, and its errors on the held-out domains in turn.

    `noise` is the mean variance of the accuracies there that is due to the number of samples.
    """

    name: str
    estimate: float
    errors: tuple[float, ...]
    noise: float = 0.0

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
        own = max(0.0, float(np.mean(np.square(self.errors))) - self.noise)
        squares = own * (1 + 1 / count) + self.estimate * (1 - self.estimate) / samples
        half = float(stats.t.ppf((1 + level) / 2, count - 1)) * math.sqrt(squares)
        return max(0.0, self.estimate - half), min(1.0, self.estimate + half)


def measure_errors(held_out: Sequence[DomainOutputs]) -> dict[str, tuple[float, ...]]:
    """The errors of every estimator that applies, on each held-out domain in turn."""
    errors = {}
    for name in registry.names("estimators"):
        estimator: Estimator = registry.find("estimators", name)()
        if estimator.applies(held_out):
            errors[name] = tuple(
                estimator.estimate([*held_out[:number], *held_out[number + 1 :]], domain)
                - domain.accuracy
                for number, domain in enumerate(held_out)
            )
    return errors


def measure_estimators(
    held_out: Sequence[DomainOutputs],
    new: DomainOutputs,
    errors: Mapping[str, tuple[float, ...]] | None = None,
) -> list[EstimatorResult]:
    """The estimates for a new domain: the chosen one first, then by their errors.

    `errors` are those of `measure_errors`, if they are known.
    """
    errors = measure_errors(held_out) if errors is None else errors
    noise = float(np.mean([each.accuracy * (1 - each.accuracy) / len(each) for each in held_out]))
    results = []
    for name, of_domains in errors.items():
        estimator: Estimator = registry.find("estimators", name)()
        if estimator.applies([new]):
            value = estimator.estimate(held_out, new)
            results.append(EstimatorResult(name, value, of_domains, noise))
    chosen = choose_estimator({result.name: result.errors for result in results})
    return sorted(results, key=lambda result: (result.name != chosen, result.mean_error))


def choose_estimator(errors: Mapping[str, Sequence[float]]) -> str:
    """The default, unless another estimator is better on held-out domains beyond chance."""
    before = np.abs(errors[DEFAULT])
    count, best, largest = len(before), DEFAULT, 0.0
    limit = float(stats.t.ppf(1 - SIGNIFICANCE, count - 1))
    for name, of_domains in errors.items():
        gains = before - np.abs(of_domains)
        error = float(gains.std(ddof=1)) / math.sqrt(count)
        if gains.mean() > max(limit * error, largest):
            best, largest = name, float(gains.mean())
    return best
