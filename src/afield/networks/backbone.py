"""Backbones by name. Every network is a `Classifier`: features, followed by one linear head.

    linear                      the inputs themselves, so that the head is a linear model of them
    bag:                        for texts: TF-IDF vectors of words and characters, and a linear head
    small:cnn, small:mlp        for small images, for arrays
    small:table                 for tables: small:mlp with dropout
    small:audio                 for log-mel features: three convolutions, mean and std over time
    small:irm_mlp               the IRM paper's network: two hidden layers of 390 units
    small:lenet                 CrossGrad's network: three 5 × 5 convolutions, two hidden layers
    small:mnist_cnn             DomainBed's network: four 3 × 3 convolutions, pooled to one pixel
    small:ccsa                  Motiian's network: two 3 × 3 convolutions, two hidden layers
    small:keyword_cnn           Sainath and Parada's network for spoken words
    small:resnet_2block         a ResNet of two blocks, as in CrossGrad
    small:resnet18, resnet34    ResNets with a 3 × 3 stem, for images of about 32 pixels
    small:vit                   a transformer: four blocks on 16 to 64 patches
    small:text                  for texts: three convolutions over bytes
    timm:NAME                   any network of timm, e.g. timm:resnet50
    torchvision:NAME            any classifier of torchvision, e.g. torchvision:alexnet
    clip:MODEL/TAG              any image encoder of open_clip, e.g. clip:ViT-B-32/openai
    hf:FOLDER, hf:OWNER/NAME    a text encoder of transformers, in a folder or on the hub

The part before the colon is a family, which is a file in `backbones/`. Networks of the last four
families start from pretrained weights (from the hub or from a file) or from random weights. With
pretrained weights, BatchNorm layers keep the statistics that come with them, as is customary in
the field. The head is new, except for CLIP with class names: there the names define the head, and
the head is frozen.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from afield import own_code, registry
from afield.errors import AfieldError, DataError, SpecError, UnknownNameError
from afield.tensors import weights_digest


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


Shape = tuple[int, ...]
# The value of `weights` that stands for the family's own download.
HUB = "hub"
# What libraries raise for inputs or weights that do not fit, or if a package is missing.
BUILD_ERRORS = (RuntimeError, AssertionError, TypeError, ValueError, ImportError, IndexError)


@dataclass(frozen=True)
class Form:
    """Images that a network expects: side in pixels, mean and standard deviation of 0…1 values."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Backbone:
    """A network before it is built. A subclass is a family; its file name is the family's name.

    A family overrides `check` and `build`, and the other methods if its networks are pretrained.

    Attributes
    ----------
    name
        Full name, ``FAMILY:MODEL``.
    patterns
        Names that a user can write, for hints.
    zero_shot
        Whether class names define the head, so that pretrained networks need no fitted head.
    fine_tuning_settings
        Training settings that replace a dataset's defaults when pretrained weights are fine-tuned.
    usual_settings
        Training settings that replace a dataset's defaults whenever the network is used.
    """

    name: str

    patterns: ClassVar[tuple[str, ...]] = ()
    zero_shot: ClassVar[bool] = False
    fine_tuning_settings: ClassVar[Mapping[str, Any]] = {}
    usual_settings: ClassVar[Mapping[str, Any]] = {}

    @property
    def model(self) -> str:
        """Name within the family."""
        return self.name.partition(":")[2]

    @property
    def package(self) -> str:
        """Distribution that defines the network; records keep its version. Empty means afield."""
        return ""

    @property
    def takes_text(self) -> bool:
        """Whether the network takes token ids of texts."""
        return False

    @property
    def tokenizer(self) -> str:
        """The file of the tokenizer for its texts, or `NGRAMS`; empty: bytes are tokens."""
        return ""

    @property
    def usual_tokens(self) -> int:
        """The number of tokens at which texts are cut by default."""
        return 512

    def check(self) -> None:
        """Raise `UnknownNameError` if the family has no such model."""
        raise NotImplementedError(f"{type(self).__name__} does not override check")

    def input_form(self) -> Form | None:
        """Images that the network expects, None if any; checks the name first."""
        self.check()
        return None

    def has_pretrained_weights(self) -> bool:
        """Whether the hub has weights for the network."""
        return False

    def is_pretrained(self) -> bool:
        """Whether the network usually starts from pretrained weights; checks the name first."""
        is_encoder = self.takes_text and self.has_pretrained_weights()
        return self.input_form() is not None or is_encoder

    def tagged_name(self) -> str:
        """Full name including the tag of its hub weights: a library may change the default tag."""
        return self.name

    def start_digest(self, weights: str) -> str:
        """Digest of the files that the network starts from; empty if there are none."""
        return weights_digest(weights) if weights not in ("", HUB) else ""

    def check_size(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise an error if a file asks for a network far larger than one with these tensors."""

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """Build the features for inputs of this shape, and a head if class names define one.

        Parameters
        ----------
        shape
            Shape of a sample.
        weights
            `HUB`, a file, or empty for random weights.
        class_names
            May be empty. A family without text encoder ignores them.

        Returns
        -------
        tuple
            The features, and a tensor of classes × features or None for a new head.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override build")

    def require_images(self, shape: Shape) -> None:
        """Raise `SpecError` unless samples of this shape are images."""
        if len(shape) != 3:
            raise SpecError(
                f"{self.name} takes images, not samples of shape {shape}; use small:mlp"
            )

    def require_tokens(self, shape: Shape) -> None:
        """Raise `SpecError` unless samples of this shape can be texts."""
        if len(shape) != 1:
            raise SpecError(f"{self.name} takes texts, not samples of shape {shape}")

    def unknown(self, choices: Sequence[str]) -> UnknownNameError:
        """Error for a model that is not among the family's full names."""
        return _unknown(self.name, choices)


class WholeNetwork(Backbone, ABC):
    """A network that comes with its own head, so it needs the number of classes."""

    @abstractmethod
    def classifier(self, shape: Shape, classes: int, *, freeze_bn: bool) -> Classifier:
        """Build the network for inputs of this shape."""


def find_backbone(name: str) -> Backbone:
    """Return the backbone of a name; the name's family must exist, its model need not.

    >>> find_backbone("small:cnn").model
    'cnn'
    """
    family, colon, _ = name.partition(":")
    try:
        kind: type[Backbone] | None = registry.find("backbones", family)
    except UnknownNameError:
        kind = None
    # A family of one network, such as linear, has no colon in its name.
    if kind is None or not (colon or name in kind.patterns or name in own_code.names("backbones")):
        families = [registry.find("backbones", other) for other in registry.names("backbones")]
        raise _unknown(name, [pattern for other in families for pattern in other.patterns])
    return kind(name)


def network(
    name: str,
    shape: Shape,
    classes: int,
    *,
    weights: str = "",
    freeze_bn: bool = False,
    class_names: Sequence[str] = (),
) -> Classifier:
    """Build a network for inputs of this shape.

    Parameters
    ----------
    name, shape, classes
        Backbone, shape of a sample (without the batch dimension), and number of outputs.
    weights
        Where the features start: ``hub``, a file (safetensors, or torch weights), or empty for
        random weights.
    freeze_bn
        Whether BatchNorm layers keep their statistics.
    class_names
        Names of the classes, or `Prompts` with sentences as well. For CLIP they define the head,
        which is then frozen; other families ignore them and start with a random head.
    """
    backbone = find_backbone(name)
    backbone.check()
    if isinstance(backbone, WholeNetwork):
        with _explain_errors(name, shape, weights):
            return backbone.classifier(shape, classes, freeze_bn=freeze_bn)
    with _explain_errors(name, shape, weights):
        features, head = backbone.build(shape, weights=weights, class_names=class_names)
    net = Classifier(features, _feature_count(name, features, shape), classes, freeze_bn=freeze_bn)
    if head is not None:
        net.head.load_state_dict({"weight": head, "bias": torch.zeros(classes)})
        net.head.requires_grad_(requires_grad=False)
    if len(shape) == 3:
        return net.to(memory_format=torch.channels_last)
    return net


def _unknown(name: str, choices: Sequence[str]) -> UnknownNameError:
    return UnknownNameError(f"no backbone {name!r}; {registry.hint(name, choices)[:300]}")


@contextmanager
def _explain_errors(name: str, shape: Shape, weights: str) -> Iterator[None]:
    """Turn a library's exceptions into errors that say what to do instead."""
    try:
        yield
    except AfieldError:
        raise
    except OSError as error:
        raise _download_error(name, error) from None
    except BUILD_ERRORS as error:
        raise _build_error(name, shape, error, weights) from None


def _feature_count(name: str, features: nn.Module, shape: Shape) -> int:
    """Number of features of a sample; a sample that does not fit fails here, before training."""
    features.eval()
    try:
        with torch.no_grad():
            output = features(torch.zeros(1, *shape))
    except BUILD_ERRORS as error:
        raise _build_error(name, shape, error) from None
    if output.ndim != 2 or not output.numel():
        raise SpecError(f"{name} does not give one row of features per image; use another network")
    features.train()
    return output.shape[1]


def _download_error(name: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0][:100]
    return DataError(
        f"{name}: its weights could not be fetched from the hub ({reason}); give --weights FILE, "
        "or --weights none to start from random weights"
    )


def _build_error(name: str, shape: Shape, error: Exception, weights: str = "") -> AfieldError:
    reason = " ".join(str(error).split())[:160]
    if weights not in ("", HUB) and "state_dict" in reason:
        return DataError(
            f"{weights}: not the weights of {name} ({reason}); give weights of the same "
            "architecture"
        )
    instead = "use another --set size or network" + ", or --weights none" * (weights == HUB)
    return SpecError(f"{name}: cannot be built for inputs of shape {shape} ({reason}); {instead}")
