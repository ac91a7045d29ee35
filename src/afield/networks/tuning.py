"""What of a network is trained, by the value of the setting `tune`, and at which rate.

    head                   the last layer alone
    norms                  the scales and shifts of all normalization layers
    attention              all layers of attention
    lora:rank=4,alpha=8    factors beside the weights of layers (see `afield.networks.lora`)

All but ``head`` train the head as well, unless class names define it. With LoRA, the layers are the
projections of attention and of the perceptrons after it, or, in a network without attention, all
convolutions without groups but the first, and linear layers. ``layers=qkv+fc1`` chooses others: by
the ends of their names, or ``attention``, ``mlp`` and ``convolutions``.

The layer-wise decay of the learning rate is that of BEiT: with n layers, layer i of 1 … n has the
rate decay^(n + 1 - i), what is before them decay^(n + 1), what is after them and the head the full
rate. A layer is an element of a list or sequence of modules that is not itself such a list, e.g. a
block of a transformer or of a ResNet.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.networks.lora import add_factors, can_adapt, largest_rank
from afield.registry import hint

# Values of `tune` for which the features are frozen and a part of them is trained.
PARTS = ("head", "norms", "attention")
LORA = "lora"
DEFAULT_RANK = 4
# Larger ones are slips of the keyboard.
MAX_RANK, MAX_ALPHA = 4096, 1e6
GROUPS = ("attention", "mlp", "convolutions")
LAYER_NAME = re.compile(r"[\w.-]{1,200}")
# Names of classes of attention, but not of blocks that contain it.
ATTENTION, BLOCK = re.compile("attention|attn", re.IGNORECASE), re.compile("Block|Layer")
NORM = re.compile("norm", re.IGNORECASE)


@dataclass(frozen=True)
class Lora:
    """LoRA as it is asked for; no layers mean those that suit the network."""

    rank: int = DEFAULT_RANK
    alpha: float = 2.0 * DEFAULT_RANK
    layers: tuple[str, ...] = ()

    @classmethod
    def of(cls, tune: str) -> "Lora | None":
        """The LoRA that a value of `tune` asks for, None for another value.

        >>> str(Lora.of("lora:rank=2")), Lora.of("head")
        ('lora:rank=2,alpha=4', None)
        """
        name, _, options = tune.partition(":")
        if name != LORA:
            return None
        texts = dict(_option(tune, each) for each in options.split(",") if each.strip())
        rank = _number(tune, "rank", texts.get("rank", str(DEFAULT_RANK)))
        if not rank.is_integer() or not 1 <= rank <= MAX_RANK:
            raise SpecError(f"tune={tune}: rank is a whole number from 1 to {MAX_RANK}")
        alpha = _number(tune, "alpha", texts.get("alpha", str(2 * rank)))
        if not 0 < alpha <= MAX_ALPHA:
            raise SpecError(f"tune={tune}: alpha is above 0 and at most {MAX_ALPHA:g}")
        names = [name.strip() for name in texts.get("layers", "").split("+") if name.strip()]
        odd = next((name for name in names if not LAYER_NAME.fullmatch(name)), None)
        if odd is not None:
            raise SpecError(f"tune={tune}: {odd[:40]!r} is not the name of a layer")
        return cls(int(rank), alpha, tuple(sorted(set(names))))

    def __str__(self) -> str:
        layers = f",layers={'+'.join(self.layers)}" if self.layers else ""
        return f"{LORA}:rank={self.rank},alpha={self.alpha:g}{layers}"


def _option(tune: str, text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or name not in ("rank", "alpha", "layers"):
        raise SpecError(f"tune={tune}: write lora:rank=4,alpha=8, with layers=NAME+NAME if need be")
    return name, value


def _number(tune: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SpecError(f"tune={tune}: {name}={text[:20]} is not a number")
    return number


def tune_network(net: Classifier, tune: str, name: str, channels: int) -> None:
    """Freeze the features of a network but for what `tune` names; `name` is for errors.

    `channels` is the number of channels of a sample, by which the first convolution is known.
    """
    features = net.features
    lora = Lora.of(tune)
    features.requires_grad_(requires_grad=False)
    if lora is not None:
        _add_lora(features, lora, name, channels)
    elif tune == "norms":
        _train(_norms(features), f"tune=norms: {name} has no normalization with scale and shift")
    elif tune == "attention":
        _train(
            [module for _, module in _attention(features)],
            f"tune=attention: {name} has no attention; use norms, or lora:rank=4",
        )


def _train(modules: Sequence[nn.Module], message: str) -> None:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if not parameters:
        raise SpecError(message)
    for parameter in parameters:
        parameter.requires_grad = True


def _norms(features: nn.Module) -> list[nn.Module]:
    """Layers of normalization, those of torch and those of libraries."""
    return [
        module
        for module in features.modules()
        if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm)
        or (NORM.search(type(module).__name__) and next(module.children(), None) is None)
    ]


def _attention(features: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules of attention, with their names."""
    for name, child in features.named_children():
        kind = type(child).__name__
        if ATTENTION.search(kind) and not BLOCK.search(kind):
            yield prefix + name, child
        else:
            yield from _attention(child, f"{prefix}{name}.")


