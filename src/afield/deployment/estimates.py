"""What held-out domains say about a recipe: its accuracy, its calibration and its distances.

Every number comes from a domain and a model that was not trained on it: accuracy from the domain's
main part, as in every table; temperature, confidences and distances from its probe part. All
domains have the same weight.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.deployment.distances import MAHALANOBIS
from afield.deployment.held_out import DomainOutputs
from afield.deployment.model_folder import Calibration, Estimate
from afield.deployment.prediction_sets import conformity
from afield.deployment.strangeness import NEIGHBORS, Strangeness
from afield.errors import DataError
from afield.networks.ensemble import capture_votes
from afield.networks.features import capture_features
from afield.networks.inference import compute_outputs
from afield.progress import track
from afield.runs.finished import FinishedRun, reopen
from afield.runs.record import Record
from afield.runs.run_files import read_run_inputs
from afield.runs.selection import selection_value, source_accuracy
from afield.seeds import derive_seed
from afield.training.calibration import balanced_quantiles, calibration_error, fit_temperature
from afield.training.scores import Checkpoint

# The number of samples, over all sources, from which distances are fitted.
DISTANCE_SAMPLES = 5000


class ModelOutputs(NamedTuple):
    """The features and logits of samples, with their true classes."""

    features: Tensor
    logits: Tensor
    y: Tensor


def estimate_accuracy(records: Sequence[Record]) -> Estimate:
    """Estimate the accuracy on unseen domains from held-out records."""
    trials: dict[int, dict[str, float]] = {}
    in_domain = []
    for record in records:
        trials.setdefault(record.run.trial, {}).update(unseen_accuracies(record))
        in_domain.append(source_accuracy(_deployed_checkpoint(record), record.run.sources))
    means = [_mean(accuracies.values()) for accuracies in trials.values()]
    values: dict[str, list[float]] = {}
    for accuracies in trials.values():
        for name, value in accuracies.items():
            values.setdefault(name, []).append(value)
    domains = {name: _mean(accuracies) for name, accuracies in values.items()}
    several = len(means) > 1
    return Estimate(
        accuracy=_mean(means),
        worst=_mean(min(accuracies.values()) for accuracies in trials.values()),
        in_domain=_mean(in_domain),
        domains=domains,
        trials=len(trials),
        stderr=float(np.std(means, ddof=1)) / math.sqrt(len(means)) if several else None,
        spread=float(np.std(list(domains.values()), ddof=1)) if len(domains) > 1 else None,
    )


def unseen_accuracies(record: Record) -> dict[str, float]:
    """The accuracy of a run's deployed weights on each of its test domains."""
    accuracies = {}
    for name in record.tests:
        score = _deployed_checkpoint(record).score(name, "main")
        if score is None:
            raise DataError(
                f"{record.run.key}: {name} was not evaluated; remove the run's folder and start "
                "again"
            )
        accuracies[name] = score.accuracy
    return accuracies


def _deployed_checkpoint(record: Record) -> Checkpoint:
    return max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def calibrate(
    folders: Sequence[Path],
    *,
    classes: Sequence[str] = (),
    dataset: str = "",
    root: Path | None = None,
    device: str | None = None,
    keep_samples: bool = True,
) -> tuple[Calibration, list[DomainOutputs]]:
    """Fit the temperature, and the quantiles of confidence and distance, on unseen domains.

    `folders` are the folders of held-out runs; `dataset` is as in `reopen`. The outputs for all
    samples of each domain, by the first model that left it out, are returned as well; `classes`
    are those of the model that is deployed, by default all. Without `keep_samples`, no distance is
    chosen that needs features of training samples.
    """
    tests: list[_HeldOutTest] = []
    held_out: dict[str, DomainOutputs] = {}
    for folder in track(folders, "calibrating", len(folders)):
        finished = reopen(folder, dataset=dataset, root=root, device=device)
        fitted = fit_strangeness(finished)
        known = _source_distances(finished, fitted)
        for name in finished.record.tests:
            probe = finished.probes[name]
            outputs = _model_outputs(finished.model, probe, torch.arange(len(probe)))
            tests.append(_HeldOutTest(name, outputs, fitted, known))
            if name not in held_out:
                known_classes = read_run_inputs(folder)["classes"]
                whole = _domain_outputs(finished, name, fitted)
                whole = whole.with_classes(known_classes, classes or known_classes)
                held_out[name] = whole.shuffled(derive_seed("held-out", len(held_out)))
    logits, labels = [test.outputs.logits for test in tests], [test.outputs.y for test in tests]
    temperature = fit_temperature(logits, labels)
    names = [test.name for test in tests]
    correct = [test.correct for test in tests]
    calibrated = [_confidences(x, temperature) for x in logits]
    uncalibrated = [_confidences(x, 1.0) for x in logits]
    aurocs = {
        kind: _error_auroc(names, [test.scores[kind] for test in tests], correct)
        for kind in tests[0].scores
        if keep_samples or kind != NEIGHBORS
    }
    score = _best_score(aurocs)
    distances = [test.scores[MAHALANOBIS] for test in tests]
    separations: dict[str, list[float]] = {}
    for test in tests:
        separations.setdefault(test.name, []).append(
            separation(test.known, test.scores[MAHALANOBIS])
        )
    calibration = Calibration(
        temperature=temperature,
        confidences=balanced_quantiles(calibrated),
        distances=balanced_quantiles(distances),
        samples=sum(map(len, labels)),
        error_before=_mean(map(calibration_error, uncalibrated, correct)),
        error_after=_mean(map(calibration_error, calibrated, correct)),
        separations={name: _mean(values) for name, values in separations.items()},
        confidence_auroc=_error_auroc(names, [-values for values in calibrated], correct),
        distance_auroc=aurocs[MAHALANOBIS],
        score=score,
        strangeness=balanced_quantiles([test.scores[score] for test in tests]),
        score_auroc={kind: _mean(values.values()) for kind, values in aurocs.items() if values},
        conformity={
            name: conformity(each.probabilities(temperature), each.labels)
            for name, each in held_out.items()
        },
    )
    return calibration, list(held_out.values())


