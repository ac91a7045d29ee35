"""CPU seconds of a training step and of an evaluation, with and without torch.compile, by network.

    python benchmarks/compilation.py [NETWORK...]

Every network computes on random inputs, both ways in turns, with one thread. The seconds until the
first step and evaluation are done include compiling. The factor of the first network is printed
last: how many times as fast a compiled step is.
"""

import copy
import sys
import time

import torch
from precision import NETWORKS, TURNS, cpu_seconds, stepper

from afield.compute import keep_freed_memory
from afield.data.samples import Rows
from afield.networks.backbone import network
from afield.networks.compilation import compile_features
from afield.networks.inference import compute_outputs


def measure(name: str) -> float:
    """Print the seconds of a network; return the factor of a step."""
    shape, batch, samples = NETWORKS[name]
    torch.manual_seed(0)
    plain = network(name, shape, 7)
    compiled = copy.deepcopy(plain)
    compile_features(compiled, threads=1)
    x, rows = torch.randn(batch, *shape), Rows([torch.randn(samples, *shape)])
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    steps = {net: stepper(net, x) for net in (plain, compiled)}
    begun = time.perf_counter()
    for net, step in steps.items():
        step()  # type: ignore[operator]
        compute_outputs(net, rows)
    first = time.perf_counter() - begun
    times = [
        [cpu_seconds(steps[net]), cpu_seconds(lambda net=net: compute_outputs(net, rows))]
        for _ in range(TURNS)
        for net in (plain, compiled)
    ]
    # The least of several turns: other processes only add to it.
    (step, test), (faster, faster_test) = (
        [min(turn[k] for turn in times[start::2]) for k in (0, 1)] for start in (0, 1)
    )
    print(
        f"{name:28} step {step:7.4f} {faster:7.4f} s  {step / faster:5.2f}x"
        f"   evaluation {test:7.4f} {faster_test:7.4f} s  {test / faster_test:5.2f}x"
        f"   first {first:5.1f} s",
        flush=True,
    )
    return step / faster


def main() -> None:
    """Measure and print."""
    keep_freed_memory()
    torch.set_num_threads(1)
    factors = [measure(name) for name in sys.argv[1:] or NETWORKS]
    print(f"factor {factors[0]:.2f}")


if __name__ == "__main__":
    main()
