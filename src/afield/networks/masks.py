"""Masks over the channels or units of a network, a set for each domain, attached from outside.

    p = σ(m),   m a logit for every domain, masked layer and channel
    in training      a ← (b - p + p) ⊙ a with b ~ Bernoulli(p), drawn for each sample with the p of
                     its domain; the gradient goes to p as if the mask were soft (straight through)
    afterwards       a ← p ⊙ a, for the domains as `combine` says

The network is not edited: its modules are watched, and what they are about to take is masked.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from afield.errors import SpecError
from afield.networks.inference import eval_mode
from afield.networks.stages import channel_axis, channel_means, late_modules
from afield.registry import hint

__all__ = ["Combine", "MaskedNetwork", "fold_masks", "hard_overlap", "soft_overlap"]

Combine = Literal["predictions", "masks", "guessed"]
SMOOTH = 1e-6


class MaskedNetwork(nn.Module):
    """A network with masks for each of some domains; in evaluation mode a plain module.

    It then gives the mean of the `predictions` (logits) with every domain's masks; what comes
    before the first masked layer is computed once. Or it takes the mean of the `masks`, in one
    pass; or weights the predictions by how likely each domain is, `guessed` from what the first
    masked layer takes. With a `domain` (its number, or one for each sample) it takes the masks of
    that; with `hard`, those channels alone that it keeps more often than not. Layers of dropout are
    off: the masks take their place. Called directly, `net` is the bare network.

    Parameters
    ----------
    net
        The network; it is called with samples and gives logits.
    x
        A few samples, to find the layers with.
    domains
        The names of the domains.
    layers
        The modules whose inputs are masked; by default those late in the network.
    combine
        What an unknown domain gets.
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
        shapes = _given(net, x, list(layers) or late_modules(net, x))
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
        for place, name in enumerate(self.layers):
            # A bound method, not a closure: a copy of this module must mask with its own logits.
            module = self.net.get_submodule(name)
            module.register_forward_pre_hook(partial(self._masked, place))

    def _try(self, x: Tensor) -> None:
        """Whether samples come through with the masks of all domains, before anything is trained.

        They do not where something goes around the first masked layer, as a skip connection.
        """
        try:
            with eval_mode(self), torch.no_grad():
                self(x)
        except RuntimeError:
            told = f"{self.layers[0]!r} is passed by: a skip connection goes around it"
            raise SpecError(f"layer {told}; mask the module that has both, or 'head'") from None

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits: those of a known domain, or what unknown ones get."""
        if self.training and domain is None:
            raise ValueError("in training, masks are those of the samples' domains: give `domain`")
        self.domain, self.inside = domain, True
        try:
            logits: Tensor = self.net(x)
        finally:
            self.domain, self.inside = None, False
        if not self._spread(domain):
            return logits
        each = logits.unflatten(0, (len(self.domains), -1))
        if self.guessed is None:
            return each.mean(dim=0)
        odds = self.pop_domain_logits().softmax(dim=1).T
        return (odds[:, :, None] * each).sum(dim=0)

    def pop_domain_logits(self) -> Tensor:
        """Which domains the samples of the last pass are guessed to be from (logits), once."""
        guessed, self.guessed = self.guessed, None
        if guessed is None:
            raise ValueError("domains are guessed in a pass with combine='guessed'")
        return guessed

    def train(self, mode: bool = True) -> "MaskedNetwork":  # noqa: FBT001, FBT002  torch's signature
        """Training or evaluation mode, but for dropout."""
        super().train(mode)
        for module in self.net.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
        return self

    def probabilities(self) -> list[Tensor]:
        """For every masked layer the probabilities that channels are kept: domains × channels."""
        return [logits.sigmoid() for logits in self.logits]

    def _spread(self, domain: Tensor | int | None) -> bool:
        """Whether samples go on with the masks of every domain."""
        return not self.training and domain is None and self.combine != "masks"

    def _masked(self, place: int, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a masked layer takes instead of its input."""
        if not self.inside:
            return inputs
        a, *rest = inputs
        p = self.logits[place].sigmoid()
        if place == 0 and self.guess is not None and (self.training or self._spread(self.domain)):
            self.guessed = self.guess(channel_means(a.detach(), self.axes[place]))
        if self._spread(self.domain):
            if place == 0:
                mask = _along(p[:, None], a, self.axes[place])
                return (a[None] * mask).flatten(0, 1), *rest
            # By its shape: an exported network must not take this batch's length for a constant.
            each = a.shape[0] // p.shape[0]
            mask = p[:, None].expand(-1, each, -1).flatten(0, 1)
        elif self.domain is None:
            mask = p.mean(dim=0, keepdim=True)
        else:
            mask = p[self.domain].expand(len(a), -1)
            if self.training:
                mask = _straight(torch.bernoulli(mask.detach()), mask)
            elif self.hard:
                mask = _straight((mask > 0.5).to(mask.dtype), mask)
        return a * _along(mask, a, self.axes[place]), *rest


