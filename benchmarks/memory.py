"""Train on more data than there is memory, read every sample, and say how much memory that took.

    python benchmarks/memory.py

One array as the decode cache keeps it, a quarter larger than the machine's memory, mapped by the
cache's own function. The file has no content (it is sparse, all zeros), but it is mapped, read and
dropped again by the system like any other. A run trains on three of its four domains and is then
examined on all that it has not trained on; at last its training samples are read through once. The
most memory of its own that the process had beyond what it began with is printed last, as a share of
the data (goal: at most 0.05).
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from afield.data.cache import _map_tensor
from afield.data.domains import Domain, DomainSet
from afield.networks.backbone import network
from afield.runs.run import Run
from afield.runs.run_data import RunData
from afield.runs.run_setup import make_stream
from afield.training.averages.last import Last
from afield.training.evaluation import Evaluator
from afield.training.learner import Task
from afield.training.loop import checkpoints
from afield.training.methods.erm import ERM

NAMES, STEPS, SIDE = ("a", "b", "c", "d"), 20, 1024


def kilobytes(path: str, name: str) -> int:
    """A number of the system's, in bytes."""
    lines = Path(path).read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def domains(folder: Path) -> dict[str, Domain]:
    """Four domains in one array on disk."""
    each = int(1.25 * kilobytes("/proc/meminfo", "MemTotal") / len(NAMES) / (3 * SIDE * SIDE))
    shape = (len(NAMES) * each, SIDE, SIDE, 3)
    np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint8, shape).flush()
    parts = _map_tensor(folder / "rows.npy").permute(0, 3, 1, 2).split(each)
    labels = torch.arange(each) % 2
    return {name: Domain(x, labels) for name, x in zip(NAMES, parts, strict=True)}


def main() -> None:
    """Train, measure and print."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        found = domains(Path(folder))
        dataset = DomainSet("large", NAMES, ("x", "y"), reader=lambda _: found)
        settings = {"size": 32, "augment": "full", "batch": 8, "rules": ("left-out-source",)}
        run = Run(dataset="large", method="erm", sources=NAMES[:3], **settings)
        before = most = kilobytes("/proc/self/status", "RssAnon")
        material = RunData.of(run, dataset, found, torch.device("cpu"))
        method, average = ERM(), Last()
        task = Task(
            sources=run.sources,
            classes=dataset.classes,
            steps=STEPS,
            network=lambda outputs: network("small:cnn", material.shape, outputs),
            optimizer=torch.optim.Adam,
        )
        learner = method.setup(task.network(2), task)
        average.setup(learner.model, steps=learner.task.steps)
        stream, read = make_stream(run, material.samples), 0
        for _ in checkpoints(method, learner, average, stream, lambda _: {}, steps=STEPS, every=1):
            most = max(most, kilobytes("/proc/self/status", "RssAnon"))
        exam: Evaluator = material.evaluations.regular
        exam.evaluate(average.model)
        for chunk in material.samples.x.chunks(64):
            read += int(chunk.sum() == 0) * chunk.numel()
            most = max(most, kilobytes("/proc/self/status", "RssAnon"))
        read += len(exam.x) * exam.x.shape.numel()
    print(f"memory  {kilobytes('/proc/meminfo', 'MemTotal') / 2**30:6.2f} GB")
    print(f"read    {read / 2**30:6.2f} GB")
    print(f"growth  {(most - before) / 2**30:6.2f} GB")
    print(f"share   {(most - before) / read:.3f}")


if __name__ == "__main__":
    main()
