"""The network of a model folder: built from its description, then filled with its weights."""

from pathlib import Path

import torch
from torch import Tensor, nn

from afield import own_code, registry
from afield.compute import preserve_torch_state
from afield.deployment.model_files import DESCRIPTION_FILE
from afield.deployment.model_folder import Description
from afield.errors import DataError
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import network
from afield.networks.inference import BatchPredictor
from afield.training.adaptation import Adaptation
from afield.training.method import Method, Task
from afield.training.optimizers import optimizer_factory
from afield.weights import check_values

__all__ = ["EncodedNetwork", "adapt_network", "build_network", "load_weights"]


class EncodedNetwork(nn.Module):
    """A network on the scaled features of a frozen one; it takes the frozen one's inputs."""

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, features: int, network: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.network = network
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    @property
    def domains(self) -> tuple[str, ...]:
        """The domain labels that the network can use."""
        return tuple(getattr(self.network, "domains", ()))

    def forward(self, x: Tensor, *label: int) -> Tensor:
        """Logits of prepared images."""
        features = (self.encoder(x) - self.mean) / self.std
        return self.network(features, *label)


class _AdaptedEncoding(BatchPredictor):
    """An encoded network whose part behind the frozen encoder adapts to unlabelled samples."""

    def __init__(self, encoded: EncodedNetwork, adapted: BatchPredictor) -> None:
        super().__init__()
        self.encoded, self.adapted = encoded, adapted
        encoded.network = adapted

    def reset(self) -> None:
        """Forget all samples seen so far."""
        self.adapted.reset()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of prepared images."""
        return self.encoded(x)


def adapt_network(module: nn.Module, adaptation: Adaptation) -> BatchPredictor:
    """The network with a test-time adaptation of the part that was trained; it owns the network."""
    if not isinstance(module, EncodedNetwork):
        return adaptation.predictor(module)
    return _AdaptedEncoding(module, adaptation.predictor(module.network))


def build_network(about: Description) -> nn.Module:
    """Build the described network with random weights; nothing is downloaded."""
    own_code.check(_needed_code(about), about.name)
    encoder, shape = about.architecture.encoder, tuple(about.inputs.shape)
    if encoder is None:
        return _build_on(about, shape)
    net = _build_on(about, (encoder.features,))
    with preserve_torch_state(cuda=False):
        front = network(encoder.backbone, shape, 1).features
        return EncodedNetwork(front, encoder.features, net).eval()


def _build_on(about: Description, shape: tuple[int, ...]) -> nn.Module:
    """The network for inputs of this shape."""
    spec = about.architecture
    # The caller's random state is restored.
    with preserve_torch_state(cuda=False):
        net: nn.Module = network(spec.backbone, shape, len(about.classes), freeze_bn=spec.freeze_bn)
        if spec.wrapper:
            kind = registry.find("methods", spec.wrapper)
            method: Method = build(kind, with_neutral(kind, spec.params))
            task = Task(
                sources=about.sources,
                classes=about.classes,
                steps=1,
                network=lambda outputs: network(spec.backbone, shape, outputs),
                optimizer=optimizer_factory("", lr=1e-3, weight_decay=0.0),
                shape=shape,
            )
            net = method.setup(net, task).model
    return net.eval()


def _needed_code(about: Description) -> dict[str, str]:
    """Digests of the user's own code without which the network cannot be built."""
    kinds = ("backbones", "methods") if about.architecture.wrapper else ("backbones",)
    code = about.run.code if about.run else {}
    return {name: digest for name, digest in code.items() if name.partition("/")[0] in kinds}


def load_weights(module: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Load weights into a network; raise unless names and shapes are exactly the network's."""
    state = module.state_dict()
    missing = [name for name in state if name not in weights]
    extra = [name for name in weights if name not in state]
    other = [n for n in state if n in weights and state[n].shape != weights[n].shape]
    problems = ((missing, "lacks"), (extra, "has in addition"), (other, "has in another shape"))
    for names, problem in problems:
        if names:
            raise DataError(
                f"{path}: not the weights of the network in {DESCRIPTION_FILE}; it "
                f"{problem} {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1)
            )
    check_values(str(path), state, weights)
    module.load_state_dict(weights)