def soft_overlap(p: Tensor, *, smooth: float = SMOOTH) -> Tensor:
    """The soft IoU of every pair of domains (domains × channels in), each pair once."""
    both = p @ p.T
    size = p.sum(dim=1)
    either = size[:, None] + size - both
    first, second = torch.triu_indices(len(p), len(p), offset=1, device=p.device)
    # Two masks that keep nothing share nothing, also without smoothing.
    least = torch.finfo(p.dtype).tiny
    return ((both + smooth) / (either + smooth).clamp(min=least))[first, second]


def hard_overlap(p: Tensor) -> Tensor:
    """The same of the channels that are kept more often than not."""
    return soft_overlap((p > 0.5).to(p.dtype))


def fold_masks(masked: MaskedNetwork, x: Tensor) -> dict[str, Tensor]:
    """Weights with which the bare network gives what one pass with the mean of the masks gives.

    A mask goes into the layers that take what it masks. That is exact where these are linear ones
    and convolutions, and nothing else takes it, which is tried with noise of the shape of `x`.
    """
    twin = copy.deepcopy(masked).eval()
    twin.combine = "masks"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = torch.randn(4, *x.shape[1:]).to(x.device)
        expected = twin(x)
        for place, (name, taking) in enumerate(_taking(twin, x).items()):
            p = twin.probabilities()[place].mean(dim=0)
            for module in taking:
                if not isinstance(module, (nn.Linear, nn.Conv2d)):
                    told = f"a mask cannot go into {type(module).__name__} layers"
                    raise SpecError(f"the masks of {name!r} cannot be folded: {told}")
                _scale(module, p)
        _detach(twin.net)
        found = twin.net(x)
    if not torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())):
        raise SpecError(
            "the masks cannot be folded exactly: more than linear layers and convolutions takes "
            f"what is masked before {', '.join(twin.layers)}"
        )
    return {name: value.clone() for name, value in twin.net.state_dict().items()}


def _taking(masked: MaskedNetwork, x: Tensor) -> dict[str, list[nn.Module]]:
    """For every masked layer the innermost modules in it that take just what is masked."""
    found: dict[str, list[nn.Module]] = {}
    for name in masked.layers:
        layer, taking, given = masked.net.get_submodule(name), list[nn.Module](), list[Tensor]()
        # After our own hook, so that this is what has been masked.
        hooks = [layer.register_forward_pre_hook(lambda _, a, given=given: given.append(a[0]))]
        for module in layer.modules():
            if next(module.children(), None) is None:

                def note(
                    module: nn.Module,
                    inputs: tuple[Any, ...],
                    given: list[Tensor] = given,
                    taking: list[nn.Module] = taking,
                ) -> None:
                    if inputs and inputs[0] is given[0]:
                        taking.append(module)

                hooks.append(module.register_forward_pre_hook(note))
        masked(x)
        for hook in hooks:
            hook.remove()
        found[name] = taking
    return found


def _scale(module: nn.Linear | nn.Conv2d, p: Tensor) -> None:
    """Let a layer take p ⊙ a where it takes a."""
    groups = module.groups if isinstance(module, nn.Conv2d) else 1
    weight = module.weight.unflatten(0, (groups, -1))
    share = p.view(groups, 1, -1, *(1 for _ in range(weight.ndim - 3)))
    module.weight.copy_((weight * share).flatten(0, 1))


def _detach(net: nn.Module) -> None:
    """Take the masks off."""
    for module in net.modules():
        hooks = module._forward_pre_hooks
        for key, hook in list(hooks.items()):
            if (
                isinstance(hook, partial)
                and getattr(hook.func, "__func__", None) is MaskedNetwork._masked
            ):
                del hooks[key]


def _straight(drawn: Tensor, soft: Tensor) -> Tensor:
    """A mask of zeros and ones whose gradient is that of the soft one."""
    return (drawn - soft).detach() + soft


def _along(mask: Tensor, a: Tensor, axis: int) -> Tensor:
    """A mask (… × channels) shaped so that it goes along the channels of a."""
    for _ in range(axis + 1, a.ndim):
        mask = mask.unsqueeze(-1)
    for _ in range(1, axis):
        mask = mask.unsqueeze(mask.ndim - (a.ndim - axis))
    return mask


def _given(net: nn.Module, x: Tensor, names: list[str]) -> dict[str, tuple[int, ...]]:
    """The shapes that the named modules take, in the order in which samples pass them."""
    known = [name for name, _ in net.named_modules() if name]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpecError(f"no layer {unknown[0]!r} in the network; {hint(unknown[0], known)[:300]}")
    found: dict[str, tuple[int, ...]] = {}

    def noted(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if name in found:
            raise SpecError(f"layer {name!r} is passed twice, or named twice; mask another")
        if not inputs or not isinstance(inputs[0], Tensor) or len(inputs[0]) != len(x):
            raise SpecError(f"layer {name!r} takes no row for each sample; mask another")
        found[name] = tuple(inputs[0].shape)

    with ExitStack() as stack, eval_mode(net), torch.no_grad():
        for name in names:
            hook = net.get_submodule(name).register_forward_pre_hook(partial(noted, name))
            stack.callback(hook.remove)
        net(x)
    missed = [name for name in names if name not in found]
    if missed:
        raise SpecError(f"layer {missed[0]!r} is not passed by samples; mask another")
    return found
