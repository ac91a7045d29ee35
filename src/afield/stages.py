"""The stages of a network, found by what passes through it: no network is known by name.

A network of timm tells its stages itself. Of others, a stage is the outermost and last part with
weights that gives maps of one size; or a block, where samples pass as rows of tokens; or a layer,
where they pass as vectors.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from afield.backbone import evaluating

__all__ = ["channel_means", "stage_names", "watched"]


@dataclass(frozen=True)
class _Passing:
    """A module that a sample has passed: its name, and the shape that it gave."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]

    @property
    def weighted(self) -> bool:
        return next(self.module.parameters(), None) is not None

    @property
    def outer(self) -> str:
        return self.name.rpartition(".")[0]


def stage_names(model: nn.Module, x: Tensor) -> list[str]:
    """The modules whose outputs are the stages, in the order in which samples pass them.

    Parameters
    ----------
    model
        A network; if it has `features`, a network of timm may be in there.
    x
        A few samples, which are sent through it in evaluation mode.
    """
    passed, told = _passed(model, x), _told(model)
    found = set() if told else {*_sizes(passed), *_blocks(model, passed)}
    found |= {each.name for each in passed if _layer(each) and not _within(each.name, told)}
    names = [
        each.name if each.name in told else _end(passed[place:])
        for place, each in enumerate(passed)
        if each.name in found or each.name in told
    ]
    return list(dict.fromkeys(names))


@contextmanager
def watched(model: nn.Module, note: Callable[[str, Tensor], None], *names: str) -> Iterator[None]:
    """Tell what the named modules give, whenever something passes them."""
    with ExitStack() as stack:
        for name in names:

            def told(_: nn.Module, __: Any, output: Tensor, name: str = name) -> None:
                note(name, output)

            stack.callback(model.get_submodule(name).register_forward_hook(told).remove)
        yield


def channel_means(output: Tensor) -> Tensor:
    """Samples × channels: the means over all places of a map or over all tokens."""
    if output.ndim == 2:
        return output
    if output.ndim == 4 and _channels_last(tuple(output.shape)):
        return output.mean(dim=(1, 2))
    return output.mean(dim=tuple(range(2, output.ndim))) if output.ndim > 3 else output.mean(dim=1)


def _passed(model: nn.Module, x: Tensor) -> list[_Passing]:
    """All modules but the model itself, in the order in which they are done; each once."""
    found: dict[str, _Passing] = {}
    twice: set[str] = set()

    def noted(name: str, module: nn.Module) -> Callable[..., None]:
        def told(_: nn.Module, __: Any, output: Any) -> None:
            if name in found:
                twice.add(name)
            elif isinstance(output, Tensor):
                found[name] = _Passing(name, module, tuple(output.shape))

        return told

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(noted(name, module)).remove)
        with evaluating(model), torch.inference_mode():
            model(x)
    return [each for name, each in found.items() if name not in twice]


def _told(model: nn.Module) -> list[str]:
    """What a network of timm says of itself."""
    features = getattr(model, "features", model)
    before = "features." if features is not model else ""
    known = getattr(features, "feature_info", None) or ()
    return [f"{before}{each['module']}" for each in known if isinstance(each, dict)]


def _sizes(passed: list[_Passing]) -> list[str]:
    """For every size of maps the outermost, and of these the last, module with weights."""
    found: dict[tuple[int, int], _Passing] = {}
    for each in passed:
        size = _size(each.shape)
        if size and each.weighted:
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
        and isinstance(model.get_submodule(each.outer), (nn.Sequential, nn.ModuleList))
    ]
    return [name for name in rows if not _within(name, rows)]


def _layer(each: _Passing) -> bool:
    leaf = next(each.module.children(), None) is None
    return len(each.shape) == 2 and leaf and each.weighted


def _end(passed: list[_Passing]) -> str:
    """What comes after a stage without weights and gives the same shape belongs to it, as ReLU."""
    stage = passed[0]
    after = takewhile(lambda each: not each.weighted and each.shape == stage.shape, passed[1:])
    return [stage, *after][-1].name


def _within(name: str, others: list[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def _size(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of maps that have more than one place."""
    if len(shape) != 4:
        return None
    height, width = shape[1:3] if _channels_last(shape) else shape[2:]
    return (height, width) if height * width > 1 else None


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether channels are the last dimension, as within Swin transformers."""
    return shape[1] == shape[2] != shape[3]
