"""From a run to its record, in one function, exactly.

The record is a function of the run's key: killed at any moment and started again, `execute` goes on
from its last snapshot and ends in the same bytes as if it had never been interrupted.
"""

import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afield import registry
from afield.compute import default_device, deterministic, hostname, track_peak_memory
from afield.data.domains import Domain, DomainSet, ReadOptions, data_root
from afield.data.images import stored_side
from afield.data.lookup import find_dataset
from afield.data.samples import Samples
from afield.data.stream import Stream
from afield.errors import AfieldError, DataError, SpecError
from afield.experiments.record import Progress, Record, Run
from afield.experiments.run_data import Evaluations, RunData
from afield.experiments.selection import selection_value
from afield.experiments.store import Store, read_run_inputs, read_run_weights
from afield.files import file_digest
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import find_backbone, network
from afield.seeds import capture_rng_state, restore_rng_state
from afield.training.average import Average
from afield.training.evaluation import Checkpoint
from afield.training.loop import checkpoints
from afield.training.method import Learner, Method, Task
from afield.training.optimizers import make_schedule, optimizer_factory

__all__ = [
    "Machine",
    "TrainingState",
    "execute",
    "load_domains",
    "make_stream",
    "remaining_checkpoints",
    "set_up",
    "set_up_on",
    "versions",
]

log = logging.getLogger(__name__)

CheckpointCallback = Callable[[Run, Checkpoint], None]
# A snapshot may take a twentieth of the time: a large one comes less often.
SNAPSHOT_INTERVAL_FACTOR = 20
# Seconds between two words on how far a run is.
PROGRESS_SECONDS = 1.0
# The value of a checkpoint that cannot be chosen.
NOT_DEPLOYED = -1.0
# The method that stands for a merge where a network is built.
PLACEHOLDER_METHOD = "erm"


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
    """Do a run, or return its record if it is done.

    Parameters
    ----------
    run, store
        What to do, and where its record is kept.
    root
        Where datasets lie; by default ``AFIELD_DATA``.
    device, threads
        Where to compute. The last digits of a sum on the CPU depend on the number of threads, so
        it is fixed, and named in the record.
    snapshot_seconds
        The least time between two snapshots; a run shorter than that starts again when killed.
    wait
        Whether to wait for another process that is at this run, or to raise `BusyError`.
    watch
        Called with the run and every new checkpoint.
    """
    if not 1 <= threads <= (os.cpu_count() or 1):
        raise SpecError(f"threads={threads}: this machine has {os.cpu_count()} cores")
    run.check_supported()
    if run.experts:
        raise SpecError(f"{run.key}: a merged model is not trained; bench with --merges makes it")
    place = torch.device(device or default_device())
    with store.claim(run, wait=wait):
        known = store.get(run)
        if known is not None:
            return known
        run = store.with_stored_rules(run)
        store.fetch(*filter(None, [run.base]))
        with deterministic(threads), track_peak_memory(place) as peak:
            work = _continued(run, store, Machine(place, threads, root or data_root(), store.root))
            _train(work, store, snapshot_seconds, watch)
            _read_unseen(work)
        record = Record(
            run=run,
            checkpoints=tuple(work.checkpoints),
            seconds=work.seconds,
            versions=versions(run),
            device=work.place.told,
            dropped=work.dropped,
            memory=peak(),
        )
        store.put(record, work.best, parts=work.best_parts, inputs=work.inputs)
        return record


def load_domains(dataset: DomainSet, run: Run, root: Path | None = None) -> dict[str, Domain]:
    """The dataset's domains as a run needs them, kept in memory from one run to the next."""
    side = stored_side(run.size) if dataset.resizable else 0
    reading = ReadOptions(root or data_root(), side=side, skip_broken=run.skip_broken)
    return _loaded(dataset.spec, dataset.fingerprint, reading)


@dataclass(frozen=True)
class Machine:
    """Where a run is done, and where the runs lie from whose weights it may start."""

    device: torch.device
    threads: int
    root: Path
    store: Path = Path()

    @property
    def told(self) -> str:
        """The device in words, as far as results depend on it."""
        if self.device.type == "cpu":
            return f"cpu, {self.threads} thread(s)"
        return torch.cuda.get_device_name(self.device)


