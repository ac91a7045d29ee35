"""CDANN: features from which no domain can be told within a class (Li et al., 2018).

    loss = J_l(h(F(x)), y) + Σ_i w_i J_d(D(R_λ(F(xᵢ)) + E(yᵢ)), dᵢ)

As DANN, but the domain classifier D is told the class, as an embedding E of it added to the
features, and every class that is in a batch has the same weight in its loss, however many samples
it has there: w_i = 1 / (classes in the batch · samples of class yᵢ in it). So where classes are not
alike in all domains, features need not hide what the class alone gives away. With one class it is
DANN.

Differs from the paper: one domain classifier that is told the class, as DomainBed has it, in place
of one for each class and another for all with weighted samples. Differs from DomainBed's code: as
DANN does; and weights of a batch add up to one, while theirs count the classes up to the largest
label that it happens to have.
"""

from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from afield.networks.backbone import Classifier
from afield.training.method import Batch, Learner, Task
from afield.training.methods.dann import DANN

__all__ = ["CDANN"]


@dataclass(frozen=True)
class CDANN(DANN):
    """As DANN: the settings are the same."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain classifier and the classes' embedding."""
        parts = super().setup(model, task).parts
        classes = nn.Embedding(len(task.classes), cast(Classifier, model).width)
        # No class tells anything at first.
        nn.init.zeros_(classes.weight)
        return Learner(model, task, {"domain": parts["domain"], "classes": classes})

    def domain_loss(
        self, learner: Learner, features: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The domain classifier's logits, and its loss with all classes alike."""
        told = features + learner.parts["classes"](batch.y)
        scores = learner.parts["domain"](told)
        losses = F.cross_entropy(scores, batch.domain, reduction="none")
        # Over the samples of a class these add up to one, so over all to the number of classes.
        shares = 1 / (batch.y[:, None] == batch.y).sum(dim=1)
        return scores, (losses * shares).sum() / shares.sum()
