"""What domains that were held out say of a recipe: how well it does, how surely, and how far off.

Every number is of a domain and a model that did not see it: accuracy on the domain's main part, as
in every table; temperature, confidences and distances on its probe part. Domains weigh the same.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.deployment.distances import Distances
from afield.deployment.model_folder import Calibration, Estimate
from afield.errors import DataError
from afield.experiments.finished import FinishedRun, reopen
from afield.experiments.record import Record
from afield.experiments.selection import selection_value, source_accuracy
from afield.networks.features import capture_features
from afield.networks.inference import compute_outputs
from afield.progress import track
from afield.training.calibration import balanced_quantiles, calibration_error, fit_temperature
from afield.training.evaluation import Checkpoint

__all__ = ["calibrate", "estimate_accuracy", "fit_distances", "unseen_accuracies"]

# Samples of all sources together that say where these lie.
DISTANCE_SAMPLES = 5000


class ModelOutputs(NamedTuple):
    """What one model makes of samples: features, logits, and their true classes."""

    features: Tensor
    logits: Tensor
    y: Tensor


def estimate_accuracy(records: Sequence[Record], *, recipes: int = 1) -> Estimate:
    """The accuracy on unseen domains that these records tell of, all of one recipe."""
    trials: dict[int, dict[str, float]] = {}
    home = []
    for record in records:
        trials.setdefault(record.run.trial, {}).update(unseen_accuracies(record))
        home.append(source_accuracy(_picked(record), record.run.sources))
    means = [_mean(own.values()) for own in trials.values()]
    domains: dict[str, list[float]] = {}
    for own in trials.values():
        for name, value in own.items():
            domains.setdefault(name, []).append(value)
    each = {name: _mean(values) for name, values in domains.items()}
    several = len(means) > 1
    return Estimate(
        accuracy=_mean(means),
        worst=_mean(min(own.values()) for own in trials.values()),
        in_domain=_mean(home),
        domains=each,
        trials=len(trials),
        stderr=float(np.std(means, ddof=1)) / math.sqrt(len(means)) if several else None,
        spread=float(np.std(list(each.values()), ddof=1)) if len(each) > 1 else None,
        recipes=recipes,
    )


def unseen_accuracies(record: Record) -> dict[str, float]:
    """How the deployed weights of a run do on the domains that it tests on."""
    found = {}
    for name in record.tests:
        score = _picked(record).score(name, "main")
        if score is None:
            raise DataError(
                f"{record.run.key}: {name} was not read; remove its folder, start again"
            )
        found[name] = score.accuracy
    return found


def _picked(record: Record) -> Checkpoint:
    return max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def calibrate(
    folders: Sequence[Path],
    *,
    dataset: str = "",
    root: Path | None = None,
    device: str | None = None,
) -> Calibration:
    """The temperature and the quantiles of the runs in these folders, on what they did not see.

    `dataset` is as in `reopen`.
    """
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    far: list[NDArray[np.float64]] = []
    for folder in track(folders, "calibrating", len(folders)):
        subject = reopen(folder, dataset=dataset, root=root, device=device)
        distances = fit_distances(subject)
        for name in subject.record.tests:
            probe = subject.probes[name]
            own = _read(subject.model, probe, torch.arange(len(probe)))
            logits.append(own.logits)
            labels.append(own.y)
            far.append(distances(own.features).double().numpy())
    temperature = fit_temperature(logits, labels)
    hits = [(x.argmax(dim=1) == y).numpy() for x, y in zip(logits, labels, strict=True)]
    sure = [_confidences(x, temperature) for x in logits]
    plain = [_confidences(x, 1.0) for x in logits]
    return Calibration(
        temperature=temperature,
        confidences=balanced_quantiles(sure),
        distances=balanced_quantiles(far),
        samples=sum(map(len, labels)),
        error_before=_mean(map(calibration_error, plain, hits)),
        error_after=_mean(map(calibration_error, sure, hits)),
    )


def fit_distances(finished: FinishedRun) -> Distances:
    """How far samples lie from the sources of a run, in the features of its model."""
    sources = finished.record.run.sources
    share = max(1, DISTANCE_SAMPLES // len(sources))
    found = [
        _read(finished.model, finished.domains[name], finished.sample_indices(name, share))
        for name in sources
    ]
    return Distances.fitted(
        torch.cat([each.features for each in found]), torch.cat([each.y for each in found])
    )


def _read(model: nn.Module, samples: Samples, chosen: Tensor) -> ModelOutputs:
    with capture_features(model) as noted:
        logits = compute_outputs(model, samples.x, samples.prepare, indices=chosen).cpu()
    return ModelOutputs(torch.cat(noted.features).float(), logits, samples.y.cpu()[chosen])


def _confidences(logits: Tensor, temperature: float) -> NDArray[np.float64]:
    return (logits.double() / temperature).softmax(dim=1).amax(dim=1).numpy()
