"""Networks by name. Every backbone is a `Classifier`: features, then one linear head.

    small:cnn, small:mlp        for small pictures, for arrays
    small:lenet                 CrossGrad's: three 5 × 5 convolutions and two hidden layers
    small:mnist_cnn             DomainBed's: four 3 × 3 convolutions, pooled to one pixel
    small:vit                   a transformer: four blocks on 16 to 64 patches
    timm:NAME                   any network of timm, e.g. timm:resnet50
    torchvision:NAME            any classifier of torchvision, e.g. torchvision:alexnet
    clip:MODEL/TAG              any image encoder of open_clip, e.g. clip:ViT-B-32/openai

The latter three start from weights of the hub, of a file, or from random ones; with weights their
BatchNorm layers keep the statistics that came with these, as the field's protocol has it. Heads are
fresh, but that of a CLIP with names of classes is made of these, and frozen.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from afield.errors import AfieldError, DataError, SpecError, UnknownNameError
from afield.networks.backbones.clip import build_clip, clip_form, has_clip_weights, require_tag
from afield.networks.backbones.small import SMALL_BACKBONES, Shape, check_images
from afield.registry import hint
from afield.weights import check_complete, read_weights

__all__ = [
    "HUB",
    "Classifier",
    "Form",
    "has_pretrained_weights",
    "has_unfrozen_batchnorm",
    "input_form",
    "network",
    "tagged_name",
    "update_batchnorm",
]

HUB = "hub"
# What networks raise for inputs or weights that they cannot take, or packages that they lack.
BUILD_ERRORS = (RuntimeError, AssertionError, TypeError, ValueError, ImportError)
BACKBONE_PATTERNS = [*SMALL_BACKBONES, "timm:NAME", "torchvision:NAME", "clip:MODEL/TAG"]


@dataclass(frozen=True)
class Form:
    """The pictures that a network was made for: pixels a side, mean and deviation of 0…1."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Classifier(nn.Module):
    """Features and a linear head; `width` is the number of features.

    With `freeze_bn` the BatchNorm layers stay in evaluation mode, whatever mode is asked for.
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
        """Training or evaluation mode, but for frozen BatchNorm layers."""
        super().train(mode)
        if self.freeze_bn:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


def has_unfrozen_batchnorm(model: nn.Module) -> bool:
    """Whether there are BatchNorm layers that follow the data when the model trains."""
    before = model.training
    model.train()
    try:
        return any(_free(module) for module in model.modules())
    finally:
        model.train(before)


@torch.no_grad()
def update_batchnorm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Measure the statistics of BatchNorm layers that are not frozen, each batch alike.

    Averaged weights have none of their own: those of the trained model belong to other weights.
    """
    before = model.training
    model.train()
    layers: list[Any] = [module for module in model.modules() if _free(module)]
    rates = [layer.momentum for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            # None: the mean over all batches.
            layer.momentum = None
            layer.train()
        for x in batches:
            model(x)
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.momentum = rate
        model.train(before)


def _free(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats


def input_form(name: str) -> Form | None:
    """What the network was made for, if it was made for pictures of a certain form."""
    family, _, model = name.partition(":")
    if family == "timm":
        config = _timm_config(model)
        return Form(config.input_size[-1], tuple(config.mean), tuple(config.std))
    if family == "torchvision":
        usual = _torchvision_weights(model).transforms()
        return Form(usual.crop_size[0], tuple(usual.mean), tuple(usual.std))
    if family == "clip":
        return Form(*clip_form(model))
    if name not in SMALL_BACKBONES:
        raise UnknownNameError(f"no backbone {name!r}; {hint(name, BACKBONE_PATTERNS)}")
    return None


def has_pretrained_weights(name: str) -> bool:
    """Whether the hub has weights for the network."""
    family, _, model = name.partition(":")
    if family == "clip":
        return has_clip_weights(model)
    return family == "torchvision" or (family == "timm" and bool(_timm_config(model).has_weights))


def tagged_name(name: str) -> str:
    """The name with that of its weights on the hub: what is usual may change with timm."""
    family, _, model = name.partition(":")
    if family == "clip":
        require_tag(model)
    tag = _timm_config(model).tag if family == "timm" and "." not in model else ""
    return f"{name}.{tag}" if tag else name


def network(
    name: str,
    shape: Shape,
    classes: int,
    *,
    weights: str = "",
    freeze_bn: bool = False,
    class_names: Sequence[str] = (),
) -> Classifier:
    """A network for inputs of this shape (without the batch dimension).

    Parameters
    ----------
    name, shape, classes
        Which network, for which inputs, with how many outputs.
    weights
        Where its features start: ``hub``, a file (safetensors, or torch weights), or nothing for
        random ones.
    freeze_bn
        Whether BatchNorm layers keep their statistics.
    names
        Those of the classes: of a CLIP, the head is then made of them and does not train. Every
        other head is fresh.
    """
    input_form(name)
    head = None
    if name in SMALL_BACKBONES:
        if weights:
            raise SpecError(f"{name} starts from random weights; leave --weights {weights} out")
        features, width = SMALL_BACKBONES[name](shape)
    else:
        check_images(name, shape)
        with _told(name, shape, weights):
            features, head = _parts(name, shape, weights, class_names)
        width = _width(name, features, shape)
    found = Classifier(features, width, classes, freeze_bn=freeze_bn)
    if head is not None:
        found.head.load_state_dict({"weight": head, "bias": torch.zeros(classes)})
        found.head.requires_grad_(requires_grad=False)
    if len(shape) == 3:
        return found.to(memory_format=torch.channels_last)
    return found


def _parts(
    name: str, shape: Shape, weights: str, names: Sequence[str]
) -> tuple[nn.Module, Tensor | None]:
    """The features of a library's network, and its head if it has one for these classes."""
    family, _, model = name.partition(":")
    if family == "clip":
        hub = weights == HUB
        return build_clip(model, shape, "" if hub else weights, names, hub=hub)
    return (_timm if family == "timm" else _torchvision)(model, shape, weights), None


@contextmanager
def _told(name: str, shape: Shape, weights: str) -> Iterator[None]:
    """What a library raises, in our words."""
    try:
        yield
    except AfieldError:
        raise
    except OSError as error:
        raise _not_reached(name, error) from None
    except BUILD_ERRORS as error:
        raise _unfit(name, shape, error, weights) from None


def _timm_config(model: str) -> Any:
    from timm.models import get_pretrained_cfg, is_model, list_models

    if not is_model(model):
        name, known = f"timm:{model}", [f"timm:{each}" for each in list_models()]
        raise UnknownNameError(f"no backbone {name!r}; {hint(name, known)[:300]}")
    try:
        return get_pretrained_cfg(model, allow_unregistered=False)
    except RuntimeError as error:
        raise UnknownNameError(f"no backbone 'timm:{model}'; {error}") from None


def _timm(model: str, shape: Shape, weights: str) -> nn.Module:
    import timm

    # Not all networks of a fixed size take both sides of it.
    side = shape[1] if shape[1] == shape[2] else shape[1:]
    options: dict[str, Any] = {"img_size": side} if _timm_config(model).fixed_input_size else {}
    if weights not in ("", HUB):
        options["pretrained_cfg_overlay"] = {"state_dict": read_weights(weights)}
    net: nn.Module = timm.create_model(
        model, pretrained=bool(weights), num_classes=0, in_chans=shape[0], **options
    )
    if weights not in ("", HUB):
        check_complete(weights, net, options["pretrained_cfg_overlay"]["state_dict"])
    return net


def _torchvision_weights(model: str) -> Any:
    import torchvision
    from torchvision.models import get_model_weights, list_models

    name = f"torchvision:{model}"
    known = [f"torchvision:{each}" for each in list_models(module=torchvision.models)]
    if name not in known:
        raise UnknownNameError(f"no backbone {name!r}; {hint(name, known)[:300]}")
    return get_model_weights(model).DEFAULT


def _torchvision(model: str, shape: Shape, weights: str) -> nn.Module:
    from torchvision.models import get_model

    if shape[0] != 3:
        raise SpecError(f"torchvision:{model} takes pictures in colour, not {shape[0]} channel(s)")
    net = get_model(model, weights=_torchvision_weights(model) if weights == HUB else None)
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise SpecError(f"torchvision:{model} does not end in a linear layer; use another network")
    parent, _, own = linear[-1].rpartition(".")
    setattr(net.get_submodule(parent), own, nn.Identity())
    # GoogLeNet and Inception would give further outputs in training.
    net.aux_logits = False
    if weights not in ("", HUB):
        state = read_weights(weights)
        check_complete(weights, net, state)
        net.load_state_dict({key: state[key] for key in net.state_dict() if key in state})
    return net


def _width(name: str, net: nn.Module, shape: Shape) -> int:
    """The number of features of one picture: if none goes through, it is told before training."""
    net.eval()
    try:
        with torch.no_grad():
            found = net(torch.zeros(1, *shape))
    except BUILD_ERRORS as error:
        raise _unfit(name, shape, error) from None
    if found.ndim != 2 or not found.numel():
        raise SpecError(f"{name} gives no row of features for a picture; use another network")
    net.train()
    return found.shape[1]


def _not_reached(name: str, error: Exception) -> DataError:
    reason = str(error).partition("\n")[0][:100]
    return DataError(
        f"{name}: its weights could not be fetched from the hub ({reason}); give --weights FILE, "
        "or --weights none to start from random ones"
    )


def _unfit(name: str, shape: Shape, error: Exception, weights: str = "") -> AfieldError:
    reason = " ".join(str(error).split())[:160]
    if weights not in ("", HUB) and "state_dict" in reason:
        instead = "give those of the same architecture"
        return DataError(f"{weights}: not the weights of {name} ({reason}); {instead}")
    instead = "use another --set size or network" + ", or --weights none" * (weights == HUB)
    return SpecError(f"{name}: cannot be built for inputs of shape {shape} ({reason}); {instead}")
