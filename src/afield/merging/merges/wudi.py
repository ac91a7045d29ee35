"""WUDI: the delta that disturbs what each expert learned least (Cheng et al., 2025).

    loss(merged) = Σ_d ‖(merged - Δ_d) Δ_dᵀ‖² / ‖Δ_d‖²

It starts from the sum of the deltas and takes `steps` steps of Adam with the learning rate `lr`.
The rows of a delta stand for the inputs of its layer, so it needs no data.

It takes the most time of all merges: `steps` products of an m × n with an n × n matrix for each
matrix of the model. A device such as cuda helps.

Known failures: the loss does not have a unique minimum, and Adam moves every entry by at most about
`lr` a step, so the result depends on the size of the weights: deltas whose entries are much larger
than `steps` · `lr` stay near their sum. Other settings are then needed. Around a minimum, Adam
circles within about `lr`.

Differs from the authors' code: the gradient is computed from Σ_d Δ_dᵀΔ_d / ‖Δ_d‖², in float64,
because Adam would follow the rounding of a small gradient in float32; experts that did not change a
matrix are left out (theirs: NaN); all matrices are merged and all else is averaged (theirs: all but
the matrices of attention and MLP blocks stay as in the base).
"""

from typing import Annotated

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import LogUniform
from afield.merging.scopes import scope

__all__ = ["wudi"]


@scope("matrix")
def wudi(
    deltas: Tensor,
    *,
    steps: Annotated[int, LogUniform(100, 1000)] = 300,
    lr: Annotated[float, LogUniform(1e-6, 1e-4)] = 1e-5,
) -> Tensor:
    """Sum of the deltas, moved to where it disturbs none of them."""
    if steps < 0 or not lr > 0:
        raise MergeError(f"steps={steps}, lr={lr}: must be at least 0, and above 0")
    exact = deltas.double()
    merged = exact.sum(dim=0)
    squares = exact.square().sum(dim=(1, 2))
    exact, squares = exact[squares > 0], squares[squares > 0]
    if not len(exact):
        return merged.to(deltas.dtype)
    # The gradient of the loss is 2 (merged · gram - target).
    weighted = exact / squares[:, None, None]
    gram = (exact.mT @ weighted).sum(dim=0)
    target = (weighted @ exact.mT @ exact).sum(dim=0)
    optimizer = torch.optim.Adam([merged], lr=lr)
    for _ in range(steps):
        merged.grad = 2 * (merged @ gram - target)
        optimizer.step()
    return merged.to(deltas.dtype)
