"""CrossGrad: inputs perturbed along a domain classifier's gradient (Shankar et al., 2018).

Two networks without shared weights: the label network and the domain network. Each is trained on
the batch and on inputs perturbed along the gradient of the other:

    X_d = X + ε_l · c(∇_X J_d(X, D)),   X_l = X + ε_d · c(∇_X J_l(X, Y))
    θ_l follows the gradient of (1 - α_l) J_l(X, Y) + α_l J_l(X_d, Y)
    θ_d follows the gradient of (1 - α_d) J_d(X, D) + α_d J_d(X_l, D)

J is the mean cross-entropy of a batch, so a larger batch has shorter gradients. c clips every
entry. The perturbed inputs are constants, computed with the weights before the step. ε is in the
units of the networks' inputs: images range from -1 to 1, unless a pretrained network scales them
differently. The label network is deployed, on unperturbed inputs. A step takes two forward and
backward passes through each network; the passes on clean inputs give the losses, the gradients with
respect to the inputs and those with respect to the weights at once.

Differs from the paper: entries of the gradient are clipped at 0.1 and ε is 10 for both networks, as
in the authors' code (`clip=0` is the paper's form; the paper's ε is unknown). The domain features g
are not given to the label network, as in the authors' code, unless `guided=true`. Then, whatever
the network, they enter before two additional hidden layers, and J_l trains the label network and
these layers only: ∇_X J_l does not go through g.
Differs from the authors' code: there is no ReLU on the logits, either network can be any backbone,
and the domain network is small by default (theirs has the architecture of the label network:
`domain_net=same`). A domain network given by name starts from random weights. BatchNorm layers
that are not frozen also see the perturbed inputs: their running statistics are a mixture of both,
while the networks of the authors have no BatchNorm. With one source domain no input is perturbed:
it is ERM. Of texts, the tokens that the label network has embedded are moved; the domain network
takes them too, and the embedding is trained by J_l on the clean inputs only.
"""

from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.modality import Modality
from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.networks.backbone import Classifier, find_backbone, network
from afield.networks.text_features import ByteFeatures, TextFeatures
from afield.training.input_gradients import (
    backward_perturbed_loss,
    check_perturbation,
    input_gradient,
    movable_inputs,
    perturb_inputs,
    require_float_inputs,
)
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["CrossGrad"]


class _Guided(nn.Module):
    """A classifier that also gets domain features: two hidden layers on both, then its head.

    `guide` is the domain network; it is trained by its own losses only.
    """

    def __init__(self, net: Classifier, guide: Classifier) -> None:
        super().__init__()
        self.net, self.guide = net, guide
        layers = [nn.Linear(net.width + guide.width, net.width), nn.ReLU(inplace=True)]
        layers += [nn.Linear(net.width, net.width), nn.ReLU(inplace=True)]
        self.hidden = nn.Sequential(*layers)

    def forward(self, x: Tensor, g: Tensor | None = None) -> Tensor:
        """Logits; `g` are the domain features if they are already computed."""
        if g is None:
            with torch.no_grad():
                g = self.guide.features(x)
        return cast(Tensor, self.net.head(self.hidden(torch.cat([self.net.features(x), g], dim=1))))


