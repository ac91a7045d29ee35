"""TRM: a head that was fitted to one domain does well on the others (Xu & Jaakkola, 2021).

    h_d   linear probe of domain d, fitted by 30 steps of SGD at rate 0.1 on its features
    L_Q   = Σ_{i≠Q} α_Qi CE(h_Q on domain i),   v₀ = ∇_W L_Q,   v_j+1 = v_j - H_Q v_j
    u     = v₀ + … + v₁₀,   ended early if an entry exceeds 10
    loss  = mean cross-entropy over the pooled batch
            + mean_Q [L_Q - transfer · u · ∇_W CE(h_Q on domain Q)]
    α_Qi  ← α_Qi exp(eta · α_Qi CE(h_Q on domain i)),   each row normalized before use

W is the weight of probe Q without its bias, H_Q the Hessian of its loss on its own domain, and u a
constant: u approximates H⁻¹ v₀, and the term follows how the probe itself would change. During the
warm-up it is ERM. With `from_head`, probes start from the head's weight in every step.

Differs from the paper: nothing. Differs from DomainBed: the sum begins with v₀ (its code counts v₁
twice, because v₀ is overwritten), the gradient of L_Q has the α of its value, and snapshots contain
the probes. The warm-up is a share of the run; its 200 of 5,000 steps are 0.04. One source domain is
refused.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.head_derivatives import with_bias
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method, origins

__all__ = ["TRM"]

PROBE_STEPS, PROBE_LR, NEUMANN_TERMS, LARGEST = 30, 0.1, 10, 10.0


@dataclass(frozen=True)
class TRM(Method):
    """Transfer risk minimization; `warmup` is a share of the steps."""

    transfer: Annotated[float, LogUniform(1e-5, 1.0)] = 1e-4
    warmup: Annotated[float, Uniform(0.0, 0.5)] = 0.04
    eta: Annotated[float, LogUniform(1e-3, 0.1)] = 0.01
    from_head: Annotated[bool, Variant((False, True))] = False

    min_domains = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["transfer", "eta"], shares=["warmup"])

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the probes, which no optimizer trains, and the weights of pairs of domains."""
        model, n = require_classifier(model, self.name), len(task.sources)
        probes = nn.ModuleList([nn.Linear(model.width, len(task.classes)) for _ in range(n)])
        learner = Learner(model, task, {"probe": probes}, frozen=["probe"])
        learner.memory["alpha"] = 1 - torch.eye(n, device=model.head.weight.device)
        return learner

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss, and after the warm-up the mean transfer term."""
        outputs = forward(learner, batches)
        risk = outputs.risk
        if learner.step < round(self.warmup * learner.task.steps):
            return risk, {"risk": risk.detach()}
        term = self.transfer_term(learner, outputs)
        return risk + term, {"risk": risk.detach(), "transfer": term.detach()}

    def transfer_term(self, learner: Learner, outputs: Outputs) -> Tensor:
        """Mean of the terms of all domains; probes and weights of pairs are updated."""
        drawn, features = origins(outputs.batches), outputs.features
        rows = learner.memory["alpha"].to(features)
        alpha = rows[drawn][:, drawn]
        alpha = alpha / alpha.sum(dim=1, keepdim=True)
        # Row Q of a matrix has the weights of all samples in the mean of domain Q.
        shares = _shares(outputs)
        probes = self.fit_probes(learner, outputs, shares)
        logits = with_bias(features) @ probes.mT
        losses = -logits.log_softmax(dim=2)[:, torch.arange(len(features)), outputs.y]
        p = logits.softmax(dim=2)
        slopes = p - F.one_hot(outputs.y, p.shape[2])
        with torch.no_grad():
            first = ((alpha @ shares)[..., None] * slopes).mT @ features
            u = _neumann_sum(features, p, shares, first)
        grown = alpha * (self.eta * alpha * (losses.detach() @ shares.T)).exp()
        learner.memory["alpha"] = rows.index_put((drawn[:, None], drawn), grown)
        own = (shares[..., None] * slopes).mT @ features
        terms = ((alpha @ shares) * losses).sum(dim=1) - self.transfer * (u * own).sum(dim=(1, 2))
        return terms.mean()

    @torch.no_grad()
    def fit_probes(self, learner: Learner, outputs: Outputs, shares: Tensor) -> Tensor:
        """Fit the probe of each drawn domain; returns matrices whose last column is the bias."""
        drawn, probes = origins(outputs.batches), list(learner.parts["probe"].children())
        every = torch.stack([_matrix(probe) for probe in probes])
        matrices, inputs = every[drawn], with_bias(outputs.features)
        labels = F.one_hot(outputs.y, every.shape[1])
        if self.from_head:
            matrices[:, :, :-1] = require_classifier(learner.model, self.name).head.weight
        for _ in range(PROBE_STEPS):
            slopes = (inputs @ matrices.mT).softmax(dim=2) - labels
            matrices = matrices - PROBE_LR * ((shares[..., None] * slopes).mT @ inputs)
        for probe, matrix in zip(probes, every.index_copy(0, drawn, matrices), strict=True):
            _matrix(probe, matrix)
        return matrices


def _shares(outputs: Outputs) -> Tensor:
    """Matrix of domains × samples whose product with values of samples is each domain's mean."""
    sizes = [len(batch.y) for batch in outputs.batches]
    blocks = [outputs.features.new_full((1, size), 1 / size) for size in sizes]
    return torch.block_diag(*blocks)


def _matrix(probe: nn.Module, matrix: Tensor | None = None) -> Tensor:
    """Weight and bias of a probe as one matrix, whose last column is the bias; or set them."""
    weight, bias = probe.parameters()
    if matrix is not None:
        weight.copy_(matrix[:, :-1])
        bias.copy_(matrix[:, -1])
    return torch.cat([weight, bias[:, None]], dim=1)


def _neumann_sum(inputs: Tensor, p: Tensor, shares: Tensor, first: Tensor) -> Tensor:
    """Partial sums of the Neumann series of H⁻¹ times vectors; a sum ends when it is large."""
    total = term = first
    small = torch.ones(len(first), 1, 1, dtype=torch.bool, device=first.device)
    for _ in range(NEUMANN_TERMS):
        moved = inputs @ term.mT
        curved = p * (moved - (p * moved).sum(dim=2, keepdim=True))
        term = term - (shares[..., None] * curved).mT @ inputs
        total = torch.where(small, total + term, total)
        small = small & (total.abs().amax(dim=(1, 2), keepdim=True) <= LARGEST)
    return total
