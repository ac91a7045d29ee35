"""CPU seconds of a training step and of an evaluation in bfloat16 and in float32, by network.

    python benchmarks/precision.py [NETWORK...]

Every network computes on random inputs, in both precisions in turns, with one thread. The factor
of the first network is printed last: how many times as fast a step is in bfloat16.
"""

import copy
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.compute import keep_freed_memory
from afield.data.samples import Rows
from afield.networks.backbone import network
from afield.networks.inference import compute_outputs
from afield.networks.precision import lower_precision

# Shape of a sample, and samples of a step and of an evaluation.
NETWORKS = {
    "timm:resnet18": ((3, 224, 224), 96, 96),
    "small:mnist_cnn": ((2, 28, 28), 128, 512),
    "timm:tf_efficientnet_lite0": ((3, 112, 112), 96, 192),
    "small:cnn": ((1, 16, 16), 80, 2048),
    "small:lenet": ((1, 28, 28), 128, 1024),
    "small:mlp": ((64,), 96, 4096),
    "small:vit": ((3, 32, 32), 96, 512),
}
TURNS = 3


def cpu_seconds(work: object) -> float:
    """CPU seconds of a call."""
    begun = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - begun


def stepper(model: nn.Module, x: Tensor) -> object:
    """A function that does one training step."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    y = torch.arange(len(x)) % 7

    def step() -> None:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(name: str) -> tuple[float, float]:
    """Print the seconds of a network; return the factors of a step and of an evaluation."""
    shape, batch, samples = NETWORKS[name]
    torch.manual_seed(0)
    full = network(name, shape, 7)
    lower = copy.deepcopy(full)
    lower_precision(lower, "bf16")
    x, rows = torch.randn(batch, *shape), Rows([torch.randn(samples, *shape)])
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    steps = {net: stepper(net, x) for net in (full, lower)}
    for step in steps.values():
        step()  # type: ignore[operator]
    times = [
        [cpu_seconds(steps[net]), cpu_seconds(lambda net=net: compute_outputs(net, rows))]
        for _ in range(TURNS)
        for net in (full, lower)
    ]
    # The least of several turns: other processes only add to it.
    (step, test), (step16, test16) = (
        [min(turn[k] for turn in times[first::2]) for k in (0, 1)] for first in (0, 1)
    )
    print(
        f"{name:28} step {step:7.3f} {step16:7.3f} s  {step / step16:5.2f}x"
        f"   evaluation {test:7.3f} {test16:7.3f} s  {test / test16:5.2f}x",
        flush=True,
    )
    return step / step16, test / test16


def main() -> None:
    """Measure and print."""
    keep_freed_memory()
    torch.set_num_threads(1)
    factors = [measure(name) for name in sys.argv[1:] or NETWORKS]
    print(f"factor {factors[0][0]:.2f}")


if __name__ == "__main__":
    main()
