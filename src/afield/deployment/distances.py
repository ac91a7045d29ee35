"""How far a sample lies from what was trained on, in the features before the head.

    d(f) = min over classes c of |W (f - μ_c)| / √width,      Wᵀ W = Σ⁻¹

μ_c is the mean of a class over all sources, Σ the covariance within classes, shrunk as Ledoit and
Wolf do, so that it can be inverted where there are fewer samples than features. About 1 is usual
for what was trained on. Σ has in it how the sources differ from each other: a step in a direction
in which they differ anyway counts little, one in a direction in which they are alike counts much.
That is why it is this distance and not that to the nearest neighbours, which would also have to
keep the samples themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

__all__ = ["Distances"]


@dataclass(frozen=True)
class Distances:
    """Whitened means of the classes, and what whitens features."""

    centres: Tensor
    whitening: Tensor

    @classmethod
    def fitted(cls, features: Tensor, y: Tensor) -> "Distances":
        """The distances from samples with these features and classes."""
        values = features.double().cpu()
        present = y.cpu().unique()
        centres = torch.stack([values[y.cpu() == label].mean(dim=0) for label in present])
        place = torch.searchsorted(present, y.cpu())
        # Scaled, so that shrinking depends on no unit; a feature that never varies stays as it is.
        residual = values - centres[place]
        spread = residual.square().mean(dim=0).sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        covariance, _ = ledoit_wolf((residual / spread).numpy(), assume_centered=True)
        shrunk = torch.from_numpy(covariance) + 1e-6 * torch.eye(len(spread)).double()
        # With L Lᵀ = Σ, |L⁻¹ f|² = fᵀ Σ⁻¹ f.
        lower = torch.linalg.cholesky(shrunk)
        inverse = torch.linalg.solve_triangular(lower, torch.eye(len(lower)).double(), upper=False)
        whitening = inverse / spread
        return cls((centres @ whitening.T).float(), whitening.float())

    @property
    def width(self) -> int:
        """The number of features."""
        return self.whitening.shape[0]

    def __call__(self, features: Tensor) -> Tensor:
        """The distance of every sample."""
        white = features.float() @ self.whitening.T
        # The quick way loses digits, others in every batch.
        exact = "donot_use_mm_for_euclid_dist"
        found: Tensor = torch.cdist(white, self.centres, compute_mode=exact).amin(dim=1)
        return found / self.width**0.5

    def tensors(self) -> dict[str, Tensor]:
        """All of it, to be kept in a file."""
        return {"centres": self.centres.contiguous(), "whitening": self.whitening.contiguous()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Distances":
        """What `tensors` gave."""
        return cls(tensors["centres"], tensors["whitening"])
