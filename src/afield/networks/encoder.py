"""A frozen network that turns images or texts into features, and how its inputs are prepared."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afield.compute import preserve_torch_state
from afield.data.augmentation import Resize
from afield.data.samples import Prepare, trim_padding
from afield.data.scaling import Scaling
from afield.errors import DataError, SpecError
from afield.networks.backbone import HUB, Form, find_backbone, network
from afield.progress import progress
from afield.seeds import derive_seed

__all__ = ["Encoder", "state_digest"]


@dataclass(frozen=True)
class Encoder:
    """A network without its head.

    Attributes
    ----------
    backbone, weights, start
        The network, where its weights come from, and the digest of their file.
    size
        The side in pixels of the images that it sees; 0 means their own.
    kind, stored
        The kind of the samples (see `Modality`) and their shape as decoded.
    digest
        The digest of all its tensors; empty before it is built.
    tokens
        The number of tokens at which texts are cut; 0 for images.
    """

    backbone: str
    weights: str = ""
    start: str = ""
    size: int = 0
    kind: str = ""
    stored: tuple[int, ...] = ()
    digest: str = ""
    tokens: int = 0

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, Any]) -> "Encoder | None":
        """The network that computed the features of a file; None if the file does not say."""
        if not provenance.get("digest") or not provenance.get("stored"):
            return None
        try:
            # Features of earlier versions are those of images, and do not mention tokens.
            values = {name: {"tokens": 0, **provenance}[name] for name in asdict(cls(""))}
            return cls(**{**values, "stored": tuple(int(n) for n in values["stored"])})
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def form(self) -> Form:
        """The images that the network expects; raises if it is not a pretrained one for images."""
        form = find_backbone(self.backbone).input_form()
        if form is None:
            raise SpecError(
                f"{self.backbone}: features are computed from images by a pretrained network; "
                "use, e.g., --backbone timm:resnet18"
            )
        return form

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample as the network sees it."""
        if self.tokens:
            return (self.tokens,)
        channels, side = self.stored[0], self.size or self.stored[-1]
        return channels, side, side

    def scaling(self, device: torch.device | None = None) -> Scaling:
        """Mean and spread of the pixels, which are from 0 to 255."""
        form = self.form
        return Scaling.for_images(
            form.mean, form.std, channels=self.stored[0], device=device or torch.device("cpu")
        )

    def prepare(self, device: torch.device) -> Prepare:
        """The function from samples as stored to the network's inputs; images in channels_last."""
        if self.tokens:
            return trim_padding
        return Resize(self.shape[-1], self.scaling(device))

    def build(self) -> nn.Module:
        """The network in evaluation mode; random weights come from a fixed seed."""
        weights = self.weights
        if self.start and find_backbone(self.backbone).start_digest(weights) != self.start:
            source = weights if weights not in ("", HUB) else self.backbone
            raise DataError(
                f"{source}: not the weights that computed the features; get that file again"
            )
        with progress(f"weights of {self.backbone}"), preserve_torch_state(cuda=False):
            torch.manual_seed(derive_seed("embedding", self.backbone))
            features = network(self.backbone, self.shape, 1, weights=weights).features
        if self.digest and state_digest(features) != self.digest:
            source = "the hub" if weights == HUB else Path(weights).name or "random numbers"
            raise DataError(
                f"{self.backbone}: the weights from {source} are not those that computed the "
                "features; run `afield embed` again"
            )
        return features.eval()


def state_digest(module: nn.Module) -> str:
    """Digest of the names and values of all tensors of a network."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