class _HeldOutTest:
    """The outputs of a model for the probe split of a domain that it left out, and its scores.

    `known` are the distances of the sources' validation splits.
    """

    def __init__(
        self,
        name: str,
        outputs: ModelOutputs,
        fitted: Strangeness,
        known: NDArray[np.float64],
    ) -> None:
        self.name, self.outputs, self.known = name, outputs, known
        self.correct = (outputs.logits.argmax(dim=1) == outputs.y).numpy()
        self.scores = _scores(fitted, outputs)


def _scores(fitted: Strangeness, outputs: ModelOutputs) -> dict[str, NDArray[np.float64]]:
    scores = fitted.all_scores(outputs.features, outputs.logits)
    return {kind: values.double().numpy() for kind, values in scores.items()}


def _best_score(aurocs: Mapping[str, Mapping[str, float]]) -> str:
    """The score that warns best of wrong predictions; the first one if nothing tells them apart."""
    means = {kind: _mean(values.values()) for kind, values in aurocs.items() if values}
    return max(means, key=lambda kind: means[kind]) if means else MAHALANOBIS


def _domain_outputs(finished: FinishedRun, name: str, fitted: Strangeness) -> DomainOutputs:
    """The outputs of a held-out model for all samples of a domain."""
    parts = [finished.domains[name], finished.probes[name]]
    with capture_votes(finished.model) as votes:
        outputs = [_model_outputs(finished.model, part, torch.arange(len(part))) for part in parts]
    features = torch.cat([each.features for each in outputs])
    scores = {"distance": fitted.classes(features)}
    agreement = votes.agreement()
    # A network that predicts from batches may pass them several times.
    if agreement is not None and len(agreement) == len(features):
        scores["agreement"] = agreement
    return DomainOutputs(
        name,
        torch.cat([each.logits for each in outputs]),
        torch.cat([each.y for each in outputs]),
        scores,
    )


def _error_auroc(
    names: Sequence[str],
    warnings: Sequence[NDArray[np.float64]],
    correct: Sequence[NDArray[np.bool_]],
) -> dict[str, float]:
    """The AUROC with which a warning tells wrong predictions from right ones, by domain."""
    values: dict[str, list[float]] = {}
    for name, warning, right in zip(names, warnings, correct, strict=True):
        if 0 < right.sum() < len(right):
            values.setdefault(name, []).append(separation(warning[right], warning[~right]))
    return {name: _mean(of_domain) for name, of_domain in values.items()}


def separation(known: NDArray[np.float64], unseen: NDArray[np.float64]) -> float:
    """The AUROC of distances: how often an unseen sample is farther away than a known one.

    Any other number for each of two groups of samples will do.

    >>> separation(np.array([1.0, 2.0]), np.array([1.5, 3.0]))
    0.75
    """
    ranks = stats.rankdata(np.concatenate([known, unseen]))[len(known) :]
    above = ranks.sum() - len(unseen) * (len(unseen) + 1) / 2
    return float(above / (len(known) * len(unseen)))


def _source_distances(finished: FinishedRun, fitted: Strangeness) -> NDArray[np.float64]:
    """The distances of the sources' validation splits, which the distance was not fitted on."""
    probes = [finished.probes[name] for name in finished.record.run.sources]
    outputs = [_model_outputs(finished.model, probe, torch.arange(len(probe))) for probe in probes]
    return np.concatenate([fitted.classes(each.features).double().numpy() for each in outputs])


def fit_strangeness(finished: FinishedRun) -> Strangeness:
    """Fit the scores of strangeness from the sources of a run, in the features of its model."""
    sources = finished.record.run.sources
    count = max(1, DISTANCE_SAMPLES // len(sources))
    outputs = [
        _model_outputs(finished.model, finished.domains[name], finished.sample_indices(name, count))
        for name in sources
    ]
    return Strangeness.fit(
        torch.cat([output.features for output in outputs]),
        torch.cat([output.y for output in outputs]),
    )


def _model_outputs(model: nn.Module, samples: Samples, indices: Tensor) -> ModelOutputs:
    with capture_features(model) as captured:
        logits = compute_outputs(model, samples.x, samples.prepare, indices=indices).cpu()
    return ModelOutputs(torch.cat(captured.features).float(), logits, samples.y.cpu()[indices])


def _confidences(logits: Tensor, temperature: float) -> NDArray[np.float64]:
    return (logits.double() / temperature).softmax(dim=1).amax(dim=1).numpy()
