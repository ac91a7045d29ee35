"""Seconds of a training step on images, with and without a thread that makes the next batch.

    AFIELD_DATA=... python benchmarks/ahead.py [NETWORK] [SIDE]

Batches of 3 × 32 images of `pacs_mini` with full augmentation, one thread for the step. Wall-clock
and CPU seconds, in turns of a few steps; the least of the turns counts, since other processes only
add to it. The ratio of the wall-clock seconds is printed last.
"""

import sys
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

from afield.compute import keep_freed_memory
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.networks.backbone import network
from afield.runs.run_data import RunData
from afield.runs.run_setup import load_domains, make_stream
from afield.studies.settings import resolve_run
from afield.training.method import pool

TURNS, STEPS = 4, 4


def main() -> None:
    """Measure and print."""
    keep_freed_memory()
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "timm:tf_efficientnet_lite0"
    side = int(sys.argv[2]) if len(sys.argv) > 2 else 112
    dataset = find_dataset(data_root() / "pacs_mini")
    sources = dataset.without(dataset.domains[0])
    settings = {"backbone": name, "weights": "none", "batch": 32, "size": side, "augment": "full"}
    run = resolve_run(dataset, "erm", sources, settings=settings)
    data = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    stream = make_stream(run, data.samples)
    model = network(name, data.shape, len(dataset.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=run.lr, fused=True)

    def steps(count: int) -> tuple[float, float]:
        begun = time.perf_counter(), time.process_time()
        for _ in range(count):
            batch = pool(next(stream))
            loss = F.cross_entropy(model(batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        return wall / count, cpu / count

    steps(2)
    times: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    for _ in range(TURNS):
        for how, found in times.items():
            with stream.reading_ahead() if how == "with" else nullcontext():
                found.append(steps(STEPS))
    least = {
        how: [min(column) for column in zip(*found, strict=True)] for how, found in times.items()
    }
    for how, (wall, cpu) in least.items():
        print(f"{how:8} {wall:6.3f} s, {cpu:.3f} CPU s")
    print(f"ratio    {least['without'][0] / least['with'][0]:.2f}")


if __name__ == "__main__":
    main()
