"""Scores of a model on splits of domains, and what a checkpoint keeps."""

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
from afield.networks.inference import BatchPredictor, compute_outputs
from afield.seeds import derive_seed
from afield.training.calibration import calibration_errors, selective_accuracies

__all__ = ["PARTS", "Checkpoint", "Evaluator", "Score", "Scores", "combine_scores"]

PARTS = ("main", "probe", "sample", "known")


@dataclass(frozen=True)
class Score:
    """Accuracy, accuracy averaged over classes, mean cross-entropy, and number of samples.

    Two more scores tell how far the confidence (the greatest probability) can be trusted:

        calibration_error   Σ over 15 equal bins of confidence: |hits - confidence|, summed in the
                            bin, over all samples; the expected calibration error
        accuracy_at_90      accuracy on the 90 % most confident samples; where samples tie at the
                            limit, a share of each counts

    Both are None for splits that are not reported, and in older records.
    """

    accuracy: float
    balanced_accuracy: float
    loss: float
    size: int
    calibration_error: float | None = None
    accuracy_at_90: float | None = None


@dataclass(frozen=True)
class Scores:
    """Scores on the splits of one domain that were evaluated.

    Attributes
    ----------
    main, probe
        Training and validation split of a source; test and validation split of an unseen domain.
    sample
        Bounded sample of an unseen domain's test split, for curves only: no selection rule and no
        table uses it.
    known
        Validation split of a source with the domain label given, for models that can use it.
    """

    main: Score | None = None
    probe: Score | None = None
    sample: Score | None = None
    known: Score | None = None


@dataclass(frozen=True)
class Checkpoint:
    """Scores of a model after `step` steps, and the means of the logs since the last checkpoint.

    The model is what would be deployed now, unless `deployed` is false. Then the average deploys
    only at the end of training, the scores are those of the trained model, and no selection rule
    may pick this checkpoint.
    """

    step: int
    scores: Mapping[str, Scores]
    logs: Mapping[str, float]
    deployed: bool = True

    def score(self, domain: str, part: str) -> Score | None:
        """Score on one split of one domain; None if it was not evaluated."""
        scores = self.scores.get(domain)
        return getattr(scores, part) if scores else None


class Evaluator:
    """Evaluates models on a fixed set of splits.

    A `BatchPredictor` predicts from batches of unlabelled samples: it gets each split by itself, in
    an order drawn from the trial, and is reset before each.

    Parameters
    ----------
    splits
        Data by (domain, part).
    prepare
        Turns stored samples into inputs of the network.
    indices
        Samples of each split to use; by default all.
    device
        Where to compute.
    confidence
        False skips the calibration scores, which need a sort.
    trial
        Determines the order of the samples for a `BatchPredictor`.
    """

    def __init__(
        self,
        splits: Mapping[tuple[str, str], Domain],
        prepare: Prepare = identity,
        *,
        indices: Mapping[tuple[str, str], Tensor] | None = None,
        device: torch.device | str = "cpu",
        confidence: bool = True,
        trial: int = 0,
    ) -> None:
        self.keys = list(splits)
        self.prepare = prepare
        self.trial = trial
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
        """Compute the model's scores, in evaluation mode and without gradients."""
        if not self.keys:
            return {}
        logits = self._logits(model)
        by_domain: dict[str, dict[str, Score]] = {}
        for (domain, part), score in zip(self.keys, self._scores(logits), strict=True):
            by_domain.setdefault(domain, {})[part] = score
        labeled = [key for key in self.keys if key[0] in _domains(model) and key[1] == "probe"]
        if labeled:
            known = self._scores(self._logits_given_domain(model, logits))
            for domain, part in labeled:
                by_domain[domain]["known"] = known[self.keys.index((domain, part))]
        return {domain: Scores(**scores) for domain, scores in by_domain.items()}

    def _logits(self, model: nn.Module) -> Tensor:
        """Logits of all splits, in the order of the samples."""
        if not isinstance(model, BatchPredictor):
            return compute_outputs(model, self.x, self.prepare)
        orders = [self._drawn_order(number) for number in range(len(self.keys))]
        pieces = [compute_outputs(model, self.x, self.prepare, indices=rows) for rows in orders]
        logits = torch.cat(pieces)
        return logits[torch.cat(orders).argsort().to(logits.device)]

    def _drawn_order(self, number: int) -> Tensor:
        """Samples of one split, in an order drawn from the trial."""
        rows = torch.from_numpy(np.flatnonzero(self.split_index == number))
        seed = derive_seed("order of samples", self.trial, *self.keys[number])
        return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]

    def _logits_given_domain(self, model: nn.Module, logits: Tensor) -> Tensor:
        """The logits, with those of the sources' validation splits given the domain label."""
        updated = logits.clone()
        for number, name in enumerate(_domains(model)):
            if (name, "probe") in self.keys:
                in_split = self.split_index == self.keys.index((name, "probe"))
                rows = torch.from_numpy(np.flatnonzero(in_split))
                updated[rows.to(updated.device)] = compute_outputs(
                    model, self.x, self.prepare, indices=rows, domain=number
                )
        return updated

    def _scores(self, logits: Tensor) -> list[Score]:
        """One score per split, computed for all splits at once."""
        losses = F.cross_entropy(logits, self.y, reduction="none").cpu().numpy()
        hits = (logits.argmax(dim=1) == self.y).cpu().numpy()
        classes = int(self.labels.max()) + 1
        cell = self.split_index * classes + self.labels

        def per_class(weights: NDArray[Any] | None = None) -> NDArray[Any]:
            flat = np.bincount(cell, weights, minlength=len(self.keys) * classes)
            return flat.reshape(len(self.keys), classes)

        counts, correct = per_class(), per_class(hits)
        sizes = counts.sum(axis=1)
        recall = np.divide(correct, counts, out=np.full(correct.shape, np.nan), where=counts > 0)
        columns = [
            correct.sum(axis=1) / sizes,
            np.nanmean(recall, axis=1),
            np.bincount(self.split_index, losses) / sizes,
            sizes,
        ]
        if self.confidence:
            confidence = logits.softmax(dim=1).amax(dim=1).nan_to_num().cpu().numpy()
            columns += [
                calibration_errors(confidence, hits, self.split_index),
                selective_accuracies(confidence, hits, self.split_index),
            ]
        return [Score(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def _domains(model: nn.Module) -> tuple[str, ...]:
    """Source domains whose labels a model accepts, in the order of the labels; mostly none."""
    return tuple(getattr(model, "domains", ()))


def combine_scores(
    first: Mapping[str, Scores], second: Mapping[str, Scores], order: Sequence[str]
) -> dict[str, Scores]:
    """Join two sets of scores, domains in the given order; the second takes precedence."""
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
