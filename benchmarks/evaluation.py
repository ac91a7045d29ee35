"""CPU seconds and memory of an evaluation, with chunks by layers and with the former chunks.

    python benchmarks/evaluation.py [NETWORK...]

Formerly, a chunk had up to 512 samples and 2^23 input values. Outputs must be equal to the bit.
How many times as fast the first network is now is printed last.
"""

import sys
import time

import torch
from torch import Tensor, nn

from afield.compute import track_peak_memory
from afield.data.samples import Rows
from afield.networks.backbone import network
from afield.networks.inference import compute_outputs

# Shape of a sample, and number of samples.
NETWORKS = {
    "timm:tf_efficientnet_lite0": ((3, 112, 112), 512),
    "small:mnist_cnn": ((2, 28, 28), 2048),
    "timm:resnet18": ((3, 224, 224), 110),
}
TURNS = 3


def former(model: nn.Module, x: Rows) -> Tensor:
    """Outputs in chunks bounded by inputs."""
    size = min(512, 2**23 // x.shape.numel())
    with torch.inference_mode():
        return torch.cat([model(chunk) for chunk in x.chunks(size)])


def measure(name: str) -> float:
    """Print the numbers of a network; return how many times as fast it is now."""
    shape, samples = NETWORKS[name]
    torch.manual_seed(0)
    model, x = network(name, shape, 7).eval(), Rows([torch.randn(samples, *shape)])
    results, outputs = [], []
    for evaluate in (compute_outputs, former):
        seconds = []
        with track_peak_memory(torch.device("cpu")) as peak:
            before = peak()
            for _ in range(TURNS):
                begun = time.process_time()
                outputs.append(evaluate(model, x))
                seconds.append(time.process_time() - begun)
            results.append((min(seconds), (peak() - before) / 2**20))
    if not torch.equal(outputs[0], outputs[-1]):
        raise SystemExit(f"{name}: the outputs differ")
    (now, memory), (then, former_memory) = results
    print(f"{name} before: {then:.2f} s, {former_memory:.0f} MB more; ", end="")
    print(f"now: {now:.2f} s, {memory:.0f} MB more", flush=True)
    return then / now


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    factors = [measure(name) for name in sys.argv[1:] or NETWORKS]
    print(f"factor {factors[0]:.2f}")


if __name__ == "__main__":
    main()
