"""Sweeps: do the missing runs of many; a failed run does not stop the others.

Any number of sweeps may use one store at the same time. The first to claim a run does it.

How long the missing runs will take is forecast from one step and one evaluation of each method.
"""

import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from afield import own_code, registry
from afield.compute import deterministic
from afield.data.domains import data_root
from afield.data.listing import current_listing, join_listing
from afield.errors import AfieldError
from afield.interruption import Interrupted
from afield.networks.backbone import find_backbone
from afield.own_code import Code
from afield.runs.pool import Pool, default_pool
from afield.runs.record import Failure, Record
from afield.runs.run import Run
from afield.runs.run_setup import Machine, code_digest, set_up
from afield.runs.runner import execute
from afield.runs.store import BusyError, Store
from afield.training.loop import checkpoints

log = logging.getLogger(__name__)


def complete(
    runs: Sequence[Run], store: Store, *, pool: Pool | None = None, **options: Any
) -> Iterator[Record | Failure]:
    """Yield the record of every run, and do the missing runs; failures are stored and yielded.

    A run comes after the runs from whose weights it starts. Apart from that, all methods finish
    their first trial before any starts its second. `options` go to `execute`.
    """
    pool = pool or default_pool()
    store.prepare()
    stored = store.known(runs)
    yield from _warn_of_changes(record for record in stored if record is not None)
    missing = [run for run, record in zip(runs, stored, strict=True) if record is None]
    missing.sort(key=lambda run: (run.trial, run.draw))
    work = partial(
        attempt,
        store=store,
        options=options,
        codes=own_code.registered(),
        listing=current_listing(),
    )
    lost = partial(_lost, store=store)
    for stage in sorted({run.order for run in missing}):
        elsewhere = []
        ready = [run for run in missing if run.order == stage]
        for outcome in pool.map(partial(work, wait=False), ready, lost):
            if isinstance(outcome, Run):
                elsewhere.append(outcome)
            else:
                yield outcome
        for outcome in pool.map(partial(work, wait=True), elsewhere, lost):
            if not isinstance(outcome, Run):
                yield outcome


def _warn_of_changes(records: Iterable[Record]) -> Iterator[Record]:
    """Pass on stored records; log the methods whose code has changed since."""
    stale = set()
    for record in records:
        if registry.code_differs(record.versions.get("code", ""), code_digest(record.run)):
            stale.add(record.run.method)
        yield record
    for method in sorted(stale):
        log.warning("%s: its code has changed since these records; use another --store", method)


def sort_outcomes(
    runs: Sequence[Run], outcomes: Iterable[Record | Failure]
) -> list[Record | Failure]:
    """Outcomes in the order of `runs`."""
    position = {run.key: i for i, run in enumerate(runs)}
    return sorted(outcomes, key=lambda outcome: position[outcome.run.key])


def attempt(
    run: Run,
    *,
    store: Store,
    options: dict[str, Any],
    codes: Sequence[Code],
    listing: str,
    wait: bool,
) -> Record | Failure | Run:
    """The record, the failure, or the run itself if another process is doing it.

    `options` go to `execute`; `codes` and `listing` are those of the process that planned the run.
    """
    try:
        own_code.restore(codes)
        join_listing(listing)
        return execute(run, store, wait=wait, **options)
    except BusyError:
        return run
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        expected = isinstance(error, AfieldError)
        own = own_code.describe_error(error)
        if isinstance(error, SystemExit) and not own:
            raise
        message = str(error) if expected else own or f"{type(error).__name__}: {error}"
        return _keep(Failure(run, message, traceback.format_exc()), store)


def _lost(run: Run, *, store: Store) -> Failure:
    return _keep(Failure(run, "the process was killed (out of memory?)", trace=""), store)


def _keep(failure: Failure, store: Store) -> Failure:
    try:
        store.put_failure(failure)
    except (OSError, AfieldError) as error:
        log.warning("%s: the failure could not be written (%s)", failure.run.key, error)
    return failure


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
