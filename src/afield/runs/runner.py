"""Do a run and return its record, reproducibly.

    trained    set up data, network, method and batches; continue from the last snapshot, if there
               is one; train, and evaluate the unseen domains at the checkpoints that rules read
    merged     a network from the weights of a base and of experts (`merged`)
    ensemble   the mean of the predictions of finished runs that differ in their seed
    adapted    the model of a finished run, predicting with a test-time adaptation: it sees the
               samples of every domain in batches, without labels

The record is a function of the run's key. If `execute` is killed at any moment and started again,
it continues from its last snapshot and produces the same bytes as an uninterrupted run.

A merged run, an ensemble or an adapted run has one checkpoint, which every rule reads. It uses the
weights that the runs behind it kept: those of the checkpoint that is best on the sources'
validation splits, or on the validation domains.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afield import interruption, registry
from afield.compute import deterministic, find_device, hostname, track_peak_memory
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.errors import AfieldError, SpecError
from afield.networks.compilation import check_compiler, compiled_run
from afield.networks.lora import (
    adapter_tensors,
    changing_state,
    load_changing_state,
    merged_state,
)
from afield.networks.precision import check_precision
from afield.runs.classical import fit_classical
from afield.runs.merged import build_ensemble, build_merged
from afield.runs.record import Progress, Record
from afield.runs.row import Row
from afield.runs.run import CLASSICAL_ROLE, Run
from afield.runs.run_setup import (
    Machine,
    TrainingState,
    load_domains,
    run_adaptation,
    set_up,
    versions,
)
from afield.runs.selection import RULES, selection_value, validation_accuracy
from afield.runs.store import Store
from afield.seeds import capture_rng_state, restore_rng_state
from afield.training.evaluation import without_details
from afield.training.loop import checkpoints
from afield.training.metrics import METRICS
from afield.training.scores import PARTS, Checkpoint

log = logging.getLogger(__name__)
CheckpointCallback = Callable[[Run, Checkpoint], None]
# Snapshots take at most a twentieth of the time, so large ones are written less often.
SNAPSHOT_INTERVAL_FACTOR = 20
# Seconds between two progress files.
PROGRESS_SECONDS = 1.0
# The value of a checkpoint that cannot be deployed.
NOT_DEPLOYED = -math.inf


def execute(
    run: Run,
    store: Store,
    *,
    root: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    snapshot_seconds: float = 10.0,
    wait: bool = True,
    watch: CheckpointCallback | None = None,
) -> Record:
    """Do a run, or return its record if it is finished.

    Parameters
    ----------
    run, store
        The run, and the store of its record.
    root
        The folder of all datasets; by default ``AFIELD_DATA``.
    device, threads
        Where to compute. The last digits of a sum on the CPU depend on the number of threads, so
        the number is fixed and stored in the record.
    snapshot_seconds
        The shortest time between two snapshots. A shorter run starts again when it is killed.
    wait
        Whether to wait for another process that is doing this run, or to raise `BusyError`.
    watch
        Called with the run and every new checkpoint.
    """
    if not 1 <= threads <= (os.cpu_count() or 1):
        raise SpecError(f"threads={threads}: this machine has {os.cpu_count()} cores")
    where = find_device(device)
    check_precision(run.precision, where)
    compiles = run.compile and not run.is_derived
    if compiles:
        check_compiler()
    interruption.stop_if_requested()
    with store.claim(run, wait=wait):
        stored = store.get(run)
        if stored is not None:
            store.tidy(run)
            return stored
        run = store.with_stored_rules(run)
        store.fetch(*filter(None, [run.base]), *run.made_of)
        compiling = compiled_run(run.method, run.backbone) if compiles else nullcontext()
        exact = deterministic(threads, inexact=run.inexact)
        with exact, compiling, track_peak_memory(where) as peak:
            machine = Machine(where, threads, root or data_root(), store.root)
            if run.is_derived:
                work = _derive(run, store, machine)
            elif run.role == CLASSICAL_ROLE:
                work = _fit(run, machine, watch)
            else:
                work = _trained(run, store, machine, snapshot_seconds, watch)
                _evaluate_unseen(work)
                _merge_factors(work)
                _report_broken_losses(work)
        record = Record(
            run=run,
            checkpoints=tuple(work.checkpoints),
            seconds=work.seconds,
            versions=work.versions,
            device=work.machine.description,
            dropped=work.dropped,
            **asdict(work.text_lengths),
            memory=peak(),
            class_names=work.class_names,
            at=time.time(),
            trained_weights=work.trained_weights,
            **asdict(work.cost),
        )
        store.put(
            record,
            work.best,
            parts=work.best_parts,
            adapter=work.adapter,
            inputs=work.inputs,
        )
        return record


def _derive(run: Run, store: Store, machine: Machine) -> TrainingState:
    """Make the model of a merged run, an ensemble or an adapted run, and evaluate it once."""
    started = time.monotonic()
    work = set_up(run, machine)
    logs: Mapping[str, float] = {}
    model: nn.Module
    if run.adaptation:
        model = run_adaptation(run).predictor(work.learner.model.eval())
    elif run.members:
        # The weights are those of the members, which keep them.
        model = build_ensemble(run, work.learner.model, store.root)
        work.cost *= len(run.members)
    else:
        model, logs = build_merged(run, work, store)
        # An adapted run has the weights of its base; what it learns about a domain is not kept.
        work.best = model.state_dict()
    work.checkpoints = [replace(_only_checkpoint(work, model), logs=logs)]
    work.seconds = time.monotonic() - started
    return work


def _fit(run: Run, machine: Machine, watch: CheckpointCallback | None) -> TrainingState:
    """Fit a classical method once, and evaluate it; a run that is killed starts again."""
    started = time.monotonic()
    work = set_up(run, machine)
    model = fit_classical(work)
    work.best = model.state_dict()
    work.checkpoints = [_only_checkpoint(work, model)]
    work.seconds = time.monotonic() - started
    _report_broken_losses(work)
    if watch is not None:
        watch(run, work.checkpoints[-1])
    return work


def _only_checkpoint(work: TrainingState, model: nn.Module) -> Checkpoint:
    """The only checkpoint of a run without steps, with the scores that every rule reads."""
    run, evaluations = work.run, work.evaluations
    checkpoint = Checkpoint(run.steps, evaluations.evaluate(model), {})
    checkpoint = evaluations.add_scores(checkpoint, model, evaluations.last)
    # The best checkpoint is also the last one, so most of its scores are there already.
    if not set(evaluations.best.keys) <= set(evaluations.last.keys):
        checkpoint = evaluations.add_scores(checkpoint, model, evaluations.best)
    if not Row.of(run).is_bound:
        return checkpoint
    # The upper bound was trained on the main split of its targets, so it is scored on their probe
    # split. With official lists, the main split is the test list, which is not trained on.
    domains = load_domains(find_dataset(run.dataset, work.machine.root), run, work.machine.root)
    listed = [n for n in domains if domains[n].test is not None and run.split != "random"]
    unseen = run.tested or [n for n in checkpoint.scores if n not in run.sources]
    split = [name for name in unseen if name not in listed]
    on_probe = {n: replace(checkpoint.scores[n], main=checkpoint.scores[n].probe) for n in split}
    return replace(checkpoint, scores={**checkpoint.scores, **on_probe})


def _trained(
    run: Run,
    store: Store,
    machine: Machine,
    snapshot_seconds: float,
    watch: CheckpointCallback | None,
) -> TrainingState:
    """Continue a run from its snapshot, if there is one, and train it to its end.

    If the first steps after the snapshot fail, the snapshot is dropped and the run starts again.
    """
    work = _resume(run, store, machine)
    before = len(work.checkpoints)
    try:
        with interruption.postponed():
            _train(work, store, snapshot_seconds, watch)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not before or len(work.checkpoints) > before:
            raise
        log.warning("%s: the snapshot does not fit (%s); starting again", run.key, error)
        store.drop_snapshot(run)
        work = set_up(run, machine)
        with interruption.postponed():
            _train(work, store, snapshot_seconds, watch)
    return work


def _train(
    work: TrainingState,
    store: Store,
    snapshot_seconds: float,
    watch: CheckpointCallback | None,
) -> None:
    """Do the remaining steps, and write snapshots and progress files."""
    run, before = work.run, work.seconds
    started = saved = reported = time.monotonic()
    _report_progress(work, store)
    pause, failed = snapshot_seconds, False
    for checkpoint in remaining_checkpoints(work):
        now = time.monotonic()
        work.seconds = before + now - started
        if now - saved >= pause or interruption.requested():
            failed = _save_snapshot(work, store, report=not failed)
            saved = time.monotonic()
            # With snapshot_seconds=0, as in tests, every checkpoint is saved.
            pause = (
                max(snapshot_seconds, SNAPSHOT_INTERVAL_FACTOR * (saved - now))
                if snapshot_seconds
                else 0.0
            )
        interruption.stop_if_requested()
        if now - reported >= PROGRESS_SECONDS:
            _report_progress(work, store)
            reported = now
        if watch is not None:
            watch(run, checkpoint)


def _save_snapshot(work: TrainingState, store: Store, *, report: bool) -> bool:
    """Write a snapshot, and return whether that failed; the training continues in any case."""
    try:
        store.put_snapshot(work.run, _state(work), work.checkpoints)
    # torch reports a full disk as a RuntimeError, followed by a trace in C++.
    except (OSError, RuntimeError, AfieldError) as error:
        if report:
            log.warning(
                "%s: the snapshot cannot be written (%s); the run continues, but would start again "
                "if it were interrupted",
                store.where(work.run),
                str(error).partition("\n")[0],
            )
        return True
    return False


def _report_progress(work: TrainingState, store: Store) -> None:
    """Write how far the run is; an error here does not stop the run."""
    last = work.checkpoints[-1] if work.checkpoints else None
    progress = Progress(
        run=work.run,
        unseen=tuple(name for name in work.evaluations.order if name not in work.run.sources),
        step=last.step if last else 0,
        accuracy=validation_accuracy(last, work.run) if last else None,
        seconds=work.seconds,
        host=hostname(),
        pid=os.getpid(),
    )
    with suppress(OSError, AfieldError):
        store.put_progress(progress)


def remaining_checkpoints(state: TrainingState) -> Iterator[Checkpoint]:
    """Do the remaining steps; `state` keeps all checkpoints and the weights of the best one."""
    for checkpoint in checkpoints(
        state.method,
        state.learner,
        state.average,
        state.stream,
        state.evaluations.evaluate,
        steps=state.run.steps,
        every=state.run.every,
    ):
        _keep(state, checkpoint)
        yield checkpoint


def _keep(work: TrainingState, checkpoint: Checkpoint) -> None:
    """Add a checkpoint, and keep its weights if it is the best so far."""
    before = _values(work)
    work.checkpoints.append(checkpoint)
    after = _values(work)
    if after[-1] > max(before, default=NOT_DEPLOYED):
        work.best, work.best_parts = (
            {name: value.clone() for name, value in state.items()}
            for state in (changing_state(work.average.model), work.learner.parts.state_dict())
        )
    if before:
        # Details stay where a rule can pick: at the best checkpoint and at the last.
        for i in {before.index(max(before)), len(before) - 1} - {after.index(max(after))}:
            work.checkpoints[i] = _without_details(work.checkpoints[i], work.run)


def _without_details(checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """A checkpoint that takes less space; some rules can pick any checkpoint."""
    often = {part for name in run.rules for part in RULES[name].at_every}
    return without_details(checkpoint, list(METRICS) if often else [run.metric], detailed=often)


def _values(work: TrainingState) -> list[float]:
    return [
        selection_value(checkpoint, work.run) if checkpoint.deployed else NOT_DEPLOYED
        for checkpoint in work.checkpoints
    ]


def _evaluate_unseen(work: TrainingState) -> None:
    """Evaluate unseen domains at the last checkpoint and at the one to deploy only."""
    model, done, evaluations = work.average.model, work.checkpoints, work.evaluations
    done[-1] = evaluations.add_scores(done[-1], model, evaluations.last)
    values = _values(work)
    best = values.index(max(values))
    load_changing_state(model, work.best)
    done[best] = evaluations.add_scores(done[best], model, evaluations.best)


def _merge_factors(work: TrainingState) -> None:
    """Replace the best weights by complete ones, without factors; keep these apart."""
    work.trained_weights = sum(each.numel() for each in work.learner.parameters())
    work.adapter = adapter_tensors(work.average.model)
    work.best = merged_state(work.average.model)
    if work.adapter:
        work.learner.parts.load_state_dict(work.best_parts)
        work.best_parts = merged_state(work.learner.parts)


def _report_broken_losses(work: TrainingState) -> None:
    """Log the unseen domains on which the loss of the last checkpoint is not a number."""
    for domain, scores in work.checkpoints[-1].scores.items():
        parts = (getattr(scores, part) for part in PARTS)
        if domain not in work.run.sources and any(s and math.isnan(s.loss) for s in parts):
            log.warning("%s: the loss on %s is not a number (NaN)", work.run.key, domain)


def _state(work: TrainingState) -> dict[str, Any]:
    return {
        "learner": {**work.learner.state_dict(), "model": changing_state(work.learner.model)},
        "average": work.average.state_dict(),
        "stream": work.stream.state_dict(),
        "random": capture_rng_state(),
        "best": work.best,
        "best_parts": work.best_parts,
        "seconds": work.seconds,
        "made": _environment(work),
    }


def _environment(work: TrainingState) -> dict[str, Any]:
    """What must be equal when a run continues from a snapshot, to produce the same bytes."""
    run, device = work.run, work.machine.description
    groups = {"group": run.group} if run.group else {}
    return {"device": device, "rules": list(run.rules), **groups, **versions(run)}


def _environment_differs(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a snapshot cannot be continued; code digests of an older form are not compared."""
    same = {**before, "code": ""} == {**now, "code": ""}
    return not same or registry.code_differs(before["code"], now["code"])


