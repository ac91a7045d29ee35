"""Set up a run: read its domains, and build its network, method and batches."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afield import own_code, registry
from afield.data.domains import Domain, DomainSet, ReadOptions, data_root, relabel
from afield.data.lookup import find_dataset
from afield.data.prompts import Prompts, dataset_prompts
from afield.data.samples import Samples
from afield.data.stream import Stream
from afield.errors import DataError, SpecError
from afield.hyperparameters import build, with_neutral
from afield.networks.backbone import HUB, Classifier, find_backbone, network
from afield.networks.compilation import compile_features
from afield.networks.cost import Cost, network_cost
from afield.networks.freezing import freeze_blocks
from afield.networks.own_network import weights_digest
from afield.networks.precision import lower_precision
from afield.networks.tuning import Lora, layer_rates, tune_network
from afield.runs.run import Run
from afield.runs.run_data import Evaluations, RunData, TextLengths, training_rows
from afield.runs.run_files import read_run_inputs, read_run_weights
from afield.training.adaptation import Adaptation
from afield.training.average import Average
from afield.training.learner import Learner, Task
from afield.training.method import Method
from afield.training.optimizers import make_schedule, optimizer_factory, schedule_in_steps
from afield.training.partial_average import partial_average
from afield.training.scores import MAX_CONFUSION_CLASSES, Checkpoint

# The method that stands for a merge where a network is built.
PLACEHOLDER_METHOD = "erm"


@dataclass(frozen=True)
class Machine:
    """Where a run computes, the data root, and the store with the runs that it may start from."""

    device: torch.device
    threads: int
    root: Path
    store: Path = Path()

    @property
    def description(self) -> str:
        """The device as text, with everything on which results depend."""
        if self.device.type == "cpu":
            return f"cpu, {self.threads} thread(s)"
        return torch.cuda.get_device_name(self.device)


@dataclass
class TrainingState:
    """The objects of one training run, and its results so far.

    `keeps_network` tells whether the method trains the network that it was given, perhaps within a
    wrapper, and not another one with weights of its own. `first_weights` is the digest of the
    initial weights if the network is the user's own; empty for others, whose names say all.
    `best` and `best_parts` are the weights of the best checkpoint: during training those that
    change, at its end complete ones. `adapter` is what LoRA has changed. `cost` is the cost of the
    model that predicts, with the network in front of it if the samples are features.
    """

    run: Run
    machine: Machine
    method: Method
    learner: Learner
    average: Average
    stream: Stream
    evaluations: Evaluations
    inputs: dict[str, Any]
    dropped: int = 0
    text_lengths: TextLengths = field(default_factory=TextLengths)
    keeps_network: bool = True
    first_weights: str = ""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_parts: dict[str, Tensor] = field(default_factory=dict)
    adapter: dict[str, Tensor] = field(default_factory=dict)
    trained_weights: int = 0
    cost: Cost = field(default_factory=Cost)
    seconds: float = 0.0

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what the run uses, for its record."""
        first = {"first weights": self.first_weights} if self.first_weights else {}
        return {**versions(self.run), **first}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes if there are few enough for confusion matrices."""
        names = tuple(self.inputs["classes"])
        return names if len(names) <= MAX_CONFUSION_CLASSES else ()


def set_up(run: Run, machine: Machine) -> TrainingState:
    """Read the data of a run and build everything that its training needs."""
    own_code.check(run.code, run.key)
    dataset = find_dataset(run.dataset, machine.root)
    if dataset.fingerprint != run.data:
        raise DataError(
            f"{run.dataset}: the data changed after this run was planned; start the command again"
        )
    if run.start and find_backbone(run.backbone).start_digest(run.weights) != run.start:
        name = run.weights if run.weights not in ("", HUB) else run.backbone
        raise DataError(
            f"{name}: the file changed after this run was planned; start the command again"
        )
    return set_up_on(dataset, load_domains(dataset, run, machine.root), run, machine)


def set_up_on(
    dataset: DomainSet, domains: Mapping[str, Domain], run: Run, machine: Machine
) -> TrainingState:
    """Build everything that a training needs, for domains in memory."""
    torch.manual_seed(run.seed)
    # Base, experts and merged model must scale their inputs in the same way.
    start_inputs = read_run_inputs(machine.store / run.base) if run.base else None
    run_data = RunData.of(run, dataset, domains, machine.device, start_inputs)
    build_network = partial(
        network, run.backbone, run_data.shape, weights=run.weights, freeze_bn=run.freeze_bn
    )
    # A merged run trains nothing, but needs the same network, data and evaluations.
    name, params = (PLACEHOLDER_METHOD, {}) if run.experts else (run.method, run.params)
    kind = registry.find("methods", name)
    method: Method = build(kind, with_neutral(kind, params))
    stream = make_stream(run, run_data.samples, times=method.batches_per_group)
    epoch = -(-len(run_data.samples) // stream.total)
    classes = run.classes or dataset.classes
    task = Task(
        sources=run.sources,
        classes=classes,
        steps=run.steps,
        network=lambda outputs: build_network(outputs).to(machine.device),
        optimizer=optimizer_factory(run.optimizer, lr=run.lr, weight_decay=run.weight_decay),
        shape=run_data.shape,
        schedule=make_schedule(schedule_in_steps(run.lr_schedule, epoch), run.steps),
        clip_norm=run.clip_norm,
        scales_loss=run.precision == "fp16",
        pretrained=bool(run.weights or run.base),
        rates=_rates(run),
    )
    prompts = run_prompts(run, dataset)
    model = build_network(len(classes), class_names=prompts).to(machine.device)
    is_own = run.backbone.partition(":")[0] in own_code.names("backbones")
    first_weights = weights_digest(model)[:16] if is_own else ""
    if run.base and not run.adaptation and not run.members:
        model.load_state_dict(read_run_weights(machine.store / run.base))
    # Factors of LoRA are part of the weights of the model that predicts.
    cost = _cost(model, run_data.shape) if Lora.of(run.tune or "") else None
    freeze(model, run, run_data.shape)
    learner = method.setup(model, task)
    cost = cost or _cost(learner.model, run_data.shape)
    own = {id(parameter) for parameter in learner.model.parameters()}
    keeps_network = all(id(parameter) in own for parameter in model.parameters())
    if run.adaptation:
        # The weights of a finished run are those of the network that its method made.
        learner.model.load_state_dict(read_run_weights(machine.store / run.base))
    if run.precision:
        for net in (learner.model, learner.parts):
            lower_precision(net, run.precision)
    kind = registry.find("averages", run.average)
    average: Average = build(kind, with_neutral(kind, run.average_params))
    average = partial_average(average, learner.model)
    average.setup(learner.model, steps=learner.task.steps)
    if run.compile and not run.is_derived:
        _compile(learner, average, run.method, machine.threads)
    inputs = {"classes": classes, "shape": run_data.shape, **run_data.scaling.to_dict()}
    return TrainingState(
        run=run,
        machine=machine,
        method=method,
        learner=learner,
        average=average,
        stream=stream,
        evaluations=run_data.evaluations,
        inputs=inputs,
        dropped=run_data.dropped,
        text_lengths=run_data.text_lengths,
        keeps_network=keeps_network,
        first_weights=first_weights,
        cost=_with_front(cost, dataset),
    )


def _cost(model: nn.Module, shape: tuple[int, ...]) -> Cost:
    """The cost of a network; unknown for one whose layers cannot be counted, or are not fitted."""
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    try:
        return network_cost(model, torch.ones(1, *shape, device=device))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return Cost()


def _with_front(cost: Cost, dataset: DomainSet) -> Cost:
    """The cost with that of the frozen network in front; unknown if either is."""
    front = Cost.of_front(dataset.provenance)
    return cost + front if cost.parameters and front is not None else Cost()


def freeze(model: Classifier, run: Run, shape: tuple[int, ...]) -> None:
    """Freeze what the run does not train, and add the factors that it trains."""
    freeze_blocks(model.features, run.freeze_blocks, run.backbone)
    # The weights of derived runs have the products of factors in them.
    if run.tune and not (run.is_derived and Lora.of(run.tune)):
        tune_network(model, run.tune, run.backbone, shape[0])
    if run.freeze_head:
        model.head.requires_grad_(requires_grad=False)


def _rates(run: Run) -> Callable[[nn.Module], Mapping[int, float]] | None:
    """The factors of the learning rate of a run's layers; None if they all have the same rate."""
    if not run.layer_decay and not run.head_lr:
        return None
    head = run.head_lr / run.lr if run.head_lr else 1.0
    return partial(layer_rates, decay=run.layer_decay or 1.0, head=head)


