"""The stages of a network, found by what passes through it: no network is known by name.

A network of timm tells its stages itself. Of others, a stage is the outermost and last part with
weights that gives maps of one size; or a block, where samples pass as rows of tokens; or a layer,
where they pass as vectors.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from afield.networks.inference import eval_mode

__all__ = ["channel_axis", "channel_means", "find_stages", "hook_outputs", "late_modules"]

# Of a transformer, so many of the last blocks are late.
LATE_BLOCKS = 2


@dataclass(frozen=True)
class _Passing:
    """A module that a sample has passed: its name, and the shapes that it took and gave."""

    name: str
    module: nn.Module
    given: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def weighted(self) -> bool:
        return next(self.module.parameters(), None) is not None

    @property
    def whole(self) -> bool:
        """Whether it has parts."""
        return next(self.module.children(), None) is not None


def find_stages(model: nn.Module, x: Tensor) -> dict[str, int]:
    """The modules whose outputs are the stages, as samples pass them, and their channels' axis.

    Parameters
    ----------
    model
        A network; if it has `features`, a network of timm may be in there.
    x
        A few samples, which are sent through it in evaluation mode.
    """
    passed, told = _passed(model, x), _told(model)
    sample = tuple(x.shape)
    found = set() if told else {*_sizes(passed, sample), *_blocks(model, passed)}
    found |= {each.name for each in passed if _layer(each) and not _within(each.name, told)}
    names = [
        each.name if each.name in told else _end(passed[place:])
        for place, each in enumerate(passed)
        if each.name in found or each.name in told
    ]
    shapes = {each.name: each.shape for each in passed}
    return {name: channel_axis(shapes[name], sample) for name in dict.fromkeys(names)}


def late_modules(model: nn.Module, x: Tensor) -> list[str]:
    """The modules whose inputs are late in the network, in order; the last is the classifier.

    Where hidden layers of units precede the classifier (as in AlexNet) these layers; of a
    transformer its last blocks; of others the last stage of maps. Never the first module: its input
    is the sample.
    """
    passed, stages = _passed(model, x), find_stages(model, x)
    shapes = {each.name: each.shape for each in passed}
    *hidden, last = [each.name for each in passed if _layer(each)]
    blocks = [name for name in stages if len(shapes[name]) == 3][-LATE_BLOCKS:]
    maps = [name for name in stages if len(shapes[name]) == 4][-2:]
    late = hidden or blocks or ([_entrance(passed, *maps)] if len(maps) > 1 else [])
    given = {each.name: each.given for each in passed}
    return [*(name for name in late if given[name] != tuple(x.shape)), last]


@contextmanager
def hook_outputs(
    model: nn.Module, callback: Callable[[str, Tensor], None], *names: str
) -> Iterator[None]:
    """Tell what the named modules give, whenever something passes them."""
    with ExitStack() as stack:
        for name in names:

            def told(_: nn.Module, __: Any, output: Tensor, name: str = name) -> None:
                callback(name, output)

            stack.callback(model.get_submodule(name).register_forward_hook(told).remove)
        yield


def channel_axis(shape: tuple[int, ...], sample: tuple[int, ...]) -> int:
    """Which dimension of what passes through a network are its channels, or units.

    Of tokens it is the last. Of maps it is the second, unless the last two are not in the
    proportion of a sample's height and width, but the two before are, as within Swin transformers.
    """
    if len(shape) != 4 or len(sample) != 4:
        return len(shape) - 1 if len(shape) == 3 else 1
    aspect = sample[2] / sample[3]
    first, last = (abs(math.log(a / b / aspect)) for a, b in (shape[2:], shape[1:3]))
    return 1 if first <= last else 3


def channel_means(output: Tensor, axis: int) -> Tensor:
    """Samples × channels: the means over all places of a map or over all tokens."""
    others = [dim for dim in range(1, output.ndim) if dim != axis]
    return output.mean(dim=others) if others else output


def _passed(model: nn.Module, x: Tensor) -> list[_Passing]:
    """All modules but the model itself, in the order in which they are done; each once."""
    found: dict[str, _Passing] = {}
    twice: set[str] = set()

    def noted(name: str, module: nn.Module) -> Callable[..., None]:
        def told(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if name in found:
                twice.add(name)
            elif _rows(output, x) and inputs and _rows(inputs[0], x):
                shapes = tuple(inputs[0].shape), tuple(output.shape)
                found[name] = _Passing(name, module, *shapes)

        return told

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(noted(name, module)).remove)
        with eval_mode(model), torch.inference_mode():
            model(x)
    return [each for name, each in found.items() if name not in twice]


def _rows(passing: Any, x: Tensor) -> bool:
    """Whether this has a row for each sample."""
    return isinstance(passing, Tensor) and passing.ndim > 1 and len(passing) == len(x)


def _told(model: nn.Module) -> list[str]:
    """What a network of timm says of itself."""
    features = getattr(model, "features", model)
    before = "features." if features is not model else ""
    known = getattr(features, "feature_info", None) or ()
    return [f"{before}{each['module']}" for each in known if isinstance(each, dict)]


def _sizes(passed: list[_Passing], sample: tuple[int, ...]) -> list[str]:
    """For every size of maps the outermost, and of these the last, module with weights.

    What has parts and takes the sample itself is most of the network, not a stage of it.
    """
    found: dict[tuple[int, int], _Passing] = {}
    for each in passed:
        size = _size(each.shape, sample)
        if size and each.weighted and not (each.whole and each.given == sample):
            other = found.get(size)
            if other is None or each.name.count(".") <= other.name.count("."):
                found[size] = each
    return [each.name for each in found.values()]


def _blocks(model: nn.Module, passed: list[_Passing]) -> list[str]:
    """Modules in a row that give tokens, but not those within one of them."""
    rows = [
        each.name
        for each in passed
        if len(each.shape) == 3
        and each.weighted
        and isinstance(
            model.get_submodule(each.name.rpartition(".")[0]), (nn.Sequential, nn.ModuleList)
        )
    ]
    return [name for name in rows if not _within(name, rows)]


def _layer(each: _Passing) -> bool:
    return len(each.shape) == 2 and isinstance(each.module, nn.Linear)


def _end(passed: list[_Passing]) -> str:
    """What comes after a stage without weights and gives the same shape belongs to it, as ReLU."""
    stage = passed[0]
    after = takewhile(lambda each: not each.weighted and each.shape == stage.shape, passed[1:])
    return [stage, *after][-1].name


def _entrance(passed: list[_Passing], before: str, stage: str) -> str:
    """Where a stage begins: with what comes first, of its kind, after the one before it."""
    after = passed[[each.name for each in passed].index(before) + 1 :]
    outer = before.rpartition(".")[0]
    beside = [
        each.name for each in after if each.name.rpartition(".")[0] == outer and each.weighted
    ]
    return beside[0] if beside else stage


def _within(name: str, others: list[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def _size(shape: tuple[int, ...], sample: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of maps that have more than one place."""
    if len(shape) != 4:
        return None
    height, width = shape[1:3] if channel_axis(shape, sample) == 3 else shape[2:]
    return (height, width) if height * width > 1 else None
