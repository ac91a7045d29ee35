"""URM: features that are spread uniformly over a cube (Krishnamachari et al., 2024).

    z = tanh(F(x)) (or ReLU), which is also what the head and the deployed network see
    (1) features and head    descend on R + weight · mean softplus(-D(z))
    (2) the critic D         descends on mean BCE(D(u), 1) + weight · mean BCE(D(sg z), 0)

u is uniform on (-1, 1), or on (0, 1) for ReLU, and R is the mean cross-entropy. So D learns to tell
features from uniform noise, and the features learn to look like it. z in (2) is that from before
step (1). With smoothing e the targets are 1 - e + e U and e U, U uniform on (0, 1). With a weight
of 0 it is ERM with tanh.

Differs from the paper: nothing that we know of. Differs from DomainBed's code: the learning rate of
the critic is a multiple of the run's.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Uniform, Variant
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task, perceptron, require_classifier
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["URM"]

Output = Literal["tanh", "relu"]


class _Bounded(Classifier):
    """A classifier whose features end in tanh or ReLU."""

    def __init__(self, net: Classifier, output: Output) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = net.head
        self.output = output

    def bounded_features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        z: Tensor = self.features(x)
        return z.tanh() if self.output == "tanh" else z.relu()

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.bounded_features(x))


@dataclass(frozen=True)
class URM(Method):
    """Uniform risk minimization.

    `weight` is that of the critic. The critic has `critic_layers` + 1 hidden layers of
    `critic_width` units, and `critic_rate` times the run's learning rate. `smoothing` is that of
    its targets, `output` the last function of the features.
    """

    weight: Annotated[float, Uniform(0.0, 0.2)] = 0.1
    smoothing: Annotated[float, Variant((0.0, 0.1))] = 0.0
    critic_layers: Annotated[int, Choice((1, 2, 3))] = 1
    critic_width: Annotated[int, Variant((100, 200))] = 100
    critic_rate: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    output: Annotated[Output, Variant(("tanh", "relu"))] = "tanh"

    def __post_init__(self) -> None:
        for name in ("weight", "critic_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"urm.{name}={getattr(self, name):g}: must not be below 0")
        if not 0 <= self.smoothing <= 1:
            raise SpecError(f"urm.smoothing={self.smoothing:g}: must be from 0 to 1")
        if self.critic_layers < 0 or self.critic_width < 1:
            raise SpecError("urm.critic_layers must not be below 0, urm.critic_width above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Bound the features, and add the critic with its optimizer."""
        net = _Bounded(require_classifier(model, "urm"), self.output)
        widths = [net.width, *[self.critic_width] * (self.critic_layers + 1), 1]
        critic = perceptron(*widths, activation=nn.LeakyReLU, negative_slope=0.01)
        learner = Learner(net, task, {"critic": critic}, separate=["critic"])
        learner.add_optimizer("critic", critic.parameters(), lr_multiplier=self.critic_rate)
        return learner

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Descend on the loss of the network, then on that of the critic."""
        pooled, model = pool(batches), cast(_Bounded, learner.model)
        critic = learner.parts["critic"]
        z = model.bounded_features(pooled.x)
        fooled = F.softplus(-critic(z)).mean()
        loss = F.cross_entropy(model.head(z), pooled.y) + self.weight * fooled
        learner.descend(loss, only=model.parameters())
        critic_loss = self._critic_loss(critic, z.detach())
        learner.descend(critic_loss, learner.optimizers["critic"])
        return {"loss": loss.detach(), "critic loss": critic_loss.detach()}

    def _critic_loss(self, critic: nn.Module, z: Tensor) -> Tensor:
        noise = self.uniform(z)
        real, fake = critic(2 * noise - 1 if self.output == "tanh" else noise), critic(z)
        true, false = torch.ones_like(real), torch.zeros_like(fake)
        if self.smoothing:
            true = 1 - self.smoothing + self.smoothing * self.soft_true(real)
            false = self.smoothing * self.soft_fake(fake)
        loss = F.binary_cross_entropy_with_logits(real, true)
        return loss + self.weight * F.binary_cross_entropy_with_logits(fake, false)

    def uniform(self, z: Tensor) -> Tensor:
        """Noise on (0, 1), of the shape of the features."""
        return torch.rand_like(z)

    def soft_true(self, like: Tensor) -> Tensor:
        """U of the targets of noise."""
        return torch.rand_like(like)

    def soft_fake(self, like: Tensor) -> Tensor:
        """U of the targets of features."""
        return torch.rand_like(like)
