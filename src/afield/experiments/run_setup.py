"""A run before its first step: its domains read, its network, method and batches built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afield import registry
from afield.data.class_lists import relabel
from afield.data.domains import Domain, DomainSet, ReadOptions, data_root
from afield.data.lookup import find_dataset
from afield.data.samples import Samples
from afield.data.stream import Stream
from afield.errors import DataError
from afield.experiments.record import Run
from afield.experiments.run_data import Evaluations, RunData, training_rows
from afield.experiments.store import read_run_inputs, read_run_weights
from afield.files import file_digest
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import network
from afield.training.average import Average
from afield.training.evaluation import Checkpoint
from afield.training.method import Learner, Method, Task
from afield.training.optimizers import optimizer_factory
from afield.training.schedules import make_schedule, schedule_in_steps

__all__ = [
    "Machine",
    "TrainingState",
    "load_domains",
    "make_stream",
    "set_up",
    "set_up_on",
    "steps_per_epoch",
]


# The method that stands for a merge where a network is built.
PLACEHOLDER_METHOD = "erm"


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
    # Of a merged run there is nothing to train, but all else is as in training.
    name, params = (PLACEHOLDER_METHOD, {}) if run.experts else (run.method, run.params)
    kind = registry.find("methods", name)
    method: Method = build(kind, with_neutral(kind, params))
    stream = make_stream(run, material.samples, times=method.batches_per_group)
    epoch = -(-len(material.samples) // stream.total)
    classes = run.classes or dataset.classes
    task = Task(
        sources=run.sources,
        classes=classes,
        steps=run.steps,
        network=lambda outputs: build_network(outputs).to(machine.device),
        optimizer=optimizer_factory(run.optimizer, lr=run.lr, weight_decay=run.weight_decay),
        shape=material.shape,
        schedule=make_schedule(schedule_in_steps(run.lr_schedule, epoch), run.steps),
        clip_norm=run.clip_norm,
        pretrained=bool(run.weights or run.base),
    )
    model = build_network(len(classes), class_names=classes).to(machine.device)
    if run.base:
        model.load_state_dict(read_run_weights(machine.store / run.base))
    if run.freeze_head:
        model.head.requires_grad_(requires_grad=False)
    learner = method.setup(model, task)
    kind = registry.find("averages", run.average)
    average: Average = build(kind, with_neutral(kind, run.average_params))
    average.setup(learner.model, steps=learner.task.steps)
    inputs = {"classes": classes, "shape": material.shape, **material.scaling.to_dict()}
    return TrainingState(
        run=run,
        place=machine,
        method=method,
        learner=learner,
        average=average,
        stream=stream,
        evaluations=material.evaluations,
        inputs=inputs,
        dropped=material.dropped,
    )


def load_domains(dataset: DomainSet, run: Run, root: Path | None = None) -> dict[str, Domain]:
    """The dataset's domains as a run needs them, kept in memory from one run to the next.

    Labels are numbered by the classes that the run knows.
    """
    side = dataset.modality.stored_side(run.size)
    reading = ReadOptions(root or data_root(), side=side, skip_broken=run.skip_broken)
    domains = _loaded(dataset.spec, dataset.fingerprint, reading)
    return relabel(domains, dataset.classes, run.classes)


@lru_cache(maxsize=1)
def _loaded(spec: str, fingerprint: str, reading: ReadOptions) -> dict[str, Domain]:
    del fingerprint  # only so that changed data are read again
    return find_dataset(spec, reading.root).load(reading)


def make_stream(run: Run, samples: Samples, *, times: int = 1) -> Stream:
    """The batches of a run, whose method takes them so many at a time."""
    return Stream(
        samples,
        batch=(run.batch_total or run.batch) * times,
        seed=run.seed,
        per_step=run.domains_per_step,
        balance=run.balance,
        pooled=bool(run.batch_total),
    )


def steps_per_epoch(run: Run, dataset: DomainSet) -> int:
    """The number of steps in which a run draws as many samples as it has to train on."""
    domains = load_domains(dataset, run)
    samples = sum(map(len, training_rows(run, domains).values()))
    kind = registry.find("methods", run.method)
    method: Method = build(kind, with_neutral(kind, run.params))
    drawn_domains = min(run.domains_per_step, len(run.sources)) or len(run.sources)
    per_step = (run.batch_total or run.batch * drawn_domains) * method.batches_per_group
    return -(-samples // per_step)
