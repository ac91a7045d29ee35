"""MixStyle: mix the styles of maps between samples of different domains (Zhou et al., 2021).

    μ, σ of each sample and channel over the positions of a map, as constants
    x ← (x - μ) / σ · (λ σ + (1 - λ) σ[π]) + λ μ + (1 - λ) μ[π],   λ ~ Beta(α, α) per sample

This is done behind the first `stages` blocks of the network, in training only, each time with
probability `probability` for the whole batch. π pairs every sample with one of another domain, or
with any sample. The loss is the mean cross-entropy. `afield.networks.styles` defines the mixture;
the network that is deployed is the plain one. With λ = 1, or with probability 0, it is ERM.

The authors advise one or two stages; they use three on PACS and two on OfficeHome.

Differs from the paper: with more than two domains, domain i takes the styles of domain i + s, where
s is drawn anew each time; with two domains this is the paper's exchange of halves. Where another
domain has fewer samples in the batch, some of them are taken twice. With one domain, pairs are
random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, Variant
from afield.networks.stages import block_stages, channel_axis, hook_outputs
from afield.networks.styles import mix_styles
from afield.training.learner import Learner, Task, sample_of_zeros
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["MixStyle"]

Partners = Literal["other_domain", "random"]


@dataclass(frozen=True)
class MixStyle(Method):
    """Mixed styles of early maps.

    `stages` is the number of blocks behind which styles are mixed, at most as many as the network
    has. `alpha` is the parameter of the Beta distribution.
    """

    stages: Annotated[int, Choice((1, 2, 3))] = 2
    alpha: Annotated[float, Choice((0.1, 0.2, 0.3))] = 0.1
    probability: Annotated[float, Variant((0.5, 1.0))] = 0.5
    partners: Annotated[Partners, Variant(("other_domain", "random"))] = "other_domain"

    may_refuse_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = self.name
        if self.stages < 1:
            raise SpecError(f"{name}.stages={self.stages}: must be above 0")
        if self.alpha <= 0:
            raise SpecError(f"{name}.alpha={self.alpha:g}: must be above 0")
        if not 0 <= self.probability <= 1:
            raise SpecError(f"{name}.probability={self.probability:g}: must be from 0 to 1")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Find the blocks."""
        blocks = block_stages(model, sample_of_zeros(model, task))
        if not blocks:
            raise SpecError(
                f"{self.name} mixes the styles of maps, and this network has none; use a "
                "convolutional network"
            )
        return Learner(model, task, layers=list(blocks)[: self.stages])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples, with mixed styles."""
        pooled, sizes = pool(batches), [len(batch.y) for batch in batches]

        def change(_: str, output: Tensor) -> Tensor | None:
            if not self.active():
                return None
            axis = channel_axis(tuple(output.shape), tuple(pooled.x.shape))
            perm = self.perm(sizes).to(output.device)
            return self.mix(output, self.lam(output), perm, axis)

        with hook_outputs(learner.model, change, *learner.layers):
            return F.cross_entropy(learner.model(pooled.x), pooled.y), {}

    def mix(self, x: Tensor, lam: Tensor, perm: Tensor, axis: int) -> Tensor:
        """Maps with mixed styles."""
        return mix_styles(x, lam, perm, axis=axis)

    def active(self) -> bool:
        """Whether to mix the styles of this batch."""
        return bool(torch.rand(()) < self.probability)

    def lam(self, x: Tensor) -> Tensor:
        """λ ~ Beta(α, α), one per sample."""
        concentration = x.new_full((len(x),), self.alpha)
        beta = torch.distributions.Beta(concentration, concentration, validate_args=False)
        return beta.sample()

    def perm(self, sizes: Sequence[int]) -> Tensor:
        """For each sample of the pooled batch, the one from which it takes the style."""
        n = len(sizes)
        if self.partners == "random" or n == 1:
            return torch.randperm(sum(sizes))
        shift = 1 + int(torch.randint(n - 1, ()))
        members = torch.arange(sum(sizes)).split(list(sizes))
        shuffled = [indices[torch.randperm(len(indices))] for indices in members]
        others = [shuffled[(i + shift) % n] for i in range(n)]
        return torch.cat(
            [
                other[torch.arange(size) % len(other)]
                for other, size in zip(others, sizes, strict=True)
            ]
        )
