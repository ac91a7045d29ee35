"""The network of a model folder: built from its description, then filled with its weights."""

from pathlib import Path

from torch import Tensor, nn

from afield import own_code, registry
from afield.compute import preserve_torch_state
from afield.deployment.model_folder import DESCRIPTION_FILE, Description
from afield.errors import DataError
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import network
from afield.training.method import Method, Task
from afield.training.optimizers import optimizer_factory
from afield.weights import check_values

__all__ = ["build_network", "load_weights"]


def build_network(about: Description) -> nn.Module:
    """Build the described network with random weights; nothing is downloaded."""
    own_code.check(_needed_code(about), about.name)
    spec, shape = about.architecture, tuple(about.inputs.shape)
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
