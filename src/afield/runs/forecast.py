"""How long a benchmark will take, from one step and one evaluation of each of its methods."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from afield.compute import deterministic
from afield.data.domains import data_root
from afield.errors import AfieldError
from afield.networks.backbone import find_backbone
from afield.runs.run import Run
from afield.runs.run_setup import Machine, set_up
from afield.training.loop import checkpoints

# Seconds that measuring may take; methods that are left then count as the mean of the others.
BUDGET = 5.0
# Steps before and in a measurement.
WARM_UP, MEASURED = 1, 3
# Seconds per run for reading, setting up and writing.
OVERHEAD = 0.4


@dataclass(frozen=True)
class _Speed:
    """Seconds of a step per source, and of an evaluation."""

    step: float
    evaluation: float


def expected_seconds(runs: Sequence[Run], *, workers: int, threads: int = 1) -> float | None:
    """Seconds until all runs are done, roughly; None where measuring would itself take long.

    Parameters
    ----------
    runs
        The runs to do.
    workers, threads
        The number of runs at a time, and of threads for each.
    """
    trained = [run for run in runs if not run.is_derived]
    # One step of a large pretrained network can take a minute.
    if not trained or any(find_backbone(run.backbone).input_form() for run in trained):
        return None
    with deterministic(threads):
        speeds = dict(_measure({run.method: run for run in trained}))
    if not speeds:
        return None
    return (sum(_seconds(run, speeds) for run in runs)) / workers


def _measure(examples: Mapping[str, Run]) -> Iterator[tuple[str, _Speed]]:
    started = time.monotonic()
    for method, run in examples.items():
        if time.monotonic() - started > BUDGET:
            return
        try:
            yield method, _speed(run)
        except (AfieldError, RuntimeError):
            continue


def _speed(run: Run) -> _Speed:
    plain = replace(run, base="", weights="", start="", freeze_head=False)
    state = set_up(plain, Machine(torch.device("cpu"), torch.get_num_threads(), data_root()))
    evaluations: list[float] = []

    def evaluate(model: Any) -> Any:
        begun = time.perf_counter()
        scores = state.evaluations.evaluate(model)
        evaluations.append(time.perf_counter() - begun)
        return scores

    parts = (state.method, state.learner, state.average, state.stream, evaluate)
    steps = WARM_UP + MEASURED
    list(checkpoints(*parts, steps=WARM_UP, every=WARM_UP))
    begun = time.perf_counter()
    list(checkpoints(*parts, steps=steps, every=steps))
    training = time.perf_counter() - begun - evaluations[-1]
    return _Speed(training / MEASURED / len(run.sources), evaluations[-1])


def _seconds(run: Run, speeds: Mapping[str, _Speed]) -> float:
    mean = _Speed(
        sum(speed.step for speed in speeds.values()) / len(speeds),
        sum(speed.evaluation for speed in speeds.values()) / len(speeds),
    )
    if run.is_derived:
        return OVERHEAD + mean.evaluation
    speed = speeds.get(run.method, mean)
    training = run.steps * len(run.sources) * speed.step
    return OVERHEAD + training + run.steps / run.every * speed.evaluation
