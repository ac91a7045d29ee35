"""How a model does on parts of domains, and what a checkpoint keeps of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.domains import Domain

__all__ = ["PARTS", "Checkpoint", "Exam", "Score", "Scores", "merged_scores"]

PARTS = ("main", "probe", "sample")
# Large enough to keep the cores busy, small enough for the caches and for memory.
CHUNK = 512


@dataclass(frozen=True)
class Score:
    """Accuracy, accuracy averaged over classes, mean cross-entropy, and on how many samples."""

    accuracy: float
    balanced_accuracy: float
    loss: float
    size: int


@dataclass(frozen=True)
class Scores:
    """Scores on the parts of one domain that were read.

    `sample` is a bounded sample of an unseen domain's main part, for curves only: no rule and no
    table reads it.
    """

    main: Score | None = None
    probe: Score | None = None
    sample: Score | None = None


@dataclass(frozen=True)
class Checkpoint:
    """How the deployed model did after so many steps, and the mean of the logs since the last."""

    step: int
    scores: Mapping[str, Scores]
    logs: Mapping[str, float]

    def score(self, domain: str, part: str) -> Score | None:
        """The score on one part of one domain, if it was read."""
        found = self.scores.get(domain)
        return getattr(found, part) if found else None


class Exam:
    """A fixed set of portions (domain, part), taken by one model after the other."""

    def __init__(self, portions: Mapping[tuple[str, str], Domain]) -> None:
        self.keys = list(portions)
        self.sizes = [len(portion.y) for portion in portions.values()]
        self.x = _joined(portion.x for portion in portions.values())
        self.y = _joined(portion.y for portion in portions.values())

    def take(self, model: nn.Module) -> dict[str, Scores]:
        """The model's scores, with the model in evaluation mode and no gradient kept."""
        if not self.keys:
            return {}
        training = model.training
        model.eval()
        with torch.inference_mode():
            logits = torch.cat([model(chunk) for chunk in self.x.split(CHUNK)]).float()
            losses = F.cross_entropy(logits, self.y, reduction="none").cpu().split(self.sizes)
            hits = (logits.argmax(dim=1) == self.y).cpu().split(self.sizes)
            labels = self.y.cpu().split(self.sizes)
        model.train(training)
        found: dict[str, dict[str, Score]] = {}
        for (domain, part), *of_portion in zip(self.keys, losses, hits, labels, strict=True):
            found.setdefault(domain, {})[part] = _score(*of_portion)
        return {domain: Scores(**scores) for domain, scores in found.items()}


def merged_scores(
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


def _joined(parts: Iterable[Tensor]) -> Tensor:
    together = list(parts)
    return torch.cat(together) if together else torch.empty(0)


def _score(losses: Tensor, hits: Tensor, labels: Tensor) -> Score:
    seen = labels.bincount()
    right = labels[hits].bincount(minlength=len(seen))
    recall = right[seen > 0] / seen[seen > 0]
    return Score(
        accuracy=int(hits.sum()) / len(hits),
        balanced_accuracy=float(recall.double().mean()),
        loss=float(losses.double().mean()),
        size=len(hits),
    )
