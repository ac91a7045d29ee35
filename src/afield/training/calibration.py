"""How far a confidence can be trusted: the temperature that mends it, and what is left to mend.

    confidence          the greatest of softmax(logits / T)
    T                   argmin of the mean cross-entropy of softmax(logits / T), domains alike
    calibration error   Σ over 15 equal bins of confidence: |hits - confidence|, summed in the bin,
                        over all samples (the expected calibration error)
    coverage            the share of the samples that the model may answer, the most confident; 90 %

One number for all classes changes no answer, and few samples suffice to fit it. With a
temperature of the sources' own samples, a model is calibrated for what it knows; see `fitting`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

__all__ = [
    "BINS",
    "TEMPERATURE_RANGE",
    "balanced_quantiles",
    "calibration_error",
    "calibration_errors",
    "fit_temperature",
    "percentile_ranks",
    "reliability_bins",
    "selective_accuracies",
    "selective_accuracy",
]

BINS = 15
# Where nothing, or everything, is right, the best temperature is infinite, or zero.
TEMPERATURE_RANGE = (0.05, 20.0)
# Percentiles in steps of a half.
QUANTILE_POINTS = 201


def fit_temperature(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> float:
    """The temperature that fits several domains best, each with the same weight.

    Among all samples one more is imagined, of each class alike: where all answers are right, more
    of them are needed to be sure that this will go on.

    >>> sure, y = torch.tensor([[9.0, 0.0]]).repeat(1000, 1), torch.arange(1000) // 900
    >>> round(float((sure / fit_temperature([sure], [y])).softmax(1)[0, 0]), 2)
    0.9
    """
    double = [each.double() for each in logits]
    imagined = 1 / (1 + sum(map(len, labels)))

    def risk(log_temperature: float) -> float:
        scale = float(np.exp(-log_temperature))
        losses = [
            F.cross_entropy(x * scale, y, label_smoothing=imagined)
            for x, y in zip(double, labels, strict=True)
        ]
        return float(torch.stack(losses).mean())

    # Convex in 1 / T, so it has one valley in log T.
    bounds = [float(np.log(end)) for end in TEMPERATURE_RANGE]
    found = minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def calibration_error(confidence: NDArray[Any], hits: NDArray[Any]) -> float:
    """The expected calibration error; a bin includes its upper end."""
    return float(calibration_errors(confidence, hits, _one_portion(hits))[0])


def calibration_errors(
    confidence: NDArray[Any], hits: NDArray[Any], split_index: NDArray[Any]
) -> NDArray[Any]:
    """The same for several portions at once; `portion` is the number of each sample's own."""
    sizes = np.bincount(split_index)
    cells = split_index * BINS + _bins(confidence)
    gaps = np.bincount(cells, hits - confidence, minlength=len(sizes) * BINS)
    return np.abs(gaps).reshape(-1, BINS).sum(axis=1) / sizes


def reliability_bins(
    confidence: NDArray[np.float64], hits: NDArray[np.bool_]
) -> list[tuple[float, float, int]]:
    """Of every bin that has samples: mean confidence, accuracy, and how many there are."""
    bins = _bins(confidence)
    return [
        (float(confidence[own].mean()), float(hits[own].mean()), int(own.sum()))
        for number in range(BINS)
        if (own := bins == number).any()
    ]


def _bins(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def selective_accuracy(confidence: NDArray[Any], hits: NDArray[Any]) -> float:
    """The accuracy on the most confident 90 % of the samples, rounded up.

    Those that are as confident as the last of them count alike, so that their order is nothing.
    """
    return float(selective_accuracies(confidence, hits, _one_portion(hits))[0])


def selective_accuracies(
    confidence: NDArray[Any], hits: NDArray[Any], split_index: NDArray[Any]
) -> NDArray[Any]:
    """The same for several portions at once; `portion` is the number of each sample's own."""
    sizes = np.bincount(split_index)
    kept = -(-9 * sizes // 10)
    order = np.argsort(split_index - confidence.astype(np.float64))
    last = confidence[order][np.cumsum(sizes) - sizes + kept - 1][split_index]
    surer, equal = confidence > last, confidence == last
    places = (kept - np.bincount(split_index, surer)) / np.bincount(split_index, equal)
    right = np.bincount(split_index, hits & surer) + places * np.bincount(split_index, hits & equal)
    return right / kept


def _one_portion(hits: NDArray[Any]) -> NDArray[np.int64]:
    return np.zeros(len(hits), dtype=np.int64)


def balanced_quantiles(domains: Sequence[NDArray[np.float64]]) -> tuple[float, ...]:
    """The quantiles of values of several domains, each with the same weight, from least to most."""
    values = np.concatenate(domains)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in domains])
    order = np.argsort(values, kind="stable")
    # A sample stands for the middle of its share.
    heights = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    found = np.interp(np.linspace(0, 1, QUANTILE_POINTS), heights, values[order])
    return tuple(found.tolist())


def percentile_ranks(
    values: NDArray[np.float64], reference_quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Where values lie among quantiles that are known, from 0 to 100.

    >>> percentile_ranks(np.array([-1.0, 5.0, 99.0]), range(11)).tolist()
    [0.0, 50.0, 100.0]
    """
    ends = np.asarray(reference_quantiles, dtype=np.float64)
    heights = np.linspace(0, 100, len(ends))
    # Where quantiles are alike, the value lies in the middle of them.
    low, high = (np.searchsorted(ends, values, side=side) for side in ("left", "right"))
    between = np.interp(values, ends, heights)
    flat = (high - low) > 1
    return np.where(
        flat, (heights[np.minimum(low, len(ends) - 1)] + heights[high - 1]) / 2, between
    )