def _compile(learner: Learner, average: Average, method: str, threads: int) -> None:
    """Compile the networks of a run."""
    if learner.layers:
        raise SpecError(
            f"compile=true: {method} reads or changes layers within the network, which is not "
            "possible in compiled code; leave it out"
        )
    if not compile_features(learner.model, learner.parts, average.model, threads=threads):
        raise SpecError(f"compile=true: {method} makes a network of its own; leave it out")


def run_prompts(run: Run, dataset: DomainSet) -> Prompts:
    """What a CLIP is asked for the classes of a run."""
    if not run.prompts:
        return Prompts.of_classes(run.classes or dataset.classes)
    prompts = dataset_prompts(dataset, run.class_names, run.templates)
    if prompts.digest != run.prompts:
        raise DataError(
            f"{run.dataset}: the prompts changed after this run was planned; start the command "
            "again"
        )
    return prompts


def run_adaptation(run: Run) -> Adaptation:
    """The adaptation of an adapted run, with its settings."""
    kind = registry.find("adaptations", run.adaptation)
    adaptation: Adaptation = build(kind, with_neutral(kind, run.adaptation_params))
    return adaptation


def load_domains(dataset: DomainSet, run: Run, root: Path | None = None) -> dict[str, Domain]:
    """The domains as a run needs them; those of the last run stay in memory.

    Labels are numbered by the classes that the run knows.
    """
    side = dataset.modality.stored_side(run.size)
    tokenizer = find_backbone(run.backbone).tokenizer if run.tokens else ""
    options = ReadOptions(
        root or data_root(),
        side=side,
        skip_broken=run.skip_broken,
        tokenizer=tokenizer,
        tokens=run.tokens,
    )
    if dataset.provenance.get("planned"):
        # Features that are not computed yet cannot be found again by their name.
        return relabel(dataset.load(options), dataset.classes, run.classes)
    domains = _load(dataset.spec, dataset.fingerprint, options)
    return relabel(domains, dataset.classes, run.classes)


