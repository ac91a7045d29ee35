"""Scale losses up for backward passes in float16, as torch's GradScaler does.

Gradients of activations below 6e-8 would be zero in float16. So a loss is multiplied by a scale
before the backward pass, and the gradients of the weights, which are in float32, are divided by it
at once: methods that read gradients never see the scale. If a gradient is not finite, the step is
left out and the scale is halved; after many finite steps it is doubled.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["LossScale"]

# As in torch.amp.GradScaler: the first scale, and the number of finite steps until it is doubled.
FIRST_SCALE, STEPS_UNTIL_DOUBLED = 2.0**16, 2000


class LossScale:
    """The scale of a loss, and the number of finite steps with it."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self.finite_steps = 0

    def gradients(
        self, loss: Tensor, tensors: Sequence[Tensor], *, create_graph: bool = False
    ) -> list[Tensor]:
        """Gradients of a loss with respect to tensors, without the scale."""
        scaled = torch.autograd.grad(
            self.scale * loss, tensors, create_graph=create_graph, materialize_grads=True
        )
        return [gradient / self.scale for gradient in scaled]

    def accumulate(self, loss: Tensor, leaves: Sequence[Tensor] | None = None) -> None:
        """Add the gradients of a loss to `grad` of the given leaves, or of all it depends on."""
        leaves = _leaves(loss) if leaves is None else leaves
        for leaf, gradient in zip(leaves, self.gradients(loss, leaves), strict=True):
            leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)

    def accepts(self, gradients: Iterable[Tensor | None]) -> bool:
        """Whether all gradients are finite, so that a step may use them; adapts the scale."""
        norms = torch._foreach_norm([gradient for gradient in gradients if gradient is not None])
        finite = bool(torch.stack(norms).isfinite().all()) if norms else True
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.finite_steps == STEPS_UNTIL_DOUBLED:
            self.scale, self.finite_steps = 2 * self.scale, 0
        return finite

    def state_dict(self) -> dict[str, float]:
        """The scale and the number of steps."""
        return {"scale": self.scale, "finite_steps": self.finite_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a saved state."""
        self.scale, self.finite_steps = state["scale"], int(state["finite_steps"])


def _leaves(loss: Tensor) -> list[Tensor]:
    """The tensors with gradients on which a loss depends, in a fixed order."""
    leaves, seen, waiting = [], set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves
