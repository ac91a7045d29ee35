"""How strange a sample is to a model: scores of which the best warning is chosen at fit.

    mahalanobis   distance to the nearest class in whitened features (`distances`)
    relative      the squares of that distance, minus of that to the mean of all classes (Ren et
                  al., 2021): directions in which all training data vary count little
    neighbors     distance to the 10th nearest of 1,000 training samples, features scaled to
                  length 1 (Sun et al., 2022)
    energy        −log Σ exp(logits) (Liu et al., 2020)
    gen           Σ pᵞ (1 − p)ᵞ over the 100 largest probabilities, γ = 0.1 (Liu et al., 2023)

All are larger for stranger samples. `fit` chooses the score with the largest AUROC for "the
prediction is wrong" on held-out domains, averaged over these. The nearest neighbors need features
of training samples, which the model folder then holds (and only then).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.deployment.distances import MAHALANOBIS, Distances
from afield.errors import SpecError
from afield.seeds import derive_seed

# Training samples that are kept for the nearest neighbors, and which of them counts.
BANK_SIZE, NEIGHBOR = 1000, 10
# Settings of GEN, as in the paper.
GAMMA, GEN_CLASSES = 0.1, 100
# Of tensors in the file of distances.
BACKGROUND, BANK = "background.", "neighbors"
NEIGHBORS = "neighbors"


@dataclass(frozen=True)
class Strangeness:
    """The chosen score, and what the scores need: fitted distances and features of samples."""

    classes: Distances
    background: Distances | None = None
    bank: Tensor | None = None
    kind: str = MAHALANOBIS

    @classmethod
    def fit(cls, features: Tensor, y: Tensor) -> "Strangeness":
        """Fit everything that the scores need to training samples."""
        generator = torch.Generator().manual_seed(derive_seed("neighbors"))
        rows = torch.randperm(len(features), generator=generator)[:BANK_SIZE]
        return cls(
            Distances.fit(features, y),
            Distances.fit(features, torch.zeros_like(y)),
            F.normalize(features[rows].float().cpu(), dim=1).half(),
        )

    def choose(self, kind: str) -> "Strangeness":
        """The same with one score, and only what it needs."""
        background = self.background if kind == "relative" else None
        bank = self.bank if kind == NEIGHBORS else None
        return replace(self, kind=kind, background=background, bank=bank)

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        """The strangeness of every sample."""
        return SCORES[self.kind](self, features, logits)

    def all_scores(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Every score of every sample."""
        return {kind: score(self, features, logits) for kind, score in SCORES.items()}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to store in a file."""
        stored = self.classes.tensors()
        if self.background is not None:
            stored |= {BACKGROUND + name: v for name, v in self.background.tensors().items()}
        return stored | ({} if self.bank is None else {BANK: self.bank.contiguous()})

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], kind: str) -> "Strangeness":
        """Restore from what `tensors` returned."""
        inner = {
            name.removeprefix(BACKGROUND): values
            for name, values in tensors.items()
            if name.startswith(BACKGROUND)
        }
        return cls(
            Distances.from_tensors(tensors),
            Distances.from_tensors(inner) if inner else None,
            tensors.get(BANK),
            kind,
        )


def _mahalanobis(fitted: Strangeness, features: Tensor, logits: Tensor) -> Tensor:
    del logits
    return fitted.classes(features)


def _relative(fitted: Strangeness, features: Tensor, logits: Tensor) -> Tensor:
    del logits
    assert fitted.background is not None
    return fitted.classes(features).square() - fitted.background(features).square()


def _neighbors(fitted: Strangeness, features: Tensor, logits: Tensor) -> Tensor:
    del logits
    assert fitted.bank is not None
    rows, bank = F.normalize(features.float(), dim=1), fitted.bank.float()
    # The faster mode loses digits, and other ones in every batch.
    exact = "donot_use_mm_for_euclid_dist"
    nearest = [
        torch.cdist(part, bank, compute_mode=exact).topk(min(NEIGHBOR, len(bank)), largest=False)
        for part in rows.split(1000)
    ]
    return torch.cat([each.values[:, -1] for each in nearest])


def _energy(fitted: Strangeness, features: Tensor, logits: Tensor) -> Tensor:
    del fitted, features
    return -logits.float().logsumexp(dim=1)


def _gen(fitted: Strangeness, features: Tensor, logits: Tensor) -> Tensor:
    del fitted, features
    largest = logits.double().softmax(dim=1).sort(dim=1, descending=True).values[:, :GEN_CLASSES]
    return (largest**GAMMA * (1 - largest) ** GAMMA).sum(dim=1).float()


SCORES: Mapping[str, Callable[[Strangeness, Tensor, Tensor], Tensor]] = {
    MAHALANOBIS: _mahalanobis,
    "relative": _relative,
    NEIGHBORS: _neighbors,
    "energy": _energy,
    "gen": _gen,
}


def check_score(kind: str) -> None:
    """Raise unless there is a score of this name."""
    if kind not in SCORES:
        raise SpecError(f"no score {kind!r} of strangeness; known: {', '.join(SCORES)}")
