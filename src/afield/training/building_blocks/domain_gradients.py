"""Risk and gradient of each source domain, from a forward and a backward pass of its own.

All passes together cost as much as one pass over the pooled batch. Gradients of all domains are
held at once.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from afield.training.method import Batches, Learner

__all__ = ["domain_gradients"]


def domain_gradients(
    learner: Learner, batches: Batches, *, create_graph: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Risks of the domains, and for each trained parameter the gradients of all domains, stacked.

    With `create_graph`, risks and gradients can be differentiated again.
    """
    risks, gradients = [], []
    with _differentiable_attention() if create_graph else nullcontext():
        for batch in batches:
            risk = F.cross_entropy(learner.model(batch.x), batch.y)
            gradients.append(learner.gradients(risk, create_graph=create_graph))
            risks.append(risk)
    stacked = [torch.stack(column) for column in zip(*gradients, strict=True)]
    return torch.stack(risks), stacked


def _differentiable_attention() -> AbstractContextManager[None]:
    """Use the implementation of attention that has a second derivative."""
    return sdpa_kernel(SDPBackend.MATH)
