"""Scores of a model on splits of domains."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from afield.data.domains import UNKNOWN, Domain
from afield.data.groups import GROUP_SEPARATOR
from afield.data.samples import Prepare, Rows, identity
from afield.networks.inference import BatchPredictor, compute_outputs
from afield.seeds import derive_seed
from afield.training.calibration import calibration_errors, selective_accuracies
from afield.training.scores import (
    PARTS,
    Checkpoint,
    ClassCounts,
    Score,
    Scores,
    class_metrics,
    group_metrics,
    roc_auc,
)

# Names of the groups of a split, and the group of every sample as an index of the names.
Groups = tuple[NDArray[Any], NDArray[np.intp]]


@dataclass(frozen=True)
class Outputs:
    """What a model made of the samples of several splits, one entry per sample.

    `splits` is the index of the split, and `classes` the number of classes. A label below 0 means
    that the model has no output for the class. `confidence` is None if
    the calibration is not needed. `margins` are differences of the two logits, for two classes.
    """

    splits: NDArray[Any]
    labels: NDArray[Any]
    predicted: NDArray[Any]
    classes: int
    losses: NDArray[Any]
    confidence: NDArray[Any] | None = None
    margins: NDArray[Any] | None = None

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether the prediction is right."""
        return self.labels == self.predicted

    def restricted(self, kept: NDArray[np.bool_]) -> "Outputs":
        """The same for some of the samples."""
        return replace(
            self,
            splits=self.splits[kept],
            labels=self.labels[kept],
            predicted=self.predicted[kept],
            losses=self.losses[kept],
            confidence=None if self.confidence is None else self.confidence[kept],
            margins=None if self.margins is None else self.margins[kept],
        )


def compute_scores(
    outputs: Outputs, groups: Sequence[Groups | None], *, plain: Sequence[bool]
) -> list[Score]:
    """One score per split, computed for all splits at once; a `plain` one has no details.

    Every split needs samples of a class that the model has an output for.
    """
    known = outputs.labels >= 0
    if known.all():
        return _known_scores(outputs, groups, plain)
    of_known = [
        None if of_split is None else _restricted(of_split, known[outputs.splits == i])
        for i, of_split in enumerate(groups)
    ]
    scores = _known_scores(outputs.restricted(known), of_known, plain)
    unknown = outputs.restricted(~known)
    return [_with_unseen(score, unknown, i) for i, score in enumerate(scores)]


def _with_unseen(score: Score, unknown: Outputs, split: int) -> Score:
    """The score with the samples whose class the model has no output for."""
    inside = unknown.splits == split
    if not inside.any():
        return score
    confidence = None if unknown.confidence is None else float(unknown.confidence[inside].mean())
    return replace(score, unseen_classes=int(inside.sum()), unseen_confidence=confidence)


def _restricted(groups: Groups, kept: NDArray[np.bool_]) -> Groups:
    names, index = groups
    used, inverse = np.unique(index[kept], return_inverse=True)
    return names[used], inverse


