"""Calibration: fit the temperature that corrects a confidence, and measure the remaining error.

    confidence          the greatest of softmax(logits / T)
    T                   argmin of the mean cross-entropy of softmax(logits / T), domains alike
    calibration error   Σ over 15 equal bins of confidence: |hits - confidence|, summed in the bin,
                        over all samples (the expected calibration error)
    coverage            the share of the samples, the most confident ones, that the model answers:
                        90 %

One temperature for all classes changes no prediction, and few samples suffice to fit it. If it is
fitted on samples of the sources, the model is calibrated for the sources only; see
`afield.deployment.fitting`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

BINS = 15
# Bounds: the best temperature is infinite if all predictions are wrong, 0 if all are right.
TEMPERATURE_RANGE = (0.05, 20.0)
# Percentiles 0, 0.5, …, 100.
QUANTILE_POINTS = 201


def fit_temperature(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    """Fit one temperature to several domains, each with the same weight.

    One more sample, spread evenly over the classes, is added to the samples. Without it, the
    temperature of a model without errors would be 0 however few samples there are.

    >>> sure, y = torch.tensor([[9.0, 0.0]]).repeat(1000, 1), torch.arange(1000) // 900
    >>> round(float((sure / fit_temperature([sure], [y])).softmax(1)[0, 0]), 2)
    0.9
    """
    double = [domain_logits.double() for domain_logits in logits]
    smoothing = 1 / (1 + sum(map(len, labels)))

    def risk(log_temperature: float) -> float:
        scale = float(np.exp(-log_temperature))
        losses = [
            F.cross_entropy(x * scale, y, label_smoothing=smoothing)
            for x, y in zip(double, labels, strict=True)
        ]
        return float(torch.stack(losses).mean())

    # The risk is convex in 1 / T, so it has one minimum in log T.
    bounds = [float(np.log(end)) for end in TEMPERATURE_RANGE]
    from scipy.optimize import minimize_scalar

    result = minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(result.x))


def calibration_error(confidence: NDArray[Any], hits: NDArray[Any]) -> float:
    """Expected calibration error; a bin includes its upper end."""
    return float(calibration_errors(confidence, hits, _one_split(hits))[0])


def calibration_errors(
    confidence: NDArray[Any], hits: NDArray[Any], split_index: NDArray[Any]
) -> NDArray[Any]:
    """Expected calibration error of several splits; `split_index` is the split of each sample."""
    sizes = np.bincount(split_index)
    cells = split_index * BINS + _bins(confidence)
    gaps = np.bincount(cells, hits - confidence, minlength=len(sizes) * BINS)
    return np.abs(gaps).reshape(-1, BINS).sum(axis=1) / sizes


def reliability_bins(
    confidence: NDArray[np.float64], hits: NDArray[np.bool_]
) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and number of samples of every bin that is not empty."""
    bins = _bins(confidence)
    return [
        (float(confidence[inside].mean()), float(hits[inside].mean()), int(inside.sum()))
        for number in range(BINS)
        if (inside := bins == number).any()
    ]


def _bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def selective_accuracy(confidence: NDArray[Any], hits: NDArray[Any]) -> float:
    """Accuracy on the most confident 90 % of the samples, rounded up.

    Samples that tie at the limit count in equal shares, so their order does not matter.
    """
    return float(selective_accuracies(confidence, hits, _one_split(hits))[0])


def selective_accuracies(
    confidence: NDArray[Any], hits: NDArray[Any], split_index: NDArray[Any]
) -> NDArray[Any]:
    """Selective accuracy of several splits; `split_index` is the split of each sample."""
    sizes = np.bincount(split_index)
    kept = -(-9 * sizes // 10)
    order = np.argsort(split_index - confidence.astype(np.float64))
    last = confidence[order][np.cumsum(sizes) - sizes + kept - 1][split_index]
    above, tied = confidence > last, confidence == last
    share = (kept - np.bincount(split_index, above)) / np.bincount(split_index, tied)
    correct = np.bincount(split_index, hits & above) + share * np.bincount(split_index, hits & tied)
    return correct / kept


def _one_split(hits: NDArray[Any]) -> NDArray[np.int64]:
    return np.zeros(len(hits), dtype=np.int64)


def balanced_quantiles(domains: Sequence[NDArray[np.float64]]) -> tuple[float, ...]:
    """Quantiles of the values of several domains, each with the same weight, in ascending order."""
    values = np.concatenate(domains)
    weights = np.concatenate([np.full(len(domain), 1 / len(domain)) for domain in domains])
    order = np.argsort(values, kind="stable")
    # A sample is at the middle of its share of the weight.
    heights = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    quantiles = np.interp(np.linspace(0, 1, QUANTILE_POINTS), heights, values[order])
    return tuple(quantiles.tolist())


def percentile_ranks(
    values: NDArray[np.float64], reference_quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Percentile rank, from 0 to 100, of each value among reference quantiles.

    >>> percentile_ranks(np.array([-1.0, 5.0, 99.0]), range(11)).tolist()
    [0.0, 50.0, 100.0]
    """
    ends = np.asarray(reference_quantiles, dtype=np.float64)
    heights = np.linspace(0, 100, len(ends))
    # A value that equals several quantiles has the rank in the middle of them.
    low, high = (np.searchsorted(ends, values, side=side) for side in ("left", "right"))
    between = np.interp(values, ends, heights)
    flat = (high - low) > 1
    return np.where(
        flat, (heights[np.minimum(low, len(ends) - 1)] + heights[high - 1]) / 2, between
    )