@lru_cache(maxsize=1)
def _load(spec: str, fingerprint: str, options: ReadOptions) -> dict[str, Domain]:
    del fingerprint  # part of the cache key, so that changed data are read again
    return find_dataset(spec, options.root).load(options)


def make_stream(run: Run, samples: Samples, *, times: int = 1) -> Stream:
    """The batches of a run; `times` is the number of batches per group that a step consumes."""
    return Stream(
        samples,
        batch=(run.batch_total or run.batch) * times,
        seed=run.seed,
        per_step=run.domains_per_step,
        balance=run.balance,
        pooled=bool(run.batch_total),
        repeats=times,
    )


def steps_per_epoch(run: Run, dataset: DomainSet) -> int:
    """The number of steps in which a run draws as many samples as it has to train on."""
    domains = load_domains(dataset, run)
    samples = sum(map(len, training_rows(run, domains).values()))
    kind = registry.find("methods", run.method)
    method: Method = build(kind, with_neutral(kind, run.params))
    drawn_domains = min(run.domains_per_step, len(run.sources)) or len(run.sources)
    per_step = (run.batch_total or run.batch * drawn_domains) * method.batches_per_group
    return -(-samples // per_step) if per_step else 1


def versions(run: Run) -> dict[str, str]:
    """Versions of the packages, and digests of the files of the method and average."""
    packages = {name: version(name) for name in ("afield", "torch", "numpy")}
    package = find_backbone(run.backbone).package
    if package:
        packages[package] = version(package)
    if run.size:
        packages["pillow"] = version("pillow")
    if registry.is_classical(run.method):
        method = registry.find("methods", run.method)()
        packages[method.package] = method.package_version()
    return {**packages, "python": platform.python_version(), "code": code_digest(run)}


def code_digest(run: Run) -> str:
    """Digests of the files of a run's method and average, of its merge or of its adaptation."""
    if run.adaptation:
        return registry.digest("adaptations", run.adaptation)
    if run.experts:
        merges = registry.names("merges")
        return registry.digest("merges", run.method) if run.method in merges else ""
    return f"{registry.digest('methods', run.method)}-{registry.digest('averages', run.average)}"
