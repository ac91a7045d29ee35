"""Steps per second of `fit` with erm on small:cnn, over those of a bare loop, in one run.

    python benchmarks/loop.py

The two take turns, and the ratio is that of the medians; it is printed last (goal: at least 0.90).
"""

import time
from functools import partial
from statistics import median

import torch
from bare import asked, bare_seconds, stream_of

from afield.averages.last import Last
from afield.backbone import network
from afield.method import Task, pool
from afield.methods.erm import ERM
from afield.readers import find_dataset
from afield.record import Run
from afield.training import fit

ROUNDS, STEPS = 15, 200


def fit_seconds(run: Run) -> float:
    """Seconds of `fit` for the same steps, drawing its batches, without evaluation."""
    stream = stream_of(run)
    shape = tuple(stream.samples.x.shape[1:])

    classes = find_dataset(run.dataset).classes
    task = Task(
        sources=run.sources,
        classes=classes,
        network=lambda outputs: network(run.backbone, shape, outputs),
        optimizer=partial(torch.optim.Adam, lr=run.lr, fused=True),
    )
    method, average = ERM(), Last()
    learner = method.setup(task.network(len(classes)), task)
    average.follow(learner.model)
    started = time.perf_counter()
    for _ in fit(method, learner, average, stream, lambda *_: {}, steps=STEPS, every=STEPS):
        pass
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    run = asked(steps=STEPS)
    stream = stream_of(run)
    batches = [pool(next(stream)) for _ in range(STEPS)]
    bare_seconds(run, batches)
    pairs = [(bare_seconds(run, batches), fit_seconds(run)) for _ in range(ROUNDS)]
    bare, ours = (median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"bare loop  {STEPS / bare:7.1f} steps/s")
    print(f"fit        {STEPS / ours:7.1f} steps/s")
    print(f"ratio      {bare / ours:.3f}")


if __name__ == "__main__":
    main()