@dataclass(frozen=True)
class CrossGrad(Method):
    """Cross-gradient training.

    `epsilon_label` and `alpha_label` are ε_l and α_l of the label network, `epsilon_domain` and
    `alpha_domain` those of the domain network; by default `alpha_domain` equals `alpha_label`.
    `clip` limits the entries of the gradient; 0 means unlimited. `domain_net` is `small` (small:cnn
    for images and audio, the convolutions of small:text for texts, small:mlp for other inputs),
    `same` as the label network, or the name of a backbone. With `guided`, the label network gets
    the features of the domain network.
    """

    epsilon_label: Annotated[float, LogUniform(1.0, 1000.0)] = 10.0
    epsilon_domain: Annotated[float, LogUniform(1.0, 1000.0)] = 10.0
    alpha_label: Annotated[float, Choice((0.1, 0.25, 0.5, 0.75, 0.9))] = 0.5
    alpha_domain: Annotated[float | None, Variant((None, 0.0, 0.5))] = None
    clip: Annotated[float, Variant((0.1, 0.0, 0.01))] = 0.1
    domain_net: Annotated[str, Variant(("small", "same"))] = "small"
    guided: Annotated[bool, Variant((False, True))] = False

    def __post_init__(self) -> None:
        lengths = ("epsilon_label", "epsilon_domain", "clip")
        check_perturbation(
            "crossgrad",
            epsilons={name: getattr(self, name) for name in lengths},
            alphas={"alpha_label": self.alpha_label, "alpha_domain": self.shares[1]},
        )
        if self.domain_net not in ("small", "same"):
            find_backbone(self.domain_net).check()

    @property
    def shares(self) -> tuple[float, float]:
        """α of the label network, and of the domain network."""
        if self.alpha_domain is None:
            return self.alpha_label, self.alpha_label
        return self.alpha_label, self.alpha_domain

    def check_modality(self, modality: Modality) -> None:
        """Refuse texts for what needs the same inputs for both networks, without embedding."""
        if modality.has_tokens and (self.guided or self.domain_net not in ("small", "same")):
            raise SpecError(
                "crossgrad on texts needs guided=false and domain_net=small or same, because its "
                "domain network takes the embedded tokens of the label network"
            )

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain network."""
        domain = self._domain_net(model, task).to(next(model.parameters()).device)
        if not self.guided:
            return Learner(model, task, {"domain": domain})
        if not isinstance(model, Classifier) or not isinstance(domain, Classifier):
            raise SpecError("crossgrad.guided=true needs Classifiers (features and a head)")
        return Learner(_Guided(model, domain).to(next(model.parameters()).device), task)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Descend on the losses of both networks; both use the weights before the step."""
        pooled, (share, domain_share) = pool(batches), self.shares
        label_x = movable_inputs(learner.model, pooled.x, "crossgrad")
        x = label_x.detach()
        domain_x = x.detach().requires_grad_()
        learner.optimizer.zero_grad()
        net = self.domain_classifier(learner)
        g = (cast(Classifier, net).features(domain_x),) if self.guided else ()
        domain_logits = cast(Classifier, net).head(*g) if g else net(domain_x)
        domain_loss = F.cross_entropy(domain_logits, pooled.domain)
        toward_domain = input_gradient(learner, domain_loss, domain_x, share=1 - domain_share)
        loss = F.cross_entropy(
            learner.model(label_x, *(features.detach() for features in g)), pooled.y
        )
        toward_label = input_gradient(learner, loss, label_x, share=1 - share)
        loss, domain_loss = loss.detach(), domain_loss.detach()
        shifted = perturb_inputs(x, toward_domain, epsilon=self.epsilon_label, clip=self.clip)
        if share:
            loss = backward_perturbed_loss(
                learner, loss, F.cross_entropy(learner.model(shifted), pooled.y), share
            )
        if domain_share:
            other = perturb_inputs(x, toward_label, epsilon=self.epsilon_domain, clip=self.clip)
            perturbed_loss = F.cross_entropy(net(other), pooled.domain)
            domain_loss = backward_perturbed_loss(
                learner, domain_loss, perturbed_loss, domain_share
            )
        learner.step_optimizer()
        hits = domain_logits.detach().argmax(dim=1) == pooled.domain
        return {
            "loss": loss,
            "domain loss": domain_loss,
            "domain accuracy": hits.float().mean(),
            "shift": F.l1_loss(shifted, x),
        }

    def domain_classifier(self, learner: Learner) -> nn.Module:
        """The domain network."""
        if self.guided:
            return cast(_Guided, learner.model).guide
        return learner.parts["domain"]

    def perturbed_inputs(self, learner: Learner, batch: Batch, size: int | None = None) -> Tensor:
        """Inputs as perturbed for the label network, as if their batch had `size` samples."""
        x = require_float_inputs(batch.x, "crossgrad").requires_grad_()
        logits = self.domain_classifier(learner)(x)
        loss = F.cross_entropy(logits, batch.domain, reduction="sum") / (size or len(x))
        gradient = input_gradient(learner, loss, x, share=0)
        return perturb_inputs(x, gradient, epsilon=self.epsilon_label, clip=self.clip)

    def _domain_net(self, model: nn.Module, task: Task) -> nn.Module:
        outputs = len(task.sources)
        if self.domain_net == "same":
            return task.network(outputs)
        features = getattr(model, "features", None)
        if isinstance(features, TextFeatures):
            small_text = ByteFeatures(1, features.embedding_width)
            return Classifier(small_text, small_text.width, outputs)
        small = "small:cnn" if len(task.shape) == 3 else "small:mlp"
        name = small if self.domain_net == "small" else self.domain_net
        return network(name, task.shape, outputs)
