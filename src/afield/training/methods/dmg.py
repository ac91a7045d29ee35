"""DMG: domain-specific masks separate domain-specific channels (Chattopadhyay et al., 2020).

    p_d = σ(m_d) for every source domain d and masked layer;   m_d starts uniform in (0, 1)
    loss = mean cross-entropy, each sample through a mask drawn from its domain's p
         + overlap · Σ_layers mean over pairs of sIoU(p_i, p_j) + sparsity · Σ p
    sIoU(p, q) = Σ pq / Σ (p + q - pq)

`afield.networks.masks` defines how masks are applied. On an unseen domain, the logits with the soft
masks of every source are averaged. By default the masks apply to the inputs of the last stage and
of the classifier; in a network with hidden fully connected layers, such as AlexNet, to the inputs
of these layers; in a transformer, to those of its last two blocks. `layers` selects other layers.

Differs from the paper: pairs are averaged, not summed, and the quotient is smoothed by 1e-6, as in
the authors' code, with which 0.1 was chosen (`pairs=sum` is the paper's form). Differs from the
authors' code: the masked stages of ResNets are those of the paper's text (theirs has one more);
both learning rates follow the schedule, as in the paper (on PACS theirs has
`mask_schedule=constant`); checkpoints are compared by the network that will be deployed, not by
greedy masks of the true domain; all dropout layers are off, not only AlexNet's.
Differs from both: the learning rates are constant by default (the paper's schedules are
`exponential` on PACS and `inverse` on DomainNet); `inverse` counts steps, where the paper counts
epochs; every batch has the same number of samples of each source, where theirs has 64 samples of
all sources pooled.

A logit moves by about the learning rate per step. With few steps or a small learning rate, masks
stay near their initial values; a larger `mask_rate` lets them move further.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.networks.masks import Combine, MaskedNetwork, hard_overlap, soft_overlap
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["DMG"]

Schedule = Literal["constant", "exponential", "inverse"]
# The paper's schedules: ×0.99 per epoch for 50 epochs; γ and power of the inverse schedule.
EXPONENTIAL_END, GAMMA, POWER = 0.99**50, 1e-4, 0.75


@dataclass(frozen=True)
class DMG(Method):
    """Domain-specific masks.

    `overlap` and `sparsity` are the weights of the penalties on the masks; `pairs` selects the mean
    or the sum over pairs of domains. `layers` names the masked layers.

    `mask_rate` is the learning rate of the masks as a multiple of the run's. `schedule` lowers both
    learning rates: `exponential` to 0.61 at the end, which is 0.99 per epoch over 50 epochs, or
    `inverse` as (1 + 1e-4 · step)^-0.75. `mask_schedule` is a different schedule for the masks.

    `combine` defines the prediction on an unseen domain: the mean of the `predictions` with every
    source's masks, one pass with the mean of the `masks`, or predictions weighted by how likely
    each sample is `guessed` to come from each source.
    """

    overlap: Annotated[float, LogUniform(1e-3, 10.0)] = 0.1
    sparsity: Annotated[float, Variant((0.0, 1e-3))] = 0.0
    pairs: Annotated[Literal["mean", "sum"], Variant(("mean", "sum"))] = "mean"
    mask_rate: Annotated[float, LogUniform(0.1, 100.0)] = 1.0
    schedule: Annotated[Schedule, Variant(get_args(Schedule))] = "constant"
    mask_schedule: Annotated[Schedule | None, Variant((None, *get_args(Schedule)))] = None
    combine: Annotated[Combine, Variant(("predictions", "masks", "guessed"))] = "predictions"
    layers: Annotated[tuple[str, ...], Variant(((), ("features",)))] = ()

    def __post_init__(self) -> None:
        for name in ("overlap", "sparsity", "mask_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"dmg.{name}={getattr(self, name):g}: must not be below 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Attach the masks."""
        device = next(model.parameters()).device
        x = torch.zeros(1, *task.shape, device=device)
        masked = MaskedNetwork(model, x, task.sources, layers=self.layers, combine=self.combine)
        return Learner(masked.to(device), task, lr_multipliers={"logits": self.mask_rate})

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Cross-entropy through sampled masks, plus the penalties on the masks."""
        pooled, model = pool(batches), cast(MaskedNetwork, learner.model)
        loss = F.cross_entropy(model(pooled.x, pooled.domain), pooled.y)
        p = model.probabilities()
        overlap, kept = self._overlap(p), torch.cat(p, dim=1)
        loss = loss + self.overlap * overlap + self.sparsity * kept.sum()
        if model.guess is not None:
            loss = loss + F.cross_entropy(model.pop_domain_logits(), pooled.domain)
        logs = {"overlap": overlap.detach(), "kept": kept.detach().mean()}
        if len(model.domains) > 1:
            names = (f"iou {layer}" for layer in model.layers)
            logs |= zip(names, (hard_overlap(layer).mean() for layer in p), strict=True)
        return loss, logs

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Set the learning rates of the schedule, then descend."""
        schedules = self.schedule, self.mask_schedule or self.schedule
        if schedules != ("constant", "constant"):
            learner.scale_lr(
                *(_lr_factor(name, learner.step, learner.task.steps) for name in schedules)
            )
        return super().update(learner, batches)

    def _overlap(self, p: Sequence[Tensor]) -> Tensor:
        """Overlap of the masks over all pairs of domains, summed over the layers."""
        if len(p[0]) < 2:
            return p[0].new_zeros(())
        if self.pairs == "sum":
            return torch.stack([soft_overlap(layer, smooth=0.0).sum() for layer in p]).sum()
        return torch.stack([soft_overlap(layer).mean() for layer in p]).sum()


def _lr_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Factor of the learning rate at a step."""
    if schedule == "exponential":
        return EXPONENTIAL_END ** (step / steps)
    return (1 + GAMMA * step) ** -POWER if schedule == "inverse" else 1.0
