"""The yardstick of the benchmarks: a loop with nothing in it but training.

These machines are noisy: the same loop takes 1.7 s in one minute and 3.1 s in the next. So what is
measured and the yardstick take turns every few steps, and the noise falls on both alike.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.networks.backbone import network
from afield.runs.run import Run
from afield.runs.run_data import RunData
from afield.runs.run_setup import load_domains
from afield.studies.planning import plan_run
from afield.training.method import pool

__all__ = ["Stopwatch", "asked", "bare_steps", "stream_of"]


class Stopwatch:
    """Adds up the CPU seconds spent between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def start(self) -> None:
        """Go on counting."""
        self.since = time.process_time()

    def stop(self) -> None:
        """Stop counting."""
        self.seconds += time.process_time() - self.since


def asked(**settings: Any) -> Run:
    """The run that is measured: erm on rotated_digits, leaving one angle out."""
    settings = {"augment": "none", **settings}
    return plan_run("rotated_digits", "erm", target="15deg", settings=settings)


def stream_of(run: Run) -> Stream:
    """The run's own batches."""
    dataset = find_dataset(run.dataset)
    material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
    return Stream(material.samples, batch=run.batch, seed=run.seed)


def bare_steps(run: Run) -> Iterator[None]:
    """Forward, loss, backward, optimiser step: one for each `next`, on batches in memory."""
    stream = stream_of(run)
    batches = [pool(next(stream)) for _ in range(run.steps)]
    classes = len(find_dataset(run.dataset).classes)
    model = network(run.backbone, tuple(batches[0].x.shape[1:]), classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=run.lr, fused=True)
    while True:
        for batch in batches:
            loss = F.cross_entropy(model(batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield
