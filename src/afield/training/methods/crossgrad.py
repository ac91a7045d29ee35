"""CrossGrad: inputs moved along a domain classifier's gradient (Shankar et al., 2018).

Two networks without shared weights, one for labels and one for domains, each trained on its batch
and on inputs moved along the other's gradient:

    X_d = X + ε_l · c(∇_X J_d(X, D)),   X_l = X + ε_d · c(∇_X J_l(X, Y))
    θ_l follows the gradient of (1 - α_l) J_l(X, Y) + α_l J_l(X_d, Y)
    θ_d follows the gradient of (1 - α_d) J_d(X, D) + α_d J_d(X_l, D)

J is the mean cross-entropy of a batch, so the gradient is shorter the larger the batch; c clips
every entry; the moved inputs are constants, both from the weights before the step. ε is in units of
what the networks see: -1 to 1 for pictures, unless a pretrained network scales them in its own way.
The network for labels is deployed, on inputs as they are. A step is two passes forward and back of
each network: those on the inputs as they are give the losses and the gradients on inputs and
weights at once.

Differs from the paper: entries of the gradient are clipped at 0.1 and ε is 10 for both, as in the
authors' code (`clip=0` is the paper's, whose ε is not known); the domain features g are not given
to the label net, as in the authors' code, unless `guided=true`, and then before two further hidden
layers, whatever the network, through which alone it is trained: ∇_X J_l does not go through g.
Differs from the authors' code: no ReLU on the logits, any network for either, and a domain net that
is small unless it is named (theirs is like the label net: `domain_net=same`). One that is named
starts from random weights. With one source domain nothing is moved: it is ERM.
"""

from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.networks.backbone import Classifier, find_backbone, network
from afield.training.input_gradients import (
    backward_perturbed_loss,
    check_perturbation,
    input_gradient,
    perturb_inputs,
    require_float_inputs,
)
from afield.training.method import Batch, Batches, Learner, Logs, Method, Task, pool

__all__ = ["CrossGrad"]


class _Guided(nn.Module):
    """A classifier that is told domain features: two hidden layers on both kinds, then its head.

    `guide`, the domain net, is trained by its own losses only.
    """

    def __init__(self, net: Classifier, guide: Classifier) -> None:
        super().__init__()
        self.net, self.guide = net, guide
        layers = [nn.Linear(net.width + guide.width, net.width), nn.ReLU(inplace=True)]
        layers += [nn.Linear(net.width, net.width), nn.ReLU(inplace=True)]
        self.hidden = nn.Sequential(*layers)

    def forward(self, x: Tensor, g: Tensor | None = None) -> Tensor:
        """Logits; `g` where the domain features are known already."""
        if g is None:
            with torch.no_grad():
                g = self.guide.features(x)
        return cast(Tensor, self.net.head(self.hidden(torch.cat([self.net.features(x), g], dim=1))))


@dataclass(frozen=True)
class CrossGrad(Method):
    """ε and α of the net for labels and of the net for domains; `alpha_domain` is the same if none.

    `clip` is the largest entry of the gradient that is followed; 0 clips none. `domain_net` is
    `small` (small:cnn for pictures and sounds, small:mlp for others), the `same` as for labels, or
    a backbone's name; with `guided` its features are told to the label net.
    """

    epsilon_label: Annotated[float, LogUniform(1.0, 1000.0)] = 10.0
    epsilon_domain: Annotated[float, LogUniform(1.0, 1000.0)] = 10.0
    alpha_label: Annotated[float, Choice((0.1, 0.25, 0.5, 0.75, 0.9))] = 0.5
    alpha_domain: Annotated[float | None, Variant((None, 0.0, 0.5))] = None
    clip: Annotated[float, Variant((0.1, 0.0, 0.01))] = 0.1
    domain_net: Annotated[str, Variant(("small", "same"))] = "small"
    guided: Annotated[bool, Variant((False, True))] = False

    def __post_init__(self) -> None:
        named = ("epsilon_label", "epsilon_domain", "clip")
        check_perturbation(
            "crossgrad",
            epsilons={name: getattr(self, name) for name in named},
            alphas={"alpha_label": self.alpha_label, "alpha_domain": self.shares[1]},
        )
        if self.domain_net not in ("small", "same"):
            find_backbone(self.domain_net).check()

    @property
    def shares(self) -> tuple[float, float]:
        """α of the net for labels, and of the net for domains."""
        alone = self.alpha_domain is not None
        return self.alpha_label, cast(float, self.alpha_domain) if alone else self.alpha_label

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain net."""
        domain = self._domain_net(task).to(next(model.parameters()).device)
        if not self.guided:
            return Learner(model, task, {"domain": domain})
        if not isinstance(model, Classifier) or not isinstance(domain, Classifier):
            raise SpecError("crossgrad.guided=true takes networks of features and a head")
        return Learner(_Guided(model, domain).to(next(model.parameters()).device), task)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """One descent of both networks, both from the weights before it."""
        pooled, (share, domain_share) = pool(batches), self.shares
        x = require_float_inputs(pooled.x, "crossgrad")
        label_x, domain_x = x.detach().requires_grad_(), x.detach().requires_grad_()
        learner.optimizer.zero_grad()
        net = self.domain_classifier(learner)
        g = (cast(Classifier, net).features(domain_x),) if self.guided else ()
        scores = cast(Classifier, net).head(*g) if g else net(domain_x)
        domain_loss = F.cross_entropy(scores, pooled.domain)
        toward_domain = input_gradient(learner, domain_loss, domain_x, share=1 - domain_share)
        loss = F.cross_entropy(learner.model(label_x, *(each.detach() for each in g)), pooled.y)
        toward_label = input_gradient(learner, loss, label_x, share=1 - share)
        loss, domain_loss = loss.detach(), domain_loss.detach()
        shifted = perturb_inputs(x, toward_domain, epsilon=self.epsilon_label, clip=self.clip)
        if share:
            loss = backward_perturbed_loss(
                learner, loss, F.cross_entropy(learner.model(shifted), pooled.y), share
            )
        if domain_share:
            other = perturb_inputs(x, toward_label, epsilon=self.epsilon_domain, clip=self.clip)
            again = F.cross_entropy(net(other), pooled.domain)
            domain_loss = backward_perturbed_loss(learner, domain_loss, again, domain_share)
        learner.step_optimizer()
        told = (scores.detach().argmax(dim=1) == pooled.domain).float().mean()
        shift = F.l1_loss(shifted, x)
        return {"loss": loss, "domain loss": domain_loss, "domain accuracy": told, "shift": shift}

    def domain_classifier(self, learner: Learner) -> nn.Module:
        """The network that tells source domains apart."""
        if self.guided:
            return cast(_Guided, learner.model).guide
        return learner.parts["domain"]

    def perturbed_inputs(self, learner: Learner, batch: Batch, size: int | None = None) -> Tensor:
        """The inputs as moved for the net for labels, in a batch of this `size` or of their own."""
        x = require_float_inputs(batch.x, "crossgrad").requires_grad_()
        scores = self.domain_classifier(learner)(x)
        loss = F.cross_entropy(scores, batch.domain, reduction="sum") / (size or len(x))
        slope = input_gradient(learner, loss, x, share=0)
        return perturb_inputs(x, slope, epsilon=self.epsilon_label, clip=self.clip)

    def _domain_net(self, task: Task) -> nn.Module:
        outputs, usual = len(task.sources), "small:cnn" if len(task.shape) == 3 else "small:mlp"
        if self.domain_net == "same":
            return task.network(outputs)
        name = usual if self.domain_net == "small" else self.domain_net
        return network(name, task.shape, outputs)