@dataclass
class TrainingState:
    """The pieces of one training, and what is known of it so far."""

    run: Run
    place: Machine
    method: Method
    learner: Learner
    average: Average
    stream: Stream
    evaluations: Evaluations
    inputs: dict[str, Any]
    dropped: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_parts: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0


def set_up(run: Run, machine: Machine) -> TrainingState:
    """Everything read and built, nothing trained."""
    dataset = find_dataset(run.dataset, machine.root)
    if dataset.fingerprint != run.data:
        raise DataError(f"{run.dataset}: the data have changed since the run was asked; ask again")
    if run.start and file_digest(run.weights) != run.start:
        raise DataError(f"{run.weights}: the file has changed since the run was asked; ask again")
    return set_up_on(dataset, load_domains(dataset, run, machine.root), run, machine)


def set_up_on(
    dataset: DomainSet, domains: Mapping[str, Domain], run: Run, machine: Machine
) -> TrainingState:
    """Everything built for domains that are in memory, nothing trained."""
    torch.manual_seed(run.seed)
    # What base, experts and merged model see must be the same numbers.
    told = read_run_inputs(machine.store / run.base) if run.base else None
    material = RunData.of(run, dataset, domains, machine.device, told)
    build_network = partial(
        network, run.backbone, material.shape, weights=run.weights, freeze_bn=run.freeze_bn
    )
    task = Task(
        sources=run.sources,
        classes=dataset.classes,
        steps=run.steps,
        network=lambda outputs: build_network(outputs).to(machine.device),
        optimizer=optimizer_factory(run.optimizer, lr=run.lr, weight_decay=run.weight_decay),
        shape=material.shape,
        schedule=make_schedule(run.lr_schedule, run.steps),
        clip_norm=run.clip_norm,
    )
    # Of a merged run there is nothing to train, but all else is as in training.
    name, params = (PLACEHOLDER_METHOD, {}) if run.experts else (run.method, run.params)
    kind = registry.find("methods", name)
    method: Method = build(kind, with_neutral(kind, params))
    model = build_network(len(dataset.classes), class_names=dataset.classes).to(machine.device)
    if run.base:
        model.load_state_dict(read_run_weights(machine.store / run.base))
    if run.freeze_head:
        model.head.requires_grad_(requires_grad=False)
    learner = method.setup(model, task)
    kind = registry.find("averages", run.average)
    average: Average = build(kind, with_neutral(kind, run.average_params))
    average.setup(learner.model, steps=learner.task.steps)
    inputs = {"classes": dataset.classes, "shape": material.shape, **material.scaling.to_dict()}
    return TrainingState(
        run=run,
        place=machine,
        method=method,
        learner=learner,
        average=average,
        stream=make_stream(run, material.samples, times=method.batches_per_group),
        evaluations=material.evaluations,
        inputs=inputs,
        dropped=material.dropped,
    )


def make_stream(run: Run, samples: Samples, *, times: int = 1) -> Stream:
    """The batches of a run, whose method takes them so many at a time."""
    return Stream(
        samples,
        batch=run.batch * times,
        seed=run.seed,
        per_step=run.domains_per_step,
        balance=run.balance,
    )


def _train(
    work: TrainingState,
    store: Store,
    snapshot_seconds: float,
    watch: CheckpointCallback | None,
) -> None:
    """The rest of the steps, with a snapshot now and then, and a word on how far it is."""
    run, before = work.run, work.seconds
    started = saved = told = time.monotonic()
    _tell(work, store)
    pause = snapshot_seconds
    for checkpoint in remaining_checkpoints(work):
        now = time.monotonic()
        work.seconds = before + now - started
        if now - saved >= pause:
            store.put_snapshot(run, _state(work), work.checkpoints)
            saved = time.monotonic()
            # None at all between two is what tests ask for.
            pause = (
                max(snapshot_seconds, SNAPSHOT_INTERVAL_FACTOR * (saved - now))
                if snapshot_seconds
                else 0.0
            )
        if now - told >= PROGRESS_SECONDS:
            _tell(work, store)
            told = now
        if watch is not None:
            watch(run, checkpoint)


