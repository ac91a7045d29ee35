"""What every network is: features, followed by one linear head."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """Features and a linear head; `width` is the number of features.

    With `freeze_bn`, BatchNorm layers always stay in evaluation mode.
    """

    def __init__(
        self, features: nn.Module, width: int, classes: int, *, freeze_bn: bool = False
    ) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)
        self.width = width
        self.freeze_bn = freeze_bn

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.features(x))

    def train(self, mode: bool = True) -> "Classifier":  # noqa: FBT001, FBT002  torch's signature
        """Set training or evaluation mode; frozen BatchNorm layers stay in evaluation mode."""
        super().train(mode)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self
