"""Steps per second of `checkpoints` with erm on small:cnn, over those of a bare loop, in one run.

    python benchmarks/loop.py

`checkpoints` draws its batches; the bare loop has them in memory. They take turns every ten steps.
The ratio is printed last (goal: at least 0.97).
"""

import torch
from bare import Stopwatch, asked, bare_steps, stream_of

from afield.data.lookup import find_dataset
from afield.networks.backbone import network
from afield.training.averages.last import Last
from afield.training.learner import Task
from afield.training.loop import checkpoints
from afield.training.methods.erm import ERM
from afield.training.optimizers import optimizer_factory

STEPS, TURN = 3000, 10


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    run = asked(steps=STEPS)
    stream, bare = stream_of(run), bare_steps(run)
    shape, classes = tuple(stream.samples.x.shape), find_dataset(run.dataset).classes
    task = Task(
        sources=run.sources,
        classes=classes,
        steps=STEPS,
        network=lambda outputs: network(run.backbone, shape, outputs),
        optimizer=optimizer_factory(run.optimizer, lr=run.lr, weight_decay=run.weight_decay),
    )
    method, average = ERM(), Last()
    learner = method.setup(task.network(len(classes)), task)
    average.setup(learner.model, steps=learner.task.steps)
    ours, yardstick = Stopwatch(), Stopwatch()
    for _ in range(TURN):
        next(bare)
    ours.start()
    for _ in checkpoints(method, learner, average, stream, lambda _: {}, steps=STEPS, every=TURN):
        ours.stop()
        yardstick.start()
        for _ in range(TURN):
            next(bare)
        yardstick.stop()
        ours.start()
    print(f"bare loop  {STEPS / yardstick.seconds:7.1f} steps/s")
    print(f"fit        {STEPS / ours.seconds:7.1f} steps/s")
    print(f"ratio      {yardstick.seconds / ours.seconds:.3f}")


if __name__ == "__main__":
    main()
