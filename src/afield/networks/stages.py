"""Stages of a network, found by observing a forward pass, without a list of architectures.

Networks of timm list their stages. In other networks, a stage is the outermost and last module with
weights that outputs maps of a given size; a block, where samples are sequences of tokens; or a
linear layer, where samples are vectors.
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
from afield.networks.text_features import TextFeatures

# Number of blocks at the end of a transformer that count as late.
LATE_BLOCKS = 2


@dataclass(frozen=True)
class _Call:
    """A module that was called in a forward pass, with the shapes of its input and output."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def has_weights(self) -> bool:
        return next(self.module.parameters(), None) is not None

    @property
    def has_children(self) -> bool:
        return next(self.module.children(), None) is not None


def find_stages(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Return the modules whose outputs are the stages, in forward order, with the channel axis.

    Parameters
    ----------
    model
        A network; its `features`, if any, may be a network of timm.
    x
        A few samples for a forward pass in evaluation mode.
    """
    sample = tuple(x.shape)
    return {name: channel_axis(shape, sample) for name, shape in stage_shapes(model, x).items()}


def stage_shapes(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the modules whose outputs are the stages, in forward order, with their shapes."""
    calls, listed = _record_calls(model, x), _stages_of_timm(model)
    sample = tuple(x.shape)
    stages = set() if listed else {*_last_of_each_size(calls, sample), *_blocks(model, calls)}
    stages |= {c.name for c in calls if _is_layer(c) and not _is_within(c.name, listed)}
    names = [
        call.name if call.name in listed else _stage_end(calls[i:])
        for i, call in enumerate(calls)
        if call.name in stages or call.name in listed
    ]
    shapes = {call.name: call.shape for call in calls}
    return {name: shapes[name] for name in dict.fromkeys(names)}


def block_stages(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Return the stages that output maps, with the channel axis; empty if no stage does.

    If some stages are blocks, such as those of a ResNet, single layers before the first one are the
    stem, and do not count.
    """
    sample = tuple(x.shape)
    maps = {n: shape for n, shape in stage_shapes(model, x).items() if _map_size(shape, sample)}
    has_blocks = [next(model.get_submodule(n).children(), None) is not None for n in maps]
    start = has_blocks.index(True) if any(has_blocks) else 0
    return {name: channel_axis(maps[name], sample) for name in list(maps)[start:]}


def input_convolution(model: nn.Module, x: Tensor) -> nn.Conv2d | None:
    """Return the convolution that takes the samples themselves, None if there is not exactly one.

    It has one weight per input channel, so that it can get more channels.
    """
    first = [
        call.module
        for call in _record_calls(model, x)
        if call.input_shape == tuple(x.shape) and isinstance(call.module, nn.Conv2d)
    ]
    if len(first) == 1 and isinstance(first[0], nn.Conv2d) and first[0].groups == 1:
        return first[0]
    return None


def late_modules(model: nn.Module, x: Tensor) -> list[str]:
    """Return the late modules of a network in forward order; the last one is the classifier.

    These are the hidden fully connected layers before the classifier, if any (as in AlexNet); the
    last blocks of a transformer; otherwise the last stage of maps. A module whose input is the
    sample itself is never among them. Blocks for texts also take which tokens are padding, so that
    only the classifier counts.
    """
    calls, stages = _record_calls(model, x), find_stages(model, x)
    shapes = {call.name: call.shape for call in calls}
    *hidden, last = [call.name for call in calls if _is_layer(call)]
    blocks = [name for name in stages if len(shapes[name]) == 3][-LATE_BLOCKS:]
    if isinstance(getattr(model, "features", None), TextFeatures):
        blocks = []
    maps = [name for name in stages if len(shapes[name]) == 4][-2:]
    late = hidden or blocks or ([_stage_start(calls, *maps)] if len(maps) > 1 else [])
    input_shapes = {call.name: call.input_shape for call in calls}
    return [*(name for name in late if input_shapes[name] != tuple(x.shape)), last]


@contextmanager
def hook_outputs(
    model: nn.Module, callback: Callable[[str, Tensor], Tensor | None], *names: str
) -> Iterator[None]:
    """Call `callback` with the name and the output of the named modules in every forward pass.

    If it returns a tensor, the tensor replaces the output.
    """
    with ExitStack() as stack:
        for name in names:

            def hook(_: nn.Module, __: Any, output: Tensor, name: str = name) -> Tensor | None:
                return callback(name, output)

            stack.callback(model.get_submodule(name).register_forward_hook(hook).remove)
        yield


def channel_axis(shape: tuple[int, ...], sample: tuple[int, ...]) -> int:
    """Dimension of the channels (or units) of an activation of this shape.

    It is the last dimension of tokens and the second one of maps. Maps can also have channels last,
    as within Swin transformers: this is assumed if dimensions 1 and 2 have the aspect ratio of a
    sample's height and width, and the last two dimensions do not.
    """
    if len(shape) != 4 or len(sample) != 4:
        return len(shape) - 1 if len(shape) == 3 else 1
    aspect = sample[2] / sample[3]
    first, last = (
        abs(math.log(height / width / aspect)) for height, width in (shape[2:], shape[1:3])
    )
    return 1 if first <= last else 3


def channel_means(output: Tensor, axis: int) -> Tensor:
    """Samples × channels: means over the positions of a map, or over the tokens."""
    others = [dim for dim in range(1, output.ndim) if dim != axis]
    return output.mean(dim=others) if others else output


def _record_calls(model: nn.Module, x: Tensor) -> list[_Call]:
    """Submodules that are called exactly once, in the order in which they return."""
    calls: dict[str, _Call] = {}
    repeated: set[str] = set()

    def make_hook(name: str, module: nn.Module) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if name in calls:
                repeated.add(name)
            elif _has_rows(output, x) and inputs and _has_rows(inputs[0], x):
                calls[name] = _Call(name, module, tuple(inputs[0].shape), tuple(output.shape))

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.callback(module.register_forward_hook(make_hook(name, module)).remove)
        with eval_mode(model), torch.inference_mode():
            model(x)
    return [call for name, call in calls.items() if name not in repeated]


def _has_rows(value: Any, x: Tensor) -> bool:
    """Whether this is a tensor with one row per sample."""
    return isinstance(value, Tensor) and value.ndim > 1 and len(value) == len(x)


def _stages_of_timm(model: nn.Module) -> list[str]:
    """Stages that a network of timm lists; empty for other networks."""
    features = getattr(model, "features", model)
    prefix = "features." if features is not model else ""
    infos = getattr(features, "feature_info", None) or ()
    return [f"{prefix}{info['module']}" for info in infos if isinstance(info, dict)]


def _last_of_each_size(calls: list[_Call], sample: tuple[int, ...]) -> list[str]:
    """For every size of maps, the last of the outermost modules with weights.

    A module with children that takes the sample itself is most of the network, not a stage.
    """
    stages: dict[tuple[int, int], _Call] = {}
    for call in calls:
        size = _map_size(call.shape, sample)
        takes_sample = call.has_children and call.input_shape == sample
        if size and call.has_weights and not takes_sample:
            other = stages.get(size)
            if other is None or call.name.count(".") <= other.name.count("."):
                stages[size] = call
    return [call.name for call in stages.values()]


def _blocks(model: nn.Module, calls: list[_Call]) -> list[str]:
    """Outermost modules of a sequence or list of modules that output tokens."""
    blocks = [
        call.name
        for call in calls
        if len(call.shape) == 3
        and call.has_weights
        and isinstance(
            model.get_submodule(call.name.rpartition(".")[0]), (nn.Sequential, nn.ModuleList)
        )
    ]
    return [name for name in blocks if not _is_within(name, blocks)]


def _is_layer(call: _Call) -> bool:
    return len(call.shape) == 2 and isinstance(call.module, nn.Linear)


def _stage_end(calls: list[_Call]) -> str:
    """Last module of a stage: modules without weights that keep the shape, such as ReLU, belong."""
    stage = calls[0]
    after = takewhile(lambda call: not call.has_weights and call.shape == stage.shape, calls[1:])
    return [stage, *after][-1].name


def _stage_start(calls: list[_Call], before: str, stage: str) -> str:
    """First module of a stage: the next module with weights beside the end of the previous one."""
    after = calls[[call.name for call in calls].index(before) + 1 :]
    parent = before.rpartition(".")[0]
    siblings = [
        call.name for call in after if call.name.rpartition(".")[0] == parent and call.has_weights
    ]
    return siblings[0] if siblings else stage


def _is_within(name: str, others: list[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def _map_size(shape: tuple[int, ...], sample: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width of maps that have more than one position."""
    if len(shape) != 4:
        return None
    height, width = shape[1:3] if channel_axis(shape, sample) == 3 else shape[2:]
    return (height, width) if height * width > 1 else None