def _check_resumed(work: TrainingState) -> None:
    """Raise ValueError unless the parts of a snapshot belong together."""
    step, steps = work.learner.step, [checkpoint.step for checkpoint in work.checkpoints]
    if type(step) is not int or steps != sorted(steps) or steps[-1:] != [step]:
        raise ValueError(f"at step {step}, with checkpoints of steps {steps[-3:]}")
    if not math.isfinite(work.seconds):
        raise ValueError(f"{work.seconds} seconds")
    states = (changing_state(work.average.model), work.learner.parts.state_dict())
    for kept, state in zip((work.best, work.best_parts), states, strict=True):
        wanted = {name: value.shape for name, value in state.items()}
        if kept and {name: value.shape for name, value in kept.items()} != wanted:
            raise ValueError("the best weights are of another network")
    # An average such as swad deploys nothing at first.
    if not work.best and any(checkpoint.deployed for checkpoint in work.checkpoints):
        raise ValueError("no best weights")


def _resume(run: Run, store: Store, machine: Machine) -> TrainingState:
    """The state of the last snapshot, or the initial state without one."""
    work, snapshot = set_up(run, machine), store.snapshot(run)
    if snapshot is None:
        return work
    state, checkpoints = snapshot
    try:
        if _environment_differs(state["made"], _environment(work)):
            log.warning("%s: the snapshot is from another environment; starting again", run.key)
            return work
        trained = {**work.learner.model.state_dict(), **state["learner"]["model"]}
        work.learner.load_state_dict({**state["learner"], "model": trained})
        work.average.load_state_dict(state["average"])
        work.stream.load_state_dict(state["stream"])
        restore_rng_state(state["random"])
        work.checkpoints, work.seconds = checkpoints, float(state["seconds"])
        # Snapshots of an earlier version have no parts.
        work.best, work.best_parts = state["best"], state.get("best_parts", {})
        _check_resumed(work)
    # The method's code has changed since, or the snapshot is of an earlier version.
    except (LookupError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        log.warning("%s: the snapshot does not fit (%s); starting again", run.key, error)
        store.drop_snapshot(run)
        return set_up(run, machine)
    return work
