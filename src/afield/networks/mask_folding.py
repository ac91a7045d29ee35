"""Fold masks into weights: the network without masks computes what the masked one computes."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from afield.compute import preserve_torch_state
from afield.errors import SpecError
from afield.networks.masks import MaskedNetwork

__all__ = ["fold_masks"]


def fold_masks(masked: MaskedNetwork, x: Tensor) -> dict[str, Tensor]:
    """Return weights of the network without masks that reproduce one pass with the mean masks.

    A mask is multiplied into the weights of the layers that take the masked activation. This is
    exact if all of them are linear layers or convolutions, which is verified on random inputs of
    the shape of `x`; otherwise `SpecError` is raised.
    """
    twin = copy.deepcopy(masked).eval()
    twin.combine = "masks"
    with preserve_torch_state(cuda=False), torch.no_grad():
        x = torch.randn(4, *x.shape[1:]).to(x.device)
        expected = twin(x)
        for position, (name, consumers) in enumerate(_consumers(twin, x).items()):
            p = twin.probabilities()[position].mean(dim=0)
            for module in consumers:
                if not isinstance(module, (nn.Linear, nn.Conv2d)):
                    raise SpecError(
                        f"the masks of {name!r} cannot be folded into a {type(module).__name__} "
                        "layer; keep the masks"
                    )
                _scale_weights(module, p)
        # Outside of `twin`, the hooks of the masks change nothing.
        folded = twin.net(x)
    if not torch.allclose(folded, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())):
        raise SpecError(
            "the masks cannot be folded exactly, because more than linear layers and convolutions "
            f"uses the masked inputs of {', '.join(twin.layers)}; keep the masks"
        )
    return {name: value.clone() for name, value in twin.net.state_dict().items()}


def _consumers(masked: MaskedNetwork, x: Tensor) -> dict[str, list[nn.Module]]:
    """For every masked layer, the innermost modules in it that take the masked input itself."""
    by_layer: dict[str, list[nn.Module]] = {}
    for name in masked.layers:
        layer, consumers, inputs = masked.net.get_submodule(name), list[nn.Module](), list[Tensor]()
        # Registered after the masking hook, so that it sees the masked input.
        hooks = [layer.register_forward_pre_hook(lambda _, a, inputs=inputs: inputs.append(a[0]))]
        for module in layer.modules():
            if next(module.children(), None) is None:

                def collect(
                    module: nn.Module,
                    arguments: tuple[Any, ...],
                    inputs: list[Tensor] = inputs,
                    consumers: list[nn.Module] = consumers,
                ) -> None:
                    if arguments and arguments[0] is inputs[0]:
                        consumers.append(module)

                hooks.append(module.register_forward_pre_hook(collect))
        masked(x)
        for hook in hooks:
            hook.remove()
        by_layer[name] = consumers
    return by_layer


def _scale_weights(module: nn.Linear | nn.Conv2d, p: Tensor) -> None:
    """Change the weights of a layer so that it computes on a what it computed on p ⊙ a."""
    groups = module.groups if isinstance(module, nn.Conv2d) else 1
    weight = module.weight.unflatten(0, (groups, -1))
    scale = p.view(groups, 1, -1, *(1 for _ in range(weight.ndim - 3)))
    module.weight.copy_((weight * scale).flatten(0, 1))
