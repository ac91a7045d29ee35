"""Masks over the channels or units of a network, with one set per domain.

    p = σ(m),   m a logit for every domain, masked layer and channel
    in training      a ← (b - p + p) ⊙ a with b ~ Bernoulli(p), sampled for each sample with the p
                     of its domain; the gradient goes to p as if the mask were soft
                     (straight-through)
    in evaluation    a ← p ⊙ a; `combine` defines how the domains are combined

The network itself is not modified: forward hooks mask the inputs of its modules.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from afield.compute import preserve_torch_state
from afield.errors import SpecError
from afield.networks.inference import eval_mode
from afield.networks.stages import channel_axis, channel_means, late_modules
from afield.registry import hint

Combine = Literal["predictions", "masks", "guessed"]
SMOOTH = 1e-6


class MaskedNetwork(nn.Module):
    """A network with masks for each domain; in evaluation mode it needs no domain labels.

    Without a domain label, it combines the domains in one of three ways:

    - ``predictions``: the mean of the logits with every domain's masks; the layers before the first
      masked layer are computed once.
    - ``masks``: one pass with the mean of the masks.
    - ``guessed``: logits weighted by the probability of each domain, which a linear layer estimates
      from the input of the first masked layer.

    With a domain label (one for all samples or one per sample), it uses the masks of that domain;
    if `hard` is set, only the channels that the masks keep with a probability above one half.
    Dropout layers are off, because the masks take their place. `net`, if called directly, is the
    network without masks.

    Parameters
    ----------
    net
        The network, which maps samples to logits.
    x
        A few samples, used to find the layers.
    domains
        Names of the domains.
    layers
        Modules whose inputs are masked; by default the late modules of the network.
    combine
        How domains are combined if no domain label is given.
    """

    def __init__(
        self,
        net: nn.Module,
        x: Tensor,
        domains: Sequence[str],
        *,
        layers: Sequence[str] = (),
        combine: Combine = "predictions",
    ) -> None:
        super().__init__()
        self.net = net
        self.domains = tuple(domains)
        self.combine = combine
        shapes = _input_shapes(net, x, list(layers) or late_modules(net, x))
        self.layers = tuple(shapes)
        self.axes = [channel_axis(shape, tuple(x.shape)) for shape in shapes.values()]
        widths = [shape[axis] for shape, axis in zip(shapes.values(), self.axes, strict=True)]
        self.logits = nn.ParameterList(torch.rand(len(domains), width) for width in widths)
        self.guess = nn.Linear(widths[0], len(domains)) if combine == "guessed" else None
        self.guessed: Tensor | None = None
        self.domain: Tensor | int | None = None
        self.hard = self.inside = False
        self._attach()
        self._try(x)

    def _attach(self) -> None:
        for position, name in enumerate(self.layers):
            # A bound method, not a closure: a copy of this module must mask with its own logits.
            module = self.net.get_submodule(name)
            module.register_forward_pre_hook(partial(self._mask_inputs, position))

    def _try(self, x: Tensor) -> None:
        """Raise `SpecError` before training if samples cannot pass with the masks of all domains.

        This happens if a skip connection bypasses the first masked layer, or if the layer has
        further inputs, such as which tokens of a text are padding.
        """
        try:
            with eval_mode(self), torch.no_grad():
                self(torch.cat([x, x]))
        except RuntimeError:
            raise SpecError(
                f"layer {self.layers[0]!r} is bypassed by a skip connection or a mask; mask the "
                "module that contains both, or 'head'"
            ) from None

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits for the given domain, or for the combination of all domains."""
        if self.training and domain is None:
            raise ValueError("in training mode, masks depend on the domains: give `domain`")
        self.domain, self.inside = domain, True
        try:
            logits: Tensor = self.net(x)
        finally:
            self.domain, self.inside = None, False
        if not self._uses_all_domains(domain):
            return logits
        by_domain = logits.unflatten(0, (len(self.domains), -1))
        if self.guessed is None:
            return by_domain.mean(dim=0)
        probabilities = self.pop_domain_logits().softmax(dim=1).T
        return (probabilities[:, :, None] * by_domain).sum(dim=0)

    def pop_domain_logits(self) -> Tensor:
        """Return the logits of the guessed domains of the last pass, and forget them."""
        guessed, self.guessed = self.guessed, None
        if guessed is None:
            raise ValueError("no guessed domains: they need a forward pass with combine='guessed'")
        return guessed

    def train(self, mode: bool = True) -> "MaskedNetwork":  # noqa: FBT001, FBT002  torch's signature
        """Set training or evaluation mode; dropout layers stay in evaluation mode."""
        super().train(mode)
        for module in self.net.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
        return self

    def probabilities(self) -> list[Tensor]:
        """Probabilities that channels are kept (domains × channels), for every masked layer."""
        return [logits.sigmoid() for logits in self.logits]

    def _uses_all_domains(self, domain: Tensor | int | None) -> bool:
        """Whether every sample passes once with the masks of every domain."""
        return not self.training and domain is None and self.combine != "masks"

    def _mask_inputs(self, position: int, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Mask the inputs of the layer at a position in `layers`."""
        if not self.inside:
            return inputs
        a, *rest = inputs
        axis, p = self.axes[position], self.logits[position].sigmoid()
        all_domains = self._uses_all_domains(self.domain)
        if position == 0 and self.guess is not None and (self.training or all_domains):
            self.guessed = self.guess(channel_means(a.detach(), axis))
        if all_domains:
            if position == 0:
                return (a[None] * _align(p[:, None], a, axis)).flatten(0, 1), *rest
            # From the shape: an exported network must not treat the batch size as a constant.
            samples = a.shape[0] // p.shape[0]
            mask = p[:, None].expand(-1, samples, -1).flatten(0, 1)
        elif self.domain is None:
            mask = p.mean(dim=0, keepdim=True)
        else:
            mask = p[self.domain].expand(len(a), -1)
            if self.training:
                mask = _straight_through(torch.bernoulli(mask.detach()), mask)
            elif self.hard:
                mask = _straight_through((mask > 0.5).to(mask.dtype), mask)
        return a * _align(mask, a, axis), *rest


def soft_overlap(p: Tensor, *, smooth: float = SMOOTH) -> Tensor:
    """Soft IoU of every pair of domains, each pair once; `p` is domains × channels."""
    intersection = p @ p.T
    size = p.sum(dim=1)
    union = size[:, None] + size - intersection
    first, second = torch.triu_indices(len(p), len(p), offset=1, device=p.device)
    # Two empty masks have no overlap, also without smoothing.
    least = torch.finfo(p.dtype).tiny
    return ((intersection + smooth) / (union + smooth).clamp(min=least))[first, second]


def hard_overlap(p: Tensor) -> Tensor:
    """IoU of the channels that are kept with a probability above one half."""
    return soft_overlap((p > 0.5).to(p.dtype))


def _straight_through(binary: Tensor, soft: Tensor) -> Tensor:
    """A binary mask with the gradient of the soft mask."""
    return (binary - soft).detach() + soft


def _align(mask: Tensor, a: Tensor, axis: int) -> Tensor:
    """Reshape a mask (… × channels) so that it broadcasts along the channels of a."""
    for _ in range(axis + 1, a.ndim):
        mask = mask.unsqueeze(-1)
    for _ in range(1, axis):
        mask = mask.unsqueeze(mask.ndim - (a.ndim - axis))
    return mask


def _input_shapes(net: nn.Module, x: Tensor, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of the named modules, in forward order."""
    choices = [name for name, _ in net.named_modules() if name]
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise SpecError(f"no layer {unknown[0]!r}; {hint(unknown[0], choices)[:300]}")
    shapes: dict[str, tuple[int, ...]] = {}

    def note_shape(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if name in shapes:
            raise SpecError(f"layer {name!r} is called twice, or named twice; mask another layer")
        if not inputs or not isinstance(inputs[0], Tensor) or len(inputs[0]) != len(x):
            raise SpecError(
                f"the input of layer {name!r} does not have one row per sample; mask another layer"
            )
        shapes[name] = tuple(inputs[0].shape)

    with ExitStack() as stack, eval_mode(net), torch.no_grad():
        for name in names:
            hook = net.get_submodule(name).register_forward_pre_hook(partial(note_shape, name))
            stack.callback(hook.remove)
        net(x)
    unused = [name for name in names if name not in shapes]
    if unused:
        raise SpecError(f"layer {unused[0]!r} is not called; mask another layer")
    return shapes


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