def _tell(work: TrainingState, store: Store) -> None:
    """Say how far the run is; that it cannot be said is no reason to stop."""
    last = work.checkpoints[-1] if work.checkpoints else None
    progress = Progress(
        run=work.run,
        unseen=tuple(name for name in work.evaluations.order if name not in work.run.sources),
        step=last.step if last else 0,
        accuracy=selection_value(last, work.run) if last else None,
        seconds=work.seconds,
        host=hostname(),
        pid=os.getpid(),
    )
    with suppress(OSError, AfieldError):
        store.put_progress(progress)


def remaining_checkpoints(state: TrainingState) -> Iterator[Checkpoint]:
    """The rest of the steps; the work keeps all checkpoints, and the weights of the best."""
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
    """Add a checkpoint, and remember its weights if it is the best so far."""
    best = max(_values(work), default=NOT_DEPLOYED)
    work.checkpoints.append(checkpoint)
    if _values(work)[-1] > best:
        work.best, work.best_parts = (
            {name: value.clone() for name, value in net.state_dict().items()}
            for net in (work.average.model, work.learner.parts)
        )


def _values(work: TrainingState) -> list[float]:
    return [
        selection_value(checkpoint, work.run) if checkpoint.deployed else NOT_DEPLOYED
        for checkpoint in work.checkpoints
    ]


def _read_unseen(work: TrainingState) -> None:
    """Read unseen domains at the last checkpoint and where the first rule picks, not everywhere."""
    model, done, exams = work.average.model, work.checkpoints, work.evaluations
    done[-1] = exams.completed(done[-1], model, exams.last)
    values = _values(work)
    best = values.index(max(values))
    model.load_state_dict(work.best)
    done[best] = exams.completed(done[best], model, exams.best)


def _state(work: TrainingState) -> dict[str, Any]:
    return {
        "learner": work.learner.state_dict(),
        "average": work.average.state_dict(),
        "stream": work.stream.state_dict(),
        "random": capture_rng_state(),
        "best": work.best,
        "best_parts": work.best_parts,
        "seconds": work.seconds,
        "made": _made(work),
    }


def _made(work: TrainingState) -> dict[str, Any]:
    """What a snapshot must share with the run that goes on from it, to end in the same bytes."""
    return {"device": work.place.told, "rules": list(work.run.rules), **versions(work.run)}


def _made_otherwise(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a snapshot cannot be continued; a code digest of an older form does not matter."""
    same = {**before, "code": ""} == {**now, "code": ""}
    return not same or registry.code_differs(before["code"], now["code"])


def versions(run: Run) -> dict[str, str]:
    """What a run is made with now: packages, and the files of its method and average."""
    packages = {name: version(name) for name in ("afield", "torch", "numpy")}
    package = find_backbone(run.backbone).package
    if package:
        packages[package] = version(package)
    if run.size:
        packages["pillow"] = version("pillow")
    return {**packages, "python": platform.python_version(), "code": _code(run)}


def _code(run: Run) -> str:
    """What changes with the files of a run's method and average, or of its merge."""
    if run.experts:
        merges = registry.names("merges")
        return registry.digest("merges", run.method) if run.method in merges else ""
    return f"{registry.digest('methods', run.method)}-{registry.digest('averages', run.average)}"


def _continued(run: Run, store: Store, place: Machine) -> TrainingState:
    """The work as its last snapshot has it, or from the beginning."""
    work, found = set_up(run, place), store.snapshot(run)
    if found is None:
        return work
    state, checkpoints = found
    if _made_otherwise(state["made"], _made(work)):
        log.warning("%s: the snapshot was made otherwise; starting again", run.key)
        return work
    try:
        work.learner.load_state_dict(state["learner"])
        work.average.load_state_dict(state["average"])
        work.stream.load_state_dict(state["stream"])
    except (KeyError, ValueError, RuntimeError) as error:  # the method's code has changed since
        log.warning("%s: the snapshot does not fit (%s); starting again", run.key, error)
        store.drop_snapshot(run)
        return set_up(run, place)
    restore_rng_state(state["random"])
    work.checkpoints, work.seconds = checkpoints, state["seconds"]
    # Those of an earlier version have no parts.
    work.best, work.best_parts = state["best"], state.get("best_parts", {})
    return work


@lru_cache(maxsize=1)
def _loaded(spec: str, fingerprint: str, reading: ReadOptions) -> dict[str, Domain]:
    del fingerprint  # only so that changed data are read again
    return find_dataset(spec, reading.root).load(reading)
