"""What a network costs: its parameters, and the multiplications for one sample.

Multiplications are those of convolutions and matrix products, with the additions that go with them
(multiply–accumulate operations, MACs), as papers and timm count them; activations and
normalizations are not counted.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from afield.networks.backbone import Shape, network
from afield.networks.inference import eval_mode

NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
# Networks of these layers compute no other products.
PLAIN_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *NORMALIZATIONS)
# No network has as many parameters or multiplications.
LIMIT = 2**60


@dataclass(frozen=True)
class Cost:
    """Parameters of a network, and multiplications for one sample; 0 means unknown."""

    parameters: int = 0
    macs: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.parameters + other.parameters, self.macs + other.macs)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.parameters * times, self.macs * times)

    @classmethod
    def of_front(cls, provenance: Mapping[str, Any]) -> "Cost | None":
        """The cost of the network that computed features; None if their file does not say.

        Samples that are no features have an empty provenance: nothing is in front of the network.
        """
        if not provenance:
            return cls()
        parameters, macs = (provenance.get(name) for name in ("parameters", "macs"))
        known = all(type(value) is int and 0 <= value < LIMIT for value in (parameters, macs))
        return cls(parameters, macs) if known else None  # type: ignore[arg-type]


def network_cost(network: nn.Module, sample: torch.Tensor) -> Cost:
    """The cost of a network, measured by passing a batch of one sample through it."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    if all(isinstance(layer, PLAIN_LAYERS) for layer in _layers_with_parameters(network)):
        return Cost(parameters, _plain_macs(network, sample))
    # Loads torch's compiler, which takes a second and 0.3 GB.
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with eval_mode(network), torch.no_grad(), _countable(network), counter:
        network(sample)
    return Cost(parameters, counter.get_total_flops() // 2)


def _layers_with_parameters(network: nn.Module) -> Iterator[nn.Module]:
    return (each for each in network.modules() if any(True for _ in each.parameters(recurse=False)))


def _plain_macs(network: nn.Module, sample: torch.Tensor) -> int:
    """The multiplications of a network without attention, added up layer by layer."""
    counts: list[int] = []

    def count(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        # Every entry of the output is a product of the weights of one row.
        if not isinstance(layer, NORMALIZATIONS):
            (row, *_), entries = layer.parameters(), output.numel()
            counts.append(entries * row[0].numel())

    hooks = [each.register_forward_hook(count) for each in _layers_with_parameters(network)]
    try:
        with eval_mode(network), torch.no_grad():
            network(sample)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


@lru_cache(maxsize=64)
def planned_cost(backbone: str, shape: Shape) -> Cost:
    """The cost of a network for ten classes that is not built: nothing of its size is allocated."""
    try:
        with torch.device("meta"):
            return network_cost(network(backbone, shape, 10, weights=""), torch.zeros(1, *shape))
    except (NotImplementedError, RuntimeError):
        # Some layers need values; their multiplications stay unknown.
        built = network(backbone, shape, 10, weights="")
        return Cost(sum(parameter.numel() for parameter in built.parameters()))


@contextmanager
def _countable(network: nn.Module) -> Iterator[None]:
    """Compute attention in steps that can be counted, without parameters that need gradients.

    The counter waits for the gradients of all arguments of a layer, which may be parameters.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    trained = [each for each in network.parameters() if each.requires_grad]
    torch.backends.mha.set_fastpath_enabled(False)
    for parameter in trained:
        parameter.requires_grad = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
        for parameter in trained:
            parameter.requires_grad = True
