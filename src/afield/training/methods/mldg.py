"""MLDG: a step on one domain should improve another domain (Li et al., 2018).

    grad = Σ over pairs (i, j) of (∇Lᵢ(Θ) + beta · ∇Lⱼ(Θ′ᵢ)) / n,   Θ′ᵢ = Θ after a step on domain i

Pairs are neighbors in a random ring of the domains, so every domain is used once for training and
once for testing. `tests` > 0 is DomainBed's pairing since 2022: `tests` domains of a random order
are for testing, and each of the others is paired with one of them. With `second_order` the
derivative goes through the step on domain i, as in the paper; this requires a plain gradient step
(`inner=sgd`).

Differs from the paper: pairs instead of one split of the domains, and first order by default.
Differs from DomainBed: ring pairs by default, as in its code before 2022-04 and in SWAD's code;
with its present two test domains, one of three source domains is unused in each step. Unfrozen
BatchNorm statistics follow both passes of a pair; DomainBed's second pass is on a copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.tensors import add, assign, clone_tensors, set_gradients
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["MLDG"]


@dataclass(frozen=True)
class MLDG(Method):
    """Meta-learning for domain generalization.

    `inner` selects the step on domain i: a step of a new `optimizer` with the run's settings, or
    plain `sgd`. `inner_rate` is its learning rate as a multiple of the run's.
    """

    beta: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    inner_rate: Annotated[float, LogUniform(0.1, 10.0)] = 1.0
    inner: Annotated[Literal["optimizer", "sgd"], Variant(("sgd", "optimizer"))] = "optimizer"
    tests: Annotated[int, Variant((0, 1, 2))] = 0
    second_order: Annotated[bool, Variant((False, True))] = False

    def __post_init__(self) -> None:
        if self.second_order and self.inner != "sgd":
            raise SpecError("mldg.second_order needs mldg.inner=sgd")
        for name in ("tests", "beta", "inner_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"mldg.{name}={getattr(self, name):g}: must not be below 0")

    def check(self, domains: int) -> None:
        """Raise `SpecError` if there are too few domains for a pair."""
        least = max(2, self.tests + 1)
        if domains < least:
            instead = "; use mldg.tests=0" if domains > 1 else ""
            raise SpecError(
                f"mldg needs {least} or more source domains per step to make a pair, not {domains}"
                + (f" (mldg.tests={self.tests})" if self.tests else "")
                + instead
            )

    @property
    def differentiates_gradients(self) -> bool:
        """Whether the step in between is differentiated."""
        return self.second_order

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Sum the gradients of all pairs, then step the optimizer."""
        self.check(len(batches))
        parameters = learner.parameters()
        total = learner.zero_gradients()
        pair_gradient = self._second_order if self.second_order else self._first_order
        losses = []
        for i, j in self.pairs(torch.randperm(len(batches)).tolist()):
            loss, gradient = pair_gradient(learner, parameters, batches[i], batches[j])
            add(total, gradient, times=1 / len(batches))
            losses.append(loss / len(batches))
        learner.apply_gradients(total)
        return {"loss": torch.stack(losses).sum()}

    def pairs(self, order: list[int]) -> list[tuple[int, int]]:
        """Pairs of a training domain and its test domain, for domains in this order."""
        if not self.tests:
            return list(zip(order, order[1:] + order[:1], strict=True))
        trained, tested = order[: -self.tests], order[-self.tests :]
        return list(zip(trained, cycle(tested), strict=False))

    def _first_order(
        self, learner: Learner, parameters: Sequence[Tensor], train: Batch, test: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """Loss of a pair and its gradient, without the derivative of the step in between."""
        start, lr = clone_tensors(parameters), self.inner_rate * learner.lr
        before, first = _loss_and_gradient(learner, parameters, train)
        if self.inner == "sgd":
            add(parameters, first, times=-lr)
        else:
            set_gradients(parameters, first)
            learner.task.optimizer(parameters, lr=lr).step()
        after, second = _loss_and_gradient(learner, parameters, test)
        assign(parameters, start)
        add(first, second, times=self.beta)
        return before + self.beta * after, first

    def _second_order(
        self, learner: Learner, parameters: Sequence[Tensor], train: Batch, test: Batch
    ) -> tuple[Tensor, list[Tensor]]:
        """Loss of a pair and its gradient, including the derivative of the step in between."""
        model, lr = learner.model, self.inner_rate * learner.lr
        names = [n for n, p in model.named_parameters() if p.requires_grad]
        # The faster implementations of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            before = F.cross_entropy(model(train.x), train.y)
            step = learner.gradients(before, parameters, create_graph=True)
            moved = torch._foreach_add(list(parameters), step, alpha=-lr)
            logits = functional_call(model, dict(zip(names, moved, strict=True)), (test.x,))
            loss = before + self.beta * F.cross_entropy(logits, test.y)
            gradient = learner.gradients(loss, parameters)
        return loss.detach(), gradient


def _loss_and_gradient(
    learner: Learner, parameters: Sequence[Tensor], batch: Batch
) -> tuple[Tensor, list[Tensor]]:
    """Loss of a batch and its gradient."""
    loss = F.cross_entropy(learner.model(batch.x), batch.y)
    return loss.detach(), learner.gradients(loss, parameters)
