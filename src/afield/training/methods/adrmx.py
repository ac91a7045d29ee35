"""ADRMX: subtract what tells the domain, and remix it (Demirel et al., 2023).

    z_l, z_d     label features of the network, domain features of a second network
    z_i          z_l - z_d, from which a discriminator D tries to tell the domain
    L_D          mean cross-entropy of D(z_i) and the domain
    generator    CE(h₁ z_l) + CE(h₂ z_i) + domain · CE(h_d z_d, domain)
                 + remix · 1/C Σ_c CE(h₁(z_i[u] + z_d[v]), y_u)
                 + contrast · [SC(z_l) + SC(z_i)] - discriminator · L_D

u and v are two random samples of class c; SC is `supervised_contrast`. In turns, D takes
`turns` steps on L_D, then all else takes one step on the loss of the generator. Both optimizers
have betas of (0.5, 0.9), if the run's optimizer has betas. Heads have three layers; h₁(z_l) is
deployed. It needs twice the memory of ERM.

Differs from the paper: nothing that we know of. Differs from the authors' code: u and v are
positions in the batch, while theirs uses positions within the class as positions in the batch; a
class with fewer than two samples in a batch is not remixed.
"""

from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.networks.freezing import batchnorm_layers
from afield.training.building_blocks.feature_distances import supervised_contrast
from afield.training.learner import Learner, Task, perceptron, require_classifier
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["ADRMX"]

BETAS = (0.5, 0.9)


class _DeepHeaded(Classifier):
    """A classifier whose head has three layers."""

    def __init__(self, net: Classifier, classes: int) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = cast(Any, _head(net.width, classes).to(net.head.weight))


@dataclass(frozen=True)
class ADRMX(Method):
    """Additive disentanglement of domain features with remix loss.

    `domain`, `remix`, `contrast` and `discriminator` are the weights of the losses. D has `depth`
    layers of `width` units, and takes `turns` steps for each step of the generator.
    """

    domain: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    remix: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    contrast: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    discriminator: Annotated[float, LogUniform(0.1, 10.0)] = 0.75
    turns: Annotated[int, Variant((1, 2))] = 2
    depth: Annotated[int, Choice((8, 9, 10))] = 9
    width: Annotated[int, Variant((256, 64))] = 256

    def __post_init__(self) -> None:
        for name in ("domain", "remix", "contrast", "discriminator", "turns"):
            if getattr(self, name) < 0:
                raise SpecError(f"adrmx.{name}={getattr(self, name):g}: must not be below 0")
        if self.depth < 2 or self.width < 1:
            raise SpecError("adrmx.depth must be above 1, and adrmx.width above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the second network, the heads and the discriminator; make the head deeper."""
        net = _DeepHeaded(require_classifier(model, "adrmx", own_head=True), len(task.classes))
        width, domains = net.width, len(task.sources)
        discriminator = perceptron(width, *[self.width] * (self.depth - 1), domains)
        parts = {
            "domain_features": cast(Classifier, task.network(1)).features,
            "domain": discriminator,
            "final": _head(width, len(task.classes)),
            "domain_head": _head(width, domains),
        }
        settings = {"betas": BETAS}
        learner = Learner(net, task, parts, separate=["domain"], settings=settings)
        learner.add_optimizer("domain", discriminator.parameters(), settings=settings)
        return learner

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Train the discriminator, or all else if it is the generator's turn."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        domain_features = learner.parts["domain_features"]
        if model.freeze_bn:
            for layer in batchnorm_layers(domain_features):
                layer.eval()
        z_label, z_domain = model.features(pooled.x), domain_features(pooled.x)
        guess = learner.parts["domain"](z_label - z_domain)
        domain_loss = F.cross_entropy(guess, pooled.domain)
        logs = {"discriminator loss": domain_loss.detach()}
        if (learner.step + 1) % (1 + self.turns) < self.turns:
            only = learner.parts["domain"].parameters()
            learner.descend(domain_loss, learner.optimizers["domain"], only=only)
            return logs
        losses = self._losses(learner, pooled, z_label, z_domain)
        weights = (1, 1, self.domain, self.remix, self.contrast, self.contrast)
        loss = -self.discriminator * domain_loss
        for weight, value in zip(weights, losses.values(), strict=True):
            loss = loss + weight * value
        learner.descend(loss, only=learner.parameters())
        return {"loss": loss.detach(), **logs, **{n: v.detach() for n, v in losses.items()}}

    def _losses(
        self, learner: Learner, batch: Batch, z_label: Tensor, z_domain: Tensor
    ) -> dict[str, Tensor]:
        """Losses of the generator, without that of the discriminator."""
        head, parts = cast(Classifier, learner.model).head, learner.parts
        z_final = z_label - z_domain
        return {
            "label loss": F.cross_entropy(head(z_label), batch.y),
            "final loss": F.cross_entropy(parts["final"](z_final), batch.y),
            "domain loss": F.cross_entropy(parts["domain_head"](z_domain), batch.domain),
            "remix loss": self._remixed(learner, z_final, z_domain, batch.y),
            "label contrast": supervised_contrast(z_label, batch.y),
            "final contrast": supervised_contrast(z_final, batch.y),
        }

    def _remixed(self, learner: Learner, z_final: Tensor, z_domain: Tensor, y: Tensor) -> Tensor:
        """Loss of features whose domain features are those of another sample of the class."""
        head, classes = cast(Classifier, learner.model).head, len(learner.task.classes)
        losses = []
        for c in range(classes):
            in_class = y == c
            # Members of the class come first, in their order.
            members = (~in_class).int().argsort(stable=True)
            count = in_class.sum()
            # Slices, not numbers: reading a number off the device would make the device wait.
            u, v = members[self.perm(c, count, len(y))[:2]].split(1)
            loss = F.cross_entropy(head(z_final[u] + z_domain[v]), y[u])
            losses.append(torch.where(count > 1, loss, 0.0))
        return torch.stack(losses).sum() / classes

    def perm(self, c: int, count: Tensor, n: int) -> Tensor:
        """A random order of 0 … count - 1, for class c; the rest of n numbers follows."""
        del c
        keys = torch.rand(n, device=count.device)
        return (keys + (torch.arange(n, device=count.device) >= count)).argsort()


def _head(width: int, outputs: int) -> nn.Sequential:
    return perceptron(width, max(1, width // 2), max(1, width // 4), outputs)
