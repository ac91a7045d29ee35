"""The one training loop."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import torch
from torch import nn

from afield.data.stream import Stream
from afield.errors import DivergedError
from afield.networks.freezing import has_unfrozen_batchnorm, update_batchnorm
from afield.training.average import Average
from afield.training.learner import Learner
from afield.training.method import Logs, Method, pool
from afield.training.scores import Checkpoint, Scores

# Greatest number of batches from which BatchNorm statistics are measured, as in SWAD.
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
    """Train, and yield checkpoints; to stop early, stop iterating.

    Parameters
    ----------
    method, learner
        The algorithm, and its state. A learner that was trained for some steps continues there.
    average
        Weights to deploy; evaluated at checkpoints.
    stream
        Batches.
    evaluate
        Computes the scores of a model at a checkpoint.
    steps
        Number of steps after which training ends, unless the average ends it earlier.
    every
        Number of steps between checkpoints; there is always one at the end.
    """
    learner.train()
    recent: list[Logs] = []
    with stream.reading_ahead():
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
                    learner.model
                    if average.deploys_at_end
                    else _deployable(average, learner, stream, every)
                )
                checkpoint = Checkpoint(learner.step, evaluate(model), _mean_logs(recent))
                recent = []
                _require_finite(method, checkpoint, learner.task.sources)
                average.after_checkpoint(_without_unseen(checkpoint, learner.task.sources))
                if average.deploys_at_end:
                    ended = average.done or learner.step == steps
                    scores = checkpoint.scores
                    if ended:
                        scores = evaluate(_deployable(average, learner, stream))
                    logs = {**checkpoint.logs, **(average.logs() if ended else {})}
                    checkpoint = replace(checkpoint, scores=scores, logs=logs, deployed=ended)
                learner.train()
                yield checkpoint


def _deployable(
    average: Average, learner: Learner, stream: Stream, most: int = MAX_BATCHNORM_BATCHES
) -> nn.Module:
    """The averaged model; statistics of unfrozen BatchNorm layers are measured for its weights."""
    if average.model is not learner.model and has_unfrozen_batchnorm(average.model):
        epoch = -(-len(stream.samples) // stream.total)
        batches = islice(stream.fresh_copy(), min(epoch, most, MAX_BATCHNORM_BATCHES))
        update_batchnorm(average.model, (pool(batch).x for batch in batches))
    return average.model


def _mean_logs(recent: list[Logs]) -> dict[str, float]:
    """Means since the last checkpoint; numbers are read off the device only here."""
    columns: dict[str, list[torch.Tensor]] = {}
    for logs in recent:
        for name, value in logs.items():
            columns.setdefault(name, []).append(value.float())
    means = [torch.stack(values).mean() for values in columns.values()]
    return dict(zip(columns, torch.stack(means).tolist(), strict=True)) if means else {}


def _without_unseen(checkpoint: Checkpoint, sources: tuple[str, ...]) -> Checkpoint:
    """A checkpoint with the sources' scores only, because an average is a part of training."""
    scores = {name: checkpoint.scores[name] for name in sources if name in checkpoint.scores}
    return replace(checkpoint, scores=scores)


def _require_finite(method: Method, checkpoint: Checkpoint, sources: tuple[str, ...]) -> None:
    """Raise `DivergedError` if a logged value or a validation loss is not finite."""
    scores = [checkpoint.score(source, "probe") for source in sources]
    losses = [score.loss for score in scores if score is not None]
    if not all(map(math.isfinite, [*checkpoint.logs.values(), *losses])):
        raise DivergedError(
            f"{type(method).__name__} at step {checkpoint.step}: not finite: logs "
            f"{dict(checkpoint.logs)}, losses on the sources' validation splits {losses}; try a "
            "smaller lr"
        )
