"""The one training loop."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import torch
from torch import nn

from afield.data.stream import Stream
from afield.errors import DivergedError
from afield.networks.batchnorm import has_unfrozen_batchnorm, update_batchnorm
from afield.training.average import Average
from afield.training.evaluation import Checkpoint, Scores
from afield.training.method import Learner, Logs, Method, pool

__all__ = ["checkpoints"]

# From how many batches at most the statistics of BatchNorm layers are measured, as SWAD does it.
MAX_BATCHNORM_BATCHES = 500

Evaluate = Callable[[nn.Module], Mapping[str, Scores]]


def checkpoints(
    method: Method,
    learner: Learner,
    average: Average,
    stream: Stream,
    evaluate: Evaluate,
    *,
    steps: int,
    every: int,
) -> Iterator[Checkpoint]:
    """Train, and yield a checkpoint every so often; to stop early, stop iterating.

    Parameters
    ----------
    method, learner, average, stream
        What trains, its state, what is deployed of it, and its batches. All but the method change;
        a learner that has been trained for some steps goes on from there.
    evaluate
        Gives the scores of a model at a checkpoint.
    steps, every
        Train until so many steps are done, or the average has seen enough, with a checkpoint after
        each `every` and at the end.
    """
    learner.train()
    recent: list[Logs] = []
    while learner.step < steps and not average.done:
        groups = method.regroup(learner, stream.samples)
        if groups is not None:
            stream.regroup(groups)
        if learner.task.schedule is not None:
            learner.apply_schedule()
        recent.append(method.update(learner, next(stream)))
        average.after_step(learner.model)
        learner.step += 1
        if learner.step % every == 0 or learner.step == steps:
            model = (
                learner.model if average.deploys_at_end else _ready(average, learner, stream, every)
            )
            checkpoint = Checkpoint(learner.step, evaluate(model), _means(recent))
            recent = []
            _check(method, checkpoint, learner.task.sources)
            average.after_checkpoint(_of_sources(checkpoint, learner.task.sources))
            if average.deploys_at_end:
                over = average.done or learner.step == steps
                scores = evaluate(_ready(average, learner, stream)) if over else checkpoint.scores
                logs = {**checkpoint.logs, **(average.logs() if over else {})}
                checkpoint = replace(checkpoint, scores=scores, logs=logs, deployed=over)
            learner.train()
            yield checkpoint


def _ready(
    average: Average, learner: Learner, stream: Stream, most: int = MAX_BATCHNORM_BATCHES
) -> nn.Module:
    """What is deployed, with statistics of its own where its BatchNorm layers are not frozen."""
    if average.model is not learner.model and has_unfrozen_batchnorm(average.model):
        once = -(-len(stream.samples) // stream.total)
        batches = islice(stream.fresh_copy(), min(once, most, MAX_BATCHNORM_BATCHES))
        update_batchnorm(average.model, (pool(each).x for each in batches))
    return average.model


def _means(recent: list[Logs]) -> dict[str, float]:
    """Means since the last checkpoint; only here are numbers read off the device."""
    found: dict[str, list[torch.Tensor]] = {}
    for logs in recent:
        for name, value in logs.items():
            found.setdefault(name, []).append(value.float())
    means = [torch.stack(values).mean() for values in found.values()]
    return dict(zip(found, torch.stack(means).tolist(), strict=True)) if means else {}


def _of_sources(checkpoint: Checkpoint, sources: tuple[str, ...]) -> Checkpoint:
    """A checkpoint without unseen domains: an average is part of the training."""
    known = {name: checkpoint.scores[name] for name in sources if name in checkpoint.scores}
    return replace(checkpoint, scores=known)


def _check(method: Method, checkpoint: Checkpoint, sources: tuple[str, ...]) -> None:
    """A training that has left the finite numbers ends here."""
    scores = [checkpoint.score(source, "probe") for source in sources]
    losses = [score.loss for score in scores if score is not None]
    if not all(map(math.isfinite, [*checkpoint.logs.values(), *losses])):
        where = f"{type(method).__name__} at step {checkpoint.step}"
        told = f"logs {dict(checkpoint.logs)}, losses on the sources' probe parts {losses}"
        raise DivergedError(f"{where}: not finite: {told}; try a smaller lr")
