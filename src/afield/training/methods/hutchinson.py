"""Hutchinson: equal slopes and equal diagonals of the Hessian in all domains (Hemati et al., 2023).

    D = mean over draws z of z ⊙ (H z),   z of random signs;   its expectation is diag H
    loss = mean(risks) + mean_d [curvature · ‖D_d - D̄‖² + slope · ‖g_d - ḡ‖²]

g, H are gradient and Hessian in the head's weights, D̄ and ḡ (constants) those of the mean risk;
every domain and the mean have draws of their own. `draws=0` uses diag H itself, which for a linear
head is known in closed form: it is faster and has no noise. With both weights 0 it is ERM on the
mean of the risks; with one source domain that holds for `draws=0` only.

Differs from the paper, and from the authors' code: H z in closed form. The code searches
curvature and slope above 10 and 100, far from its defaults; here the ranges surround the defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import LogUniform, Variant
from afield.training.building_blocks.head_derivatives import hessian_diagonal, hessian_product
from afield.training.building_blocks.penalties import check_settings
from afield.training.methods.hgp import HGP

__all__ = ["Hutchinson"]


@dataclass(frozen=True)
class Hutchinson(HGP):
    """Diagonals of Hessians; `draws` is the number of random directions for each of them."""

    curvature: Annotated[float, LogUniform(1e-4, 1e-2)] = 1e-3
    draws: Annotated[int, Variant((0, 300))] = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, not_negative=["draws"])

    def z(self, count: int, slopes: Tensor) -> Tensor:
        """Random signs: `count` times the draws, a column for each weight and then each bias."""
        rows, columns = count * self.draws, slopes[0].numel()
        # Eight signs from each random number, because drawing takes most of the time.
        shape, places = (rows, -(-columns // 8), 1), torch.arange(8, device=slopes.device)
        drawn = torch.randint(256, shape, dtype=torch.uint8, device=slopes.device)
        bits = (drawn >> places.to(torch.uint8)) & 1
        return bits.flatten(1)[:, :columns].to(slopes) * 2 - 1

    def curvatures(
        self, domains: Sequence[tuple[Tensor, ...]], slopes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Diagonal of the Hessian of each domain's risk, and of the mean risk."""
        if not self.draws:
            own = torch.stack([hessian_diagonal(inputs, logits) for inputs, logits, _ in domains])
            return own, own.mean(dim=0)
        mean, *each = self._directions(1 + len(domains), slopes)
        pairs = zip(domains, each, strict=True)
        drawn = [_estimate(inputs, logits, signs) for (inputs, logits, _), signs in pairs]
        with torch.no_grad():
            middle = [_estimate(inputs, logits, mean) for inputs, logits, _ in domains]
        return torch.stack(drawn), torch.stack(middle).mean(dim=0)

    def _directions(self, count: int, slopes: Tensor) -> Sequence[Tensor]:
        """Draws in the form of the head: the bias of each class is its last column."""
        classes = slopes.shape[1]
        signs = self.z(count, slopes).to(slopes)
        weight, bias = signs.tensor_split([slopes[0].numel() - classes], dim=1)
        head = torch.cat([weight.unflatten(1, (classes, -1)), bias[..., None]], dim=2)
        return head.unflatten(0, (count, -1)).unbind()


def _estimate(inputs: Tensor, logits: Tensor, signs: Tensor) -> Tensor:
    return (signs * hessian_product(inputs, logits, signs)).mean(dim=0)
