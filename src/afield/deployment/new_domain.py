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

from afield.deployment.estimator import MIN_DOMAINS, EstimatorResult, measure_estimators
from afield.deployment.held_out import DomainOutputs
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
