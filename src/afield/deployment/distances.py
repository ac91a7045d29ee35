"""How far a sample is from the training data, in the features before the head.

    d(f) = min over classes c of |W (f - μ_c)| / √width,      Wᵀ W = Σ⁻¹

μ_c is the mean of a class over all sources. Σ is the covariance within classes, with Ledoit-Wolf
shrinkage, so that it can be inverted if there are fewer samples than features. Training data are
typically at a distance of about 1.

Σ includes how the sources differ from each other: a step counts little in a direction in which they
differ anyway, and much in a direction in which they are alike. The distance to the nearest
neighbors does not have this property, and requires storing the samples themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

# The name of this distance among the scores of strangeness.
MAHALANOBIS = "mahalanobis"


@dataclass(frozen=True)
class Distances:
    """Whitened means of the classes, and the matrix W that whitens features."""

    centers: Tensor
    whitening: Tensor

    @classmethod
    def fit(cls, features: Tensor, y: Tensor) -> "Distances":
        """Fit the distance to samples with these features and classes."""
        values = features.double().cpu()
        classes = y.cpu().unique()
        centers = torch.stack([values[y.cpu() == label].mean(dim=0) for label in classes])
        # Scaled, so that shrinkage does not depend on units; constant features are not scaled.
        residual = values - centers[torch.searchsorted(classes, y.cpu())]
        spread = residual.square().mean(dim=0).sqrt()
        spread = torch.where(spread > 0, spread, 1.0)
        covariance, _ = ledoit_wolf((residual / spread).numpy(), assume_centered=True)
        shrunk = torch.from_numpy(covariance) + 1e-6 * torch.eye(len(spread)).double()
        # With L Lᵀ = Σ, |L⁻¹ f|² = fᵀ Σ⁻¹ f.
        lower = torch.linalg.cholesky(shrunk)
        inverse = torch.linalg.solve_triangular(lower, torch.eye(len(lower)).double(), upper=False)
        whitening = inverse / spread
        return cls((centers @ whitening.T).float(), whitening.float())

    @property
    def width(self) -> int:
        """The number of features."""
        return self.whitening.shape[0]

    def __call__(self, features: Tensor) -> Tensor:
        """The distance of every sample."""
        white = features.float() @ self.whitening.T
        # The faster mode loses digits, and other ones in every batch.
        exact = "donot_use_mm_for_euclid_dist"
        nearest: Tensor = torch.cdist(white, self.centers, compute_mode=exact).amin(dim=1)
        return nearest / self.width**0.5

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to store in a file."""
        return {"centres": self.centers.contiguous(), "whitening": self.whitening.contiguous()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Distances":
        """Restore from what `tensors` returned."""
        return cls(tensors["centres"], tensors["whitening"])
