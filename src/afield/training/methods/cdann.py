"""CDANN: features that do not reveal the domain within a class (Li et al., 2018).

    loss = J_l(h(F(x)), y) + Σ_i w_i J_d(D(R_λ(F(xᵢ)) + E(yᵢ)), dᵢ)

As in DANN, but the domain classifier D also gets the class: an embedding E of the class is added
to the features. Every class in a batch has the same weight in the loss of D, however many samples
it has: w_i = 1 / (classes in the batch · samples of class yᵢ in it). So if the classes are
distributed differently over the domains, features need not hide what the class alone reveals. With
one class it is DANN.

Differs from the paper: one domain classifier that gets the class, as in DomainBed, in place of one
classifier per class and another one for all classes with weighted samples. Differs from DomainBed's
code: the differences of DANN apply; and the weights of a batch sum to one, while theirs count the
classes up to the largest label that happens to be in the batch. With `turns`, E starts from normal
numbers, as theirs does; otherwise from zeros.
"""

from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task
from afield.training.methods.dann import DANN

__all__ = ["CDANN"]


@dataclass(frozen=True)
class CDANN(DANN):
    """Conditional DANN; it has the hyperparameters of DANN."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain classifier and the embedding of the classes."""
        parts = super().setup(model, task).parts
        classes = nn.Embedding(len(task.classes), cast(Classifier, model).width)
        if not self.turns:
            # Initially the class has no influence.
            nn.init.zeros_(classes.weight)
        return self.learner(model, task, {"domain": parts["domain"], "classes": classes})

    def domain_inputs(self, learner: Learner, features: Tensor, batch: Batch) -> Tensor:
        """Features, plus the embedding of the class."""
        return features + learner.parts["classes"](batch.y)

    def mean_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean loss of the domain classifier, with the same weight for all classes."""
        losses = F.cross_entropy(logits, batch.domain, reduction="none")
        # The shares of one class sum to 1, so all shares sum to the number of classes.
        shares = 1 / (batch.y[:, None] == batch.y).sum(dim=1).to(losses)
        return (losses * shares).sum() / shares.sum()
