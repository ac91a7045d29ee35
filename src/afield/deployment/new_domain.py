"""What is estimated about samples without labels: accuracy, what changed, and what is strange.

There is no estimate with fewer than three held-out domains, or for samples that are farther away
than all held-out domains.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from afield.deployment.changes import Separation, measure_separation, strange_classes
from afield.deployment.class_shares import ClassShares, estimate_class_shares
from afield.deployment.estimator import MIN_DOMAINS, EstimatorResult, measure_estimators
from afield.deployment.held_out import DomainOutputs
from afield.deployment.input_statistics import (
    FILES,
    SAMPLES,
    InputChange,
    compare,
    measure_samples,
)
from afield.deployment.labelling import Labels, LabelSample, choose_samples, label_widths
from afield.errors import DataError, SpecError
from afield.networks.ensemble import capture_votes

if TYPE_CHECKING:
    from afield.deployment.model import Model

# Too far away is a domain whose mean distance is so many times that of the farthest held-out one.
TOO_FAR = 1.1


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
    class_shares
        The estimated shares of the true classes, with a check of the estimate.
    separation
        How well these samples are told from those of held-out domains.
    strangest, strange_classes
        The strangest samples with their ranks of strangeness, from 0 to 100 among held-out samples;
        and the predicted classes with the number of their samples and their mean rank.
    inputs
        Sizes, levels, lengths and missing values beside those of the training domains.
    labels
        What 20, 50 and 200 labels would buy.
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
    class_shares: ClassShares | None
    separation: Separation | None
    strangest: tuple[tuple[str, float], ...]
    strange_classes: tuple[tuple[str, int, float], ...]
    inputs: tuple[InputChange, ...]
    labels: tuple[Labels, ...]
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
            f"{100 * self.high:.0f} % (80 % interval): on your {len(self.held_out)} held-out "
            f"domains this estimate ({best.name}) was off by {100 * best.mean_error:.1f} points on "
            f"average and {100 * best.worst_error:.1f} at worst"
        )

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON has them; without the rows of samples."""
        values = asdict(self)
        del values["rows"]
        return {**values, "headline": self.headline}

    def choose_labels(self, count: int, how: str = "random") -> LabelSample:
        """Choose samples to label; see `afield.deployment.labelling`."""
        return choose_samples(self.rows["confidence"].tolist(), count, how)


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
    names, new, unread, statistics = read_outputs(model, inputs, text=text)
    enough = len(held_out) >= MIN_DOMAINS
    results = measure_estimators(held_out, new) if enough else []
    low, high = results[0].interval(len(new)) if results else (0.0, 1.0)
    rows = _rows(names, new, model)
    refusal = _refusal(held_out, new)
    known = results[0].estimate if results and not refusal else None
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
        class_shares=estimate_class_shares(held_out, new) if enough else None,
        separation=measure_separation(held_out, new),
        strangest=_strangest(rows),
        strange_classes=strange_classes(rows["class"].tolist(), rows["strangeness"].tolist()),
        inputs=compare(statistics, model.about.statistics),
        labels=tuple(label_widths(rows["confidence"].tolist(), known)),
        unread=tuple(unread),
        refusal=refusal,
        rows=rows,
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


def _strangest(rows: Any, count: int = 10) -> tuple[tuple[str, float], ...]:
    order = rows["strangeness"].sort_values(ascending=False, kind="stable").index[:count]
    return tuple((rows["file"][row], float(rows["strangeness"][row])) for row in order)


def _rows(names: Sequence[str], new: DomainOutputs, model: "Model") -> Any:
    import pandas as pd

    best = new.probabilities(model.temperature).max(dim=1)
    rows = {
        "file": list(names),
        "class": [model.classes[index] for index in best.indices.tolist()],
        "confidence": best.values.tolist(),
        # Older folders have no scores but the distance.
        "strangeness": new.scores.get("strangeness", new.scores.get("distance", 1 - best.values)),
    }
    return pd.DataFrame(rows | {name: each.tolist() for name, each in new.scores.items()})


def read_outputs(
    model: "Model", inputs: Any, *, text: str = "", batch: int = 64
) -> tuple[list[str], DomainOutputs, list[tuple[str, str]], dict[str, float]]:
    """The names and outputs of samples, why others cannot be read, and what the inputs are like."""
    about, names, unread = model.about, list[str](), list[tuple[str, str]]()
    kept = list[Tensor]()
    logits, scores = list[Tensor](), dict[str, list[Tensor]]()
    given = Path(inputs) if isinstance(inputs, str) and Path(inputs).exists() else inputs
    with capture_votes(model.module) as votes:
        for samples in about.inputs.modality.batches(about.inputs, given, batch, text):
            pairs = list(zip(samples.names, samples.errors, strict=True))
            unread += [(name, error) for name, error in pairs if error]
            names += [name for name, error in pairs if not error]
            if samples.x is not None:
                kept += [samples.x] if sum(map(len, kept)) < SAMPLES else []
                of_batch, features = model.logits_and_features(samples.x)
                logits.append(of_batch)
                for name, values in model.scores_of(features, of_batch).items():
                    scores.setdefault(name, []).append(values)
    if not names:
        raise DataError(f"no sample could be read; {about.name} takes {about.inputs.summary}")
    whole = {name: torch.cat(values) for name, values in scores.items()}
    agreement = votes.agreement()
    if agreement is not None and len(agreement) == len(names):
        whole["agreement"] = agreement
    new = DomainOutputs("new", torch.cat(logits), torch.empty(0, dtype=torch.long), whole)
    if not new.logits.isfinite().all():
        raise DataError("the outputs for some samples are not finite; their values are too large")
    stored, files = torch.cat(kept)[:SAMPLES], [Path(name) for name in names[:FILES]]
    present = [file for file in files if file.is_file()]
    return names, new, unread, measure_samples(about.inputs, stored, present)
