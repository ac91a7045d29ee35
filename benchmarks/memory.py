"""Train on more data than there is memory, and say how much memory that took.

    python benchmarks/memory.py

Four domains of pictures in files without content (sparse: they take no room on the disk, but are
mapped and read like others), a quarter larger than the machine's memory in all. The growth of the
process beyond what it had before is printed last, as a share of the data (goal: at most 0.05).
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from afield.averages.last import Last
from afield.backbone import network
from afield.domains import Domain, DomainSet
from afield.material import Material
from afield.method import Task
from afield.methods.erm import ERM
from afield.record import Run
from afield.runner import stream_of
from afield.training import fit

NAMES, STEPS, SIDE = ("a", "b", "c", "d"), 20, 1024


def memory() -> int:
    """The machine's memory in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("MemTotal")).split()[1])


def peak() -> int:
    """The most memory of its own that this process has had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def domain(path: Path, size: int) -> Domain:
    """A domain that lies in a sparse file."""
    x = np.lib.format.open_memmap(path, "w+", np.uint8, (size, SIDE, SIDE, 3))
    return Domain(torch.from_numpy(x).permute(0, 3, 1, 2), torch.arange(size) % 2)


def main() -> None:
    """Train, measure and print."""
    torch.set_num_threads(2)
    each = int(1.25 * memory() / len(NAMES) / (3 * SIDE * SIDE))
    with tempfile.TemporaryDirectory() as folder:
        domains = {name: domain(Path(folder) / f"{name}.npy", each) for name in NAMES}
        whole = sum(found.x.numel() for found in domains.values())
        dataset = DomainSet("large", NAMES, ("x", "y"), reader=lambda _: domains)
        run = Run(
            dataset="large", method="erm", sources=NAMES[:3], size=32, augment="full", batch=8
        )
        before = peak()
        material = Material.of(run, dataset, domains, torch.device("cpu"))
        method, average = ERM(), Last()
        task = Task(
            sources=run.sources,
            classes=dataset.classes,
            steps=STEPS,
            network=lambda outputs: network("small:cnn", material.shape, outputs),
            optimizer=torch.optim.Adam,
        )
        learner = method.setup(task.network(2), task)
        average.follow(learner.model)
        stream = stream_of(run, material.samples)
        most = before
        for _ in fit(method, learner, average, stream, lambda _: {}, steps=STEPS, every=1):
            most = max(most, peak())
        material.exams.take(average.model)
        most = max(most, peak())
    print(
        f"data    {whole / 2**30:6.1f} GB in {len(NAMES)} domains, memory {memory() / 2**30:.1f} GB"
    )
    print(f"growth  {(most - before) / 2**30:6.2f} GB")
    print(f"share   {(most - before) / whole:.3f}")


if __name__ == "__main__":
    main()
