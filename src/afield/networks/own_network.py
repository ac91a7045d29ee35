"""A network of the user as a backbone: a module, or a function of (shape, classes).

The network returns logits, samples × classes, and ends in an `nn.Linear`. That layer becomes the
head of a `Classifier`, with its initial weights, and everything before it the features.
"""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier, Shape, WholeNetwork

Builder = Callable[[Shape, int], nn.Module]


@dataclass(frozen=True)
class OwnNetwork(WholeNetwork):
    """A backbone that a function of the user builds."""

    builder: ClassVar[Builder]

    def check(self) -> None:
        """Accept any name: there is only one network."""

    def classifier(self, shape: Shape, classes: int, *, freeze_bn: bool) -> Classifier:
        """Build the network, and split it into features and head."""
        module = type(self).builder(shape, classes)
        if not isinstance(module, nn.Module):
            raise SpecError(f"{self.name}: must return an nn.Module, not {type(module).__name__}")
        before = _outputs(self.name, module, shape, (1, classes))
        name, last = _last_linear(self.name, module, classes)
        features = _without(module, name)
        between = _outputs(self.name, features, shape, (1, last.in_features))
        with torch.no_grad():
            if not torch.allclose(last(between), before, atol=1e-4):
                raise SpecError(f"{self.name}: has layers after its last nn.Linear; end in it")
        net = Classifier(features, last.in_features, classes, freeze_bn=freeze_bn)
        bias = torch.zeros(classes) if last.bias is None else last.bias
        net.head.load_state_dict({"weight": last.weight, "bias": bias})
        return net.to(memory_format=torch.channels_last) if len(shape) == 3 else net


class FromModule:
    """A builder that copies a module with its weights."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, shape: Shape, classes: int) -> nn.Module:
        """A copy of the module, which is the same for every shape."""
        return copy.deepcopy(self.module)


def own_backbone(network: nn.Module | Builder) -> type[OwnNetwork]:
    """A family of backbones with this one network."""
    build: Builder = FromModule(network) if isinstance(network, nn.Module) else network
    return type("Own", (OwnNetwork,), {"builder": staticmethod(build)})


def weights_digest(network: nn.Module) -> str:
    """Digest of the weights of a module, and of its layers."""
    digest = hashlib.sha256(repr(network).encode())
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _outputs(name: str, module: nn.Module, shape: Shape, wanted: tuple[int, int]) -> Tensor:
    """The outputs of a module for one sample, which must have the wanted shape."""
    sample = torch.linspace(-1, 1, torch.Size(shape).numel()).view(1, *shape)
    module.eval()
    with torch.no_grad():
        output = module(sample)
    module.train()
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if found != wanted:
        raise SpecError(
            f"{name}: returns {found} for one sample of shape {shape}; it must return {wanted}, "
            "and its last layer must be an nn.Linear"
        )
    return output


def _last_linear(name: str, module: nn.Module, classes: int) -> tuple[str, nn.Linear]:
    layers = [(path, each) for path, each in module.named_modules() if isinstance(each, nn.Linear)]
    if not layers or layers[-1][1].out_features != classes or not layers[-1][0]:
        raise SpecError(
            f"{name}: its last layer must be an nn.Linear with {classes} outputs, after others"
        )
    return layers[-1]


def _without(module: nn.Module, path: str) -> nn.Module:
    parent, _, last = path.rpartition(".")
    setattr(module.get_submodule(parent), last, nn.Identity())
    return module
