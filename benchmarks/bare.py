"""The yardstick of the benchmarks: a loop with nothing in it but training."""

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from afield.backbone import network
from afield.jobs import planned
from afield.loading import Stream
from afield.material import Material
from afield.method import Batch
from afield.readers import find_dataset
from afield.record import Run
from afield.runner import loaded

__all__ = ["asked", "bare_seconds", "stream_of"]


def asked(method: str = "erm", target: str = "15deg", **settings: int) -> Run:
    """The run that is measured: rotated_digits, leaving one angle out."""
    return planned("rotated_digits", method, target=target, settings=settings)


def stream_of(run: Run) -> Stream:
    """The run's own batches."""
    dataset = find_dataset(run.dataset)
    material = Material.of(run, dataset, loaded(dataset), torch.device("cpu"))
    return Stream(material.samples, batch=run.batch, seed=run.seed)


def bare_seconds(run: Run, batches: Sequence[Batch]) -> float:
    """Seconds for forward, loss, backward and optimiser step over batches already in memory."""
    dataset = find_dataset(run.dataset)
    model = network(run.backbone, tuple(batches[0].x.shape[1:]), len(dataset.classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=run.lr, fused=True)
    started = time.perf_counter()
    for batch in batches:
        loss = F.cross_entropy(model(batch.x), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - started
