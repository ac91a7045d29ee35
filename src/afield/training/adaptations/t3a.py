"""T3A: class prototypes that move towards confident test samples (Iwasawa and Matsuo, 2021).

    supports start as the rows of the head's weights; a batch adds its features z, each with
    the predicted class argmax h(z) and the entropy of softmax h(z)
    of each class, the `keep` supports of least entropy stay
    prototype of a class = normalized sum of its normalized supports;  logits = z · prototypes

The rows of the head are classified by the head like samples, with its bias; a row may belong to
another class than its own. A class without supports has a prototype of zeros. There is no gradient,
and the features do not change, so any network with a linear head can be adapted.

Differs from the paper: nothing. Differs from the authors' code: `keep=0` keeps all supports, while
theirs (-1) drops the most uncertain support of every class with every batch.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice
from afield.networks.backbone import Classifier
from afield.networks.inference import BatchPredictor
from afield.training.adaptation import Adaptation, require_plain

__all__ = ["T3A"]


class _Prototypes(BatchPredictor):
    """A classifier whose head is replaced by prototypes of the samples seen so far."""

    supports: Tensor
    labels: Tensor
    entropy: Tensor

    def __init__(self, model: Classifier, keep: int) -> None:
        super().__init__()
        self.model = model
        self.keep = keep
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Start with the rows of the head."""
        self.supports = self.model.head.weight.detach()
        self.labels, self.entropy = self._classify(self.supports)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Add the batch to the supports, then compare it with the prototypes."""
        z = self.model.features(x)
        labels, entropy = self._classify(z)
        self.supports = torch.cat([self.supports, z])
        self.labels = torch.cat([self.labels, labels])
        self.entropy = torch.cat([self.entropy, entropy])
        self._drop_uncertain()
        sums = F.normalize(self.supports, dim=1).T @ self.labels
        return z @ F.normalize(sums, dim=0)

    def _classify(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """One-hot predicted classes and entropies of the predictions."""
        logits = self.model.head(z)
        entropy = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
        return F.one_hot(logits.argmax(dim=1), logits.shape[1]).to(logits.dtype), entropy

    def _drop_uncertain(self) -> None:
        """Keep the supports of least entropy of every class."""
        if not self.keep:
            return
        order = self.entropy.argsort(stable=True)
        rank = (self.labels[order].cumsum(dim=0) * self.labels[order]).sum(dim=1)
        kept = order[rank <= self.keep]
        self.supports, self.labels = self.supports[kept], self.labels[kept]
        self.entropy = self.entropy[kept]


@dataclass(frozen=True)
class T3A(Adaptation):
    """Test-time template adjuster; `keep` is the number of supports of a class, 0 means all."""

    keep: Annotated[int, Choice((1, 5, 20, 50, 100, 0))] = 100

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise SpecError(f"t3a.keep={self.keep}: must not be below 0; 0 keeps all supports")

    def check(self, model: nn.Module) -> None:
        """Raise unless the network is features and one linear head."""
        require_plain(model, "t3a")
        if not isinstance(model, Classifier) or type(model.head) is not nn.Linear:
            kind = type(model).__name__.lstrip("_")
            raise SpecError(
                f"t3a replaces the one linear head of a network, and {kind} has none; use tent or "
                "batch_norm, or another method"
            )

    def predictor(self, model: nn.Module) -> BatchPredictor:
        """The network with prototypes instead of its head."""
        self.check(model)
        assert isinstance(model, Classifier)
        return _Prototypes(model, self.keep)