def _add_lora(features: nn.Module, lora: Lora, name: str, channels: int) -> None:
    groups = _groups(features, channels)
    usual = groups["attention"] | groups["mlp"]
    usual = usual or groups["convolutions"] | groups["linear"]
    chosen = dict(usual) if not lora.layers else {}
    everything = {layer: each for group in groups.values() for layer, each in group.items()}
    for wanted in lora.layers:
        found = groups[wanted] if wanted in GROUPS else _ending_with(everything, wanted)
        if not found:
            ends = sorted({layer.rpartition(".")[2] for layer in everything})
            raise SpecError(
                f"tune={lora}: {name} has no layer {wanted!r}; {hint(wanted, ends)[:200]}"
            )
        chosen |= found
    if not chosen:
        raise SpecError(f"tune={lora}: {name} has no layer that LoRA could change; use another")
    most = max(map(largest_rank, chosen.values()))
    if lora.rank > most:
        raise SpecError(f"tune={lora}: the layers of {name} have at most rank {most}; use less")
    # In the order of the network, on which the random numbers depend.
    for layer, module in features.named_modules():
        if layer in chosen:
            add_factors(module, rank=lora.rank, alpha=lora.alpha)


def _groups(features: nn.Module, channels: int) -> dict[str, dict[str, nn.Module]]:
    """The layers that can have factors, by what they are for."""
    attention = [name for name, _ in _attention(features)]
    blocks = {name.rpartition(".")[0] for name in attention}
    groups: dict[str, dict[str, nn.Module]] = {name: {} for name in (*GROUPS, "linear", "first")}
    for name, module in features.named_modules():
        if not can_adapt(module):
            continue
        if isinstance(module, _ConvNd):
            is_first = module.in_channels == channels and not groups["first"]
            kind = "first" if is_first else "convolutions"
        elif _is_inside(name, attention):
            kind = "attention"
        else:
            kind = "mlp" if _is_inside(name, blocks - {""}) else "linear"
        groups[kind][name] = module
    return groups


def _is_inside(name: str, others: Sequence[str] | set[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in others)


def _ending_with(layers: Mapping[str, nn.Module], end: str) -> dict[str, nn.Module]:
    return {n: module for n, module in layers.items() if n == end or n.endswith(f".{end}")}


def layer_rates(model: nn.Module, *, decay: float, head: float) -> dict[int, float]:
    """Factors of the learning rate by the identity of parameters; others have the full rate.

    `head` is the factor of the head, and a decay of 1 gives all layers the same rate.
    """
    rates: dict[int, float] = {}
    net = next((module for module in model.modules() if isinstance(module, Classifier)), None)
    if net is None:
        return rates
    if decay != 1:
        layers = _layers(net.features)
        for number, parameters in enumerate(layers):
            factor = decay ** (len(layers) - 1 - number)
            rates |= {id(parameter): factor for parameter in parameters}
    return rates | {id(parameter): head for parameter in net.head.parameters()}


def _layers(features: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters before the layers, of each layer, and after them; in order of definition."""
    layers: list[list[nn.Parameter]] = [[]]
    outside: list[nn.Parameter] = layers[0]

    def walk(module: nn.Module) -> None:
        nonlocal outside
        outside += module.parameters(recurse=False)
        for child in module.children():
            is_layer = _is_list(module) and not _is_list(child)
            if is_layer and next(child.parameters(), None) is not None:
                layers.append(list(child.parameters()))
                outside = []
                tails.append(outside)
            else:
                walk(child)

    tails = [outside]
    walk(features)
    # What stands between layers belongs to the layer before it.
    for layer, tail in zip(layers[1:-1], tails[1:-1], strict=True):
        layer.extend(tail)
    return [*layers, tails[-1] if len(tails) > 1 else []]


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential | nn.ModuleList)
