"""What a training step costs by what is trained: CPU seconds, weights and memory.

    python benchmarks/tuning.py WEIGHTS

WEIGHTS is the folder with tf_efficientnet_lite0.safetensors and minilm_l6. Every value of `tune` is
measured in a process of its own, on one core: two steps to warm up, then STEPS steps of ERM with
Adam on random images (112 px) or texts (64 tokens). The time is CPU time, so that other programs
on the machine matter little; the memory is the growth of the greatest resident memory beyond that
of the process with the network in it.
"""

import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from afield.networks.backbone import network
from afield.networks.tuning import tune_network

STEPS, BATCH = 5, 16
TUNES = ("head", "norms", "lora:rank=4,alpha=8", "attention", "full")


def networks(folder: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names, weights and shapes of samples."""
    lite0 = str(folder / "tf_efficientnet_lite0.safetensors")
    minilm = f"hf:{folder / 'minilm_l6'}"
    return [("timm:tf_efficientnet_lite0", lite0, (3, 112, 112)), (minilm, "hub", (64,))]


def measure(name: str, weights: str, shape: tuple[int, ...], tune: str) -> None:
    """Train for some steps, and print a row."""
    torch.manual_seed(0)
    net = network(name, shape, 7, weights=weights, freeze_bn=True)
    if tune != "full":
        tune_network(net, tune, name, shape[0])
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-3, fused=True)
    images = len(shape) == 3
    x = torch.randn(BATCH, *shape) if images else torch.randint(5, 2000, (BATCH, *shape))
    y = torch.arange(BATCH) % 7
    net.train()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in range(2 + STEPS):
        if step == 2:
            started = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    seconds = (time.process_time() - started) / STEPS
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    count = sum(parameter.numel() for parameter in trained)
    model = name.rpartition("/")[2]
    print(f"{model:30} {tune:22} {count:>12,} {seconds:8.2f} s {grown:8.0f} MB", flush=True)


def main() -> None:
    """Measure each combination in a process of its own."""
    torch.set_num_threads(1)
    for name, weights, shape in networks(Path(sys.argv[1])):
        for tune in TUNES:
            if tune == "attention" and name.startswith("timm:"):
                continue
            if (child := os.fork()) == 0:
                measure(name, weights, shape, tune)
                os._exit(0)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
