"""Networks whose features are compiled with torch.compile.

The features of a `Classifier` are all of its layers but the last, so whatever calls them, or the
whole network, runs compiled code. The names of weights stay as they are, copies of a network are
compiled too, and random numbers are those of torch. Every shape of a batch is compiled by itself:
code for all shapes would depend on which of them came first, and an interrupted run must compute
the same after it continues.
"""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier

# Greatest number of shapes and modes for which features are compiled.
MAX_SHAPES = 64
COMPILERS = ("g++", "clang++", "c++", "cl")


def check_compiler() -> None:
    """Raise `SpecError` if this machine lacks what torch.compile needs."""
    chosen = os.environ.get("CXX", "")
    if not any(map(shutil.which, (chosen,) if chosen else COMPILERS)):
        raise SpecError(
            "compile=true needs a C++ compiler, such as g++; install one or leave it out"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise SpecError(
            "compile=true needs the headers of Python (Python.h), such as the package python3-dev; "
            "install them or leave it out"
        )


def compile_features(*networks: nn.Module, threads: int) -> int:
    """Compile the features of all classifiers in the networks, and return how many there are."""
    found = {
        id(module.features): module.features
        for net in networks
        for module in net.modules()
        if isinstance(module, Classifier)
    }
    for features in found.values():
        if not isinstance(features.forward, CompiledForward):
            features.forward = CompiledForward(features, threads)
    return len(found)


class CompiledForward:
    """Takes the place of the method `forward` of a module.

    While a module has hooks that it did not have when it was compiled, such as those that measure
    or exchange the outputs of layers, it is not compiled.
    """

    def __init__(self, module: nn.Module, threads: int) -> None:
        self.module = module
        self.plain = type(module).forward
        self.hooks = [
            hooks
            for each in module.modules()
            for hooks in (each._forward_hooks, each._forward_pre_hooks)
        ]
        self.hook_count = self._count_hooks()
        options: dict[str, Any] = {"fallback_random": True, "cpp.threads": threads}
        self.compiled = torch.compile(self.plain, dynamic=False, options=options)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The outputs of the module."""
        if self._count_hooks() != self.hook_count:
            return self.plain(self.module, *inputs, **options)
        return self.compiled(self.module, *inputs, **options)

    def _count_hooks(self) -> int:
        return sum(map(len, self.hooks))


@contextmanager
def compiled_run(method: str, backbone: str) -> Iterator[None]:
    """Settings of torch for a compiled run; what torch cannot compile is reported in one line."""
    from torch._dynamo import config, exc

    # Torch 2.6 has other names.
    recent = hasattr(config, "recompile_limit")
    limit = "recompile_limit" if recent else "cache_size_limit"
    fail = "fail_on_recompile_limit_hit" if recent else "fail_on_cache_limit_hit"
    with config.patch({limit: MAX_SHAPES, f"accumulated_{limit}": 16 * MAX_SHAPES, fail: True}):
        try:
            yield
        except exc.FailOnRecompileLimitHit:
            raise SpecError(
                f"compile=true: {method} computes features of batches of more than {MAX_SHAPES} "
                "sizes, and each is compiled by itself; leave it out"
            ) from None
        except exc.TorchDynamoException as error:
            reason = str(error).partition("\n")[0]
            raise SpecError(f"compile=true: torch cannot compile {backbone}: {reason}") from None
        except RuntimeError as error:
            if "double backward" not in str(error):
                raise
            raise SpecError(
                f"compile=true: {method} differentiates gradients of the network, which torch "
                "cannot compile; leave it out"
            ) from None
