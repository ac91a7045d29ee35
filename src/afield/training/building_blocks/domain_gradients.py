"""Risk and gradient of each source domain, from a forward and a backward pass of its own.

All passes together cost as much as one pass over the pooled batch. Gradients of all domains are
held at once; those of one parameter are stacked when they are used, which saves a copy of all.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from afield.training.learner import Learner
from afield.training.method import Batches


def domain_gradients(
    learner: Learner, batches: Batches, *, create_graph: bool = False
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Risks of the domains, and for each trained parameter the gradients of all domains.

    With `create_graph`, risks and gradients can be differentiated again.
    """
    risks, gradients = [], []
    with _differentiable_attention() if create_graph else nullcontext():
        for batch in batches:
            risk = F.cross_entropy(learner.model(batch.x), batch.y)
            gradients.append(learner.gradients(risk, create_graph=create_graph))
            risks.append(risk)
    return torch.stack(risks), list(zip(*gradients, strict=True))


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of tensors; for gradients of a whole network, torch's sum of a stack is much slower."""
    first, *others = tensors
    total = first + others[0] if others else first.clone()
    for other in others[1:]:
        total.add_(other)
    return total


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """Mean of tensors."""
    return sum_of(tensors).div_(len(tensors))


def sign_agreement(gradients: Sequence[Tensor]) -> Tensor:
    """Magnitude of the mean sign of the domains' gradients: 1 where all agree."""
    return mean_of([each.sign() for each in gradients]).abs_()


def _differentiable_attention() -> AbstractContextManager[None]:
    """Use the implementation of attention that has a second derivative."""
    return sdpa_kernel(SDPBackend.MATH)