def _known_scores(
    outputs: Outputs, groups: Sequence[Groups | None], plain: Sequence[bool]
) -> list[Score]:
    splits, hits, sizes = outputs.splits, outputs.hits, np.bincount(outputs.splits)
    counts = ClassCounts(len(sizes), outputs.classes, splits, outputs.labels, outputs.predicted)
    by_class = class_metrics(counts.per_class)
    columns = [
        np.bincount(splits, hits) / sizes,
        by_class.pop("balanced_accuracy"),
        np.bincount(splits, outputs.losses) / sizes,
        sizes,
    ]
    if outputs.confidence is not None:
        columns.append(calibration_errors(outputs.confidence, hits, splits))
        columns.append(selective_accuracies(outputs.confidence, hits, splits))
    scores = [Score(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    for i in np.flatnonzero(~np.asarray(plain)).tolist():
        metrics = {name: float(values[i]) for name, values in by_class.items()}
        metrics |= _roc_auc(outputs, i)
        scores[i] = replace(scores[i], metrics=metrics, confusion=counts.confusion(i))
        if (of_split := groups[i]) is not None:
            scores[i] = _with_groups(scores[i], of_split, hits[splits == i])
    return scores


def _roc_auc(outputs: Outputs, split: int) -> dict[str, float]:
    """The AUROC of a split that has samples of both of two classes; otherwise empty."""
    if outputs.margins is None:
        return {}
    inside = outputs.splits == split
    value = roc_auc(outputs.margins[inside], outputs.labels[inside] == 1)
    return {} if value is None else {"auroc": value}


def _with_groups(score: Score, groups: Groups, hits: NDArray[np.bool_]) -> Score:
    names, index = groups
    by_group: dict[str, tuple[int, int]] = {}
    for name, right, size in zip(names, np.bincount(index, hits), np.bincount(index), strict=True):
        # Samples without a group count in no group, those with several in each of them.
        for group in filter(None, str(name).split(GROUP_SEPARATOR)):
            before = by_group.get(group, (0, 0))
            by_group[group] = before[0] + int(right), before[1] + int(size)
    if not by_group:
        return score
    metrics = {**(score.metrics or {}), **group_metrics(list(by_group.values()))}
    return replace(score, metrics=metrics, groups=by_group)


# Splits of a source that are also evaluated with the domain label given; the last one counts.
LABELED_PARTS = ("probe", "test")


class Evaluator:
    """Evaluates models on a fixed set of splits.

    A `BatchPredictor` predicts from batches of unlabelled samples: it gets each split by itself, in
    an order drawn from the trial, and is reset before each.

    Parameters
    ----------
    splits
        Data by (domain, part). Samples with a label below 0 are of classes that the models do not
        know; a split with no other samples is left out.
    prepare
        Turns stored samples into inputs of the network.
    indices
        Samples of each split to use; by default all.
    device
        Where to compute.
    groups
        Group of every sample of a split, for splits with groups finer than a domain.
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
        groups: Mapping[tuple[str, str], Sequence[str]] | None = None,
        device: torch.device | str = "cpu",
        confidence: bool = True,
        trial: int = 0,
    ) -> None:
        by_key = {
            key: indices[key] if indices else torch.arange(len(domain.y))
            for key, domain in splits.items()
        }
        self.keys = [key for key, rows in by_key.items() if (splits[key].y[rows] >= 0).any()]
        self.prepare = prepare
        self.trial = trial
        self.confidence = confidence
        self.groups = {key: np.unique(g, return_inverse=True) for key, g in (groups or {}).items()}
        if self.keys:
            rows = [by_key[key] for key in self.keys]
            domains = [splits[key] for key in self.keys]
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
        labeled = [
            (domain, part)
            for part in LABELED_PARTS
            for domain in _domains(model)
            if (domain, part) in self.keys
        ]
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
        """The logits, with those of the sources' splits given the domain label."""
        updated = logits.clone()
        names = _domains(model)
        for number, key in enumerate(self.keys):
            if key[0] in names and key[1] in LABELED_PARTS:
                in_split = self.split_index == number
                rows = torch.from_numpy(np.flatnonzero(in_split))
                updated[rows.to(updated.device)] = compute_outputs(
                    model, self.x, self.prepare, indices=rows, domain=names.index(key[0])
                )
        return updated

    def _scores(self, logits: Tensor) -> list[Score]:
        losses = F.cross_entropy(logits, self.y, reduction="none", ignore_index=UNKNOWN)
        confidence = logits.softmax(dim=1).amax(dim=1).nan_to_num() if self.confidence else None
        outputs = Outputs(
            splits=self.split_index,
            labels=self.labels,
            predicted=logits.argmax(dim=1).cpu().numpy(),
            classes=logits.shape[1],
            losses=losses.cpu().numpy(),
            confidence=None if confidence is None else confidence.cpu().numpy(),
            margins=logits.diff(dim=1)[:, 0].cpu().numpy() if logits.shape[1] == 2 else None,
        )
        return compute_scores(
            outputs,
            [self.groups.get(key) for key in self.keys],
            plain=[part == "sample" for _, part in self.keys],
        )


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


def without_details(
    checkpoint: Checkpoint, metrics: Sequence[str] = (), *, detailed: Collection[str] = ()
) -> Checkpoint:
    """A checkpoint that takes less space: no counts, and only the named metrics.

    The splits named in `detailed` keep everything.
    """

    def reduced(part: str, score: Score | None) -> Score | None:
        if score is None or part in detailed:
            return score
        kept = {name: v for name, v in (score.metrics or {}).items() if name in metrics}
        return replace(score, metrics=kept or None, confusion=None, groups=None)

    scores = {
        domain: Scores(**{part: reduced(part, getattr(scores, part)) for part in PARTS})
        for domain, scores in checkpoint.scores.items()
    }
    return replace(checkpoint, scores=scores)
