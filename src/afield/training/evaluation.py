"""How a model does on parts of domains, and what a checkpoint keeps of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.data.domains import Domain
from afield.data.samples import Prepare, Rows, identity
from afield.networks.inference import (
    compute_outputs,
)
from afield.training.calibration import calibration_errors, selective_accuracies

__all__ = [
    "PARTS",
    "Checkpoint",
    "Evaluator",
    "Score",
    "Scores",
    "combine_scores",
]

PARTS = ("main", "probe", "sample", "known")


@dataclass(frozen=True)
class Score:
    """Accuracy, accuracy averaged over classes, mean cross-entropy, and on how many samples.

    And, of what is reported, how far the confidence (the greatest probability) can be trusted:

        calibration_error   Σ over 15 equal bins of confidence: |hits - confidence|, summed in the
                            bin, over all samples; the expected calibration error
        accuracy_at_90      accuracy on the 90 % most confident; of equals a share of each counts

    Both are None where nobody reads them, and in records that are older.
    """

    accuracy: float
    balanced_accuracy: float
    loss: float
    size: int
    calibration_error: float | None = None
    accuracy_at_90: float | None = None


@dataclass(frozen=True)
class Scores:
    """Scores on the parts of one domain that were read.

    `sample` is a bounded sample of an unseen domain's main part, for curves only: no rule and no
    table reads it. `known` is a source's probe part read by a model that is told which domain it
    is, where a model can use that.
    """

    main: Score | None = None
    probe: Score | None = None
    sample: Score | None = None
    known: Score | None = None


@dataclass(frozen=True)
class Checkpoint:
    """How a model did after so many steps, and the mean of the logs since the last checkpoint.

    It is what would be deployed now, unless `deployed` is false: then an average that makes its own
    choice is still at it, this is the model as trained so far, and no rule may pick it.
    """

    step: int
    scores: Mapping[str, Scores]
    logs: Mapping[str, float]
    deployed: bool = True

    def score(self, domain: str, part: str) -> Score | None:
        """The score on one part of one domain, if it was read."""
        found = self.scores.get(domain)
        return getattr(found, part) if found else None


class Evaluator:
    """A fixed set of portions (domain, part), taken by one model after the other.

    Whether their `confidence` is looked at as well is a matter of time: it takes sorting.
    """

    def __init__(
        self,
        splits: Mapping[tuple[str, str], Domain],
        prepare: Prepare = identity,
        *,
        indices: Mapping[tuple[str, str], Tensor] | None = None,
        device: torch.device | str = "cpu",
        confidence: bool = True,
    ) -> None:
        self.keys = list(splits)
        self.prepare = prepare
        self.confidence = confidence
        if splits:
            rows = [
                indices[key] if indices else torch.arange(len(domain.y))
                for key, domain in splits.items()
            ]
            domains = list(splits.values())
            self.x = Rows([domain.x for domain in domains], rows, device=device)
            y = torch.cat([d.y[index] for d, index in zip(domains, rows, strict=True)])
            self.split_index = np.repeat(np.arange(len(rows)), [len(index) for index in rows])
            self.labels, self.y = y.numpy(), y.to(device)

    def evaluate(self, model: nn.Module) -> dict[str, Scores]:
        """The model's scores, with the model in evaluation mode and no gradient kept."""
        if not self.keys:
            return {}
        logits = compute_outputs(model, self.x, self.prepare)
        found: dict[str, dict[str, Score]] = {}
        for (domain, part), score in zip(self.keys, self._scores(logits), strict=True):
            found.setdefault(domain, {})[part] = score
        told = [key for key in self.keys if key[0] in _domains(model) and key[1] == "probe"]
        if told:
            known = self._scores(self._told(model, logits))
            for domain, part in told:
                found[domain]["known"] = known[self.keys.index((domain, part))]
        return {domain: Scores(**scores) for domain, scores in found.items()}

    def _told(self, model: nn.Module, logits: Tensor) -> Tensor:
        """The logits, but those of the sources' probe parts by a model that is told the domain."""
        found = logits.clone()
        for number, name in enumerate(_domains(model)):
            if (name, "probe") in self.keys:
                portion = self.split_index == self.keys.index((name, "probe"))
                chosen = torch.from_numpy(np.flatnonzero(portion))
                own = compute_outputs(model, self.x, self.prepare, indices=chosen, domain=number)
                found[chosen.to(found.device)] = own
        return found

    def _scores(self, logits: Tensor) -> list[Score]:
        """One score a portion, counted for all portions at once."""
        losses = F.cross_entropy(logits, self.y, reduction="none").cpu().numpy()
        hits = (logits.argmax(dim=1) == self.y).cpu().numpy()
        classes = int(self.labels.max()) + 1
        cell = self.split_index * classes + self.labels

        def per_class(weights: NDArray[Any] | None = None) -> NDArray[Any]:
            counts = np.bincount(cell, weights, minlength=len(self.keys) * classes)
            return counts.reshape(len(self.keys), classes)

        seen, right = per_class(), per_class(hits)
        sizes = seen.sum(axis=1)
        recall = np.divide(right, seen, out=np.full(right.shape, np.nan), where=seen > 0)
        columns = [
            right.sum(axis=1) / sizes,
            np.nanmean(recall, axis=1),
            np.bincount(self.split_index, losses) / sizes,
            sizes,
        ]
        if self.confidence:
            surest = logits.softmax(dim=1).amax(dim=1).nan_to_num().cpu().numpy()
            columns += [
                calibration_errors(surest, hits, self.split_index),
                selective_accuracies(surest, hits, self.split_index),
            ]
        return [Score(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def _domains(model: nn.Module) -> tuple[str, ...]:
    """The source domains that a model can be told, by their numbers; mostly none."""
    return tuple(getattr(model, "domains", ()))


def combine_scores(
    first: Mapping[str, Scores], second: Mapping[str, Scores], order: Sequence[str]
) -> dict[str, Scores]:
    """What was read on either occasion, domains in the given order."""
    return {
        domain: Scores(
            **{
                part: getattr(second.get(domain), part, None)
                or getattr(first.get(domain), part, None)
                for part in PARTS
            }
        )
        for domain in order
        if domain in first or domain in second
    }
