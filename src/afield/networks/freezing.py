"""Freeze the beginning of a network: what comes before its blocks, and the first blocks."""

from torch import nn

from afield.errors import SpecError

__all__ = ["freeze_blocks"]


def freeze_blocks(features: nn.Module, count: int, name: str) -> None:
    """Freeze the first `count` blocks of a network, and all that is defined before them; 0: none.

    Blocks are the modules of the longest list or sequence of modules of one class, such as those
    of a transformer; embeddings are defined before them. `name` is that of the network, for errors.
    """
    if not count:
        return
    blocks = _blocks(features)
    if count > len(blocks):
        raise SpecError(f"freeze_blocks={count}: {name} has {len(blocks)} block(s)")
    later = {id(p) for block in blocks[count:] for p in block.parameters()}
    inside = {id(p) for block in blocks[:count] for p in block.parameters()}
    seen_blocks = False
    for parameter in features.parameters():
        seen_blocks = seen_blocks or id(parameter) in later | inside
        if id(parameter) in inside or not seen_blocks:
            parameter.requires_grad = False


def _blocks(features: nn.Module) -> list[nn.Module]:
    """The modules of the longest list of modules of one class; empty if there is none."""
    lists = [list(m) for m in features.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    alike = [each for each in lists if len({type(module) for module in each}) == 1]
    return max((each for each in alike if len(each) > 1), key=len, default=[])
