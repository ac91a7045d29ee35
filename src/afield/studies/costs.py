"""What a recipe or a benchmark costs, before it is run: runs, time, disk, and missing data."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from afield.compute import default_device, preserve_torch_state
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.data.outline import outline, published_size
from afield.errors import DataError
from afield.files import format_bytes
from afield.networks.backbone import Shape, network
from afield.networks.cost import network_cost, planned_cost
from afield.networks.pretrained import Encoder
from afield.runs.run import Run
from afield.runs.run_setup import load_domains
from afield.runs.store import open_store
from afield.studies.benchmark import Benchmark
from afield.studies.features import features_file, plan_features, spell_finetune, use_features
from afield.studies.planning import asked_dataset, plan_runs
from afield.studies.recipe import Recipe


def plan_recipe(recipe: Recipe) -> list[list[Run]]:
    """The runs of each part, after reading and checking the data; missing data are one error."""
    missing = missing_data(recipe)
    if missing:
        raise DataError(
            f"{recipe.name} needs data that are not here: {', '.join(missing)}; "
            f"`afield recipe show {recipe.name}` says how to get them"
        )
    return [plan_runs(part.benchmark) for part in recipe.parts]


def missing_data(recipe: Recipe) -> dict[str, str]:
    """Datasets of a recipe whose files are missing, and how to get them."""
    return _missing({name: find_dataset(name) for name in recipe.datasets})


def _missing(datasets: Mapping[str, DomainSet]) -> dict[str, str]:
    """The datasets whose files are missing, and how to get them."""
    return {
        name: f"afield data get {name}"
        if dataset.download.archives
        else dataset.download.instructions
        for name, dataset in datasets.items()
        if dataset.missing_files()
    }


def merge_plans(plans: Sequence[Sequence[Run]]) -> list[Run]:
    """All runs of several plans, each once, with the selection rules of all of them."""
    merged: dict[str, Run] = {}
    for run in (run for plan in plans for run in plan):
        before = merged.get(run.key)
        rules = tuple(dict.fromkeys((*(before.rules if before else ()), *run.rules)))
        merged[run.key] = replace(before or run, rules=rules)
    return list(merged.values())


# Most samples in a measured step, the number of steps, and the seconds after which no other one
# starts. The fastest step counts; the first one also allocates memory.
MAX_MEASURED, MEASURED_STEPS, MAX_SECONDS = 8, 6, 1.0
# The time of steps with more multiplications follows from the speed of the machine.
MAX_MEASURED_MACS = 500_000_000
BYTES_PER_WEIGHT = 4
DAY, HOUR, MINUTE = 86_400, 3600, 60


@dataclass(frozen=True)
class Costs:
    """The cost of a recipe, or of a benchmark.

    Attributes
    ----------
    runs, steps
        Number of runs, and of training steps of all; None if steps depend on missing data.
    images
        Number of samples of each dataset; None if unknown.
    seconds
        Estimated time of the training steps, one run at a time; None if it is not known.
    disk
        Bytes of the weights that the store keeps; None if it is not known.
    missing
        Datasets that are not here, and how to get them.
    done
        How many of the runs the store has already; they are no part of the time and the disk.
    workers
        How many runs are done at a time.
    embedding
        Seconds to compute the features of each dataset that a frozen network has not seen yet.
    exact
        Whether steps do not depend on sizes of domains of which only the sum is published.
    """

    runs: int
    steps: int | None
    images: Mapping[str, int | None]
    seconds: float | None = None
    disk: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    done: int = 0
    workers: int = 1
    embedding: Mapping[str, float] = field(default_factory=dict)
    exact: bool = True

    def describe(self) -> list[str]:
        """The cost in a few lines."""
        about = "" if self.exact else "about "
        steps = (
            f"{about}{self.steps:,} training steps" if self.steps is not None else "steps by epochs"
        )
        images = ", ".join(
            f"{name} {count:,}" if count is not None else f"{name} (unknown)"
            for name, count in self.images.items()
        )
        done = f" ({self.done:,} already in the store)" if self.done else ""
        lines = [f"runs: {self.runs:,}{done}, {steps}", f"samples: {images or 'none'}"]
        lines += [
            f"features: about {_duration(seconds)} for {name}, computed once"
            for name, seconds in self.embedding.items()
        ]
        if self.seconds is not None:
            at_once = f"{self.workers} runs" if self.workers > 1 else "one run"
            lines.append(
                f"time: about {_duration(self.seconds / self.workers)} of training on "
                f"{default_device()}, {at_once} at a time (plain training at the speed of this "
                "machine; other methods take longer)"
            )
        elif self.missing:
            lines.append("time: unknown until the data are here")
        if self.disk is not None:
            lines.append(f"disk: about {format_bytes(self.disk)} of weights")
        lines += [f"missing: {name}: {how}" for name, how in self.missing.items()]
        return lines


def _duration(seconds: float) -> str:
    if seconds >= 10 * DAY:
        return f"{seconds / DAY:,.0f} days"
    if seconds >= HOUR:
        return f"{seconds / HOUR:,.1f} hours"
    count, unit = (seconds / MINUTE, "minute") if seconds >= MINUTE else (seconds, "second")
    return f"{count:.0f} {unit}{'s' * (round(count) != 1)}"


def estimate_costs(recipe: Recipe, *, measure: bool = True) -> Costs:
    """The cost of a recipe; without `measure`, time and disk are unknown."""
    missing = missing_data(recipe)
    plans = [_plan(part.benchmark, missing) for part in recipe.parts]
    runs = merge_plans([plan.runs for plan in plans])
    trained = [run for run in runs if not run.is_derived]
    known = all(plan.counted for plan in plans)
    costs = Costs(
        runs=len(runs),
        steps=sum(run.steps for run in trained) if known else None,
        images={name: published_size(find_dataset(name)) for name in recipe.datasets},
        missing=missing,
        exact=all(plan.exact for plan in plans),
    )
    if not measure or not runs:
        return costs
    return replace(costs, **_time_and_disk(trained, {}, counted=known))


def benchmark_costs(benchmark: Benchmark) -> Costs:
    """The cost of a benchmark, without training anything or computing features.

    Data that are here are read and checked, as before training. Time and disk are those of the runs
    that the store lacks.
    """
    asked = {name: asked_dataset(benchmark, name) for name in benchmark.dataset}
    missing = _missing(asked)
    here = replace(benchmark, dataset=tuple(name for name in asked if name not in missing))
    runs = plan_runs(here, compute_features=False) if here.dataset else []
    planned = _plan(replace(benchmark, dataset=tuple(missing)), missing)
    runs += planned.runs
    known = open_store(benchmark.store).known(runs)
    todo = [run for run, record in zip(runs, known, strict=True) if record is None]
    trained = [run for run in todo if not run.is_derived]
    counts = {each.name: _sample_count(benchmark, each, runs) for each in asked.values()}
    embedding, widths = _embedding(benchmark, asked, counts)
    return Costs(
        runs=len(runs),
        steps=sum(run.steps for run in trained) if planned.counted else None,
        images=counts,
        **_time_and_disk(trained, widths, counted=planned.counted),
        missing=missing,
        exact=planned.exact,
        done=len(runs) - len(todo),
        workers=getattr(benchmark.pool(), "workers", 1),
        embedding=embedding,
    )


def _embedding(
    benchmark: Benchmark, asked: Mapping[str, DomainSet], counts: Mapping[str, int | None]
) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds for the features of each dataset, and their width by their identity."""
    seconds: dict[str, float] = {}
    widths: dict[str, int] = {}
    given, finetune = spell_finetune(benchmark.settings, finetune=benchmark.finetune)
    for dataset in asked.values():
        encoder = plan_features(dataset, given, finetune=finetune)
        if not isinstance(encoder, Encoder) or dataset.missing_files():
            continue
        path = features_file(dataset, encoder, given)
        if not path.is_file():
            each, width = _encoding(encoder.backbone, encoder.size)
            seconds[dataset.name] = each * (counts[dataset.name] or 0)
            widths[path.parent.name] = width
    return seconds, widths


@lru_cache(maxsize=16)
def _encoding(backbone: str, size: int) -> tuple[float, int]:
    """Seconds for the features of an image on all cores, and their number."""
    net = network(backbone, (3, size, size), 1, weights="").features.eval()
    images = torch.randn(MAX_MEASURED, 3, size, size)
    times: list[float] = []
    with torch.inference_mode():
        while len(times) < MEASURED_STEPS and sum(times) < MAX_SECONDS:
            start = time.perf_counter()
            width = net(images).flatten(1).shape[1]
            times.append(time.perf_counter() - start)
    return min(times) / MAX_MEASURED, width


def _sample_count(benchmark: Benchmark, dataset: DomainSet, runs: Sequence[Run]) -> int | None:
    """The number of samples of a dataset; None if its files are missing and it does not say."""
    if dataset.missing_files():
        return published_size(dataset)
    given, finetune = spell_finetune(benchmark.settings, finetune=benchmark.finetune)
    planned, _ = use_features(dataset, given, finetune=finetune, compute=False)
    # As its runs read it: no file is decoded in another size.
    run = next(run for run in runs if run.dataset == planned.spec)
    domains = load_domains(planned, replace(run, classes=()))
    return sum(len(domain.y) for domain in domains.values())


@dataclass(frozen=True)
class _Plan:
    """The runs of a benchmark, some of whose data may be missing.

    `counted` says whether the steps of the runs are known, and `exact` whether they do not depend
    on how many samples each domain has of a known sum.
    """

    runs: list[Run]
    counted: bool = True
    exact: bool = True


def _plan(benchmark: Benchmark, missing: Mapping[str, str]) -> _Plan:
    """The runs of a benchmark; the published sizes stand for data that are missing."""
    lacking = {name: find_dataset(name) for name in benchmark.dataset if name in missing}
    outlines = {name: outline(each) for name, each in lacking.items()}
    if not benchmark.dataset or not all(each.domains for each in outlines.values()):
        # Domains that only the missing files could name.
        return _Plan([], counted=not benchmark.dataset)
    in_epochs = bool(benchmark.settings.get("epochs"))
    unknown = [each for each in lacking.values() if not published_size(each)]
    if in_epochs and unknown:
        settings = {**benchmark.settings, "steps": 1, "lr_schedule": ""}
        settings.pop("epochs")
        benchmark = replace(benchmark, settings=settings)
    runs = plan_runs(benchmark, check_inputs=False, outlines=outlines)
    sums = [d for d in lacking.values() if not d.sizes and isinstance(d.published.samples, int)]
    return _Plan(runs, counted=not (in_epochs and unknown), exact=not (in_epochs and sums))


def _time_and_disk(
    runs: Sequence[Run], widths: Mapping[str, int], *, counted: bool
) -> dict[str, Any]:
    """Seconds of training and bytes of weights; nothing is measured whose result is not used.

    `widths` are the numbers of features that are not computed yet, by their identity.
    """
    needs = [_Need.of(run, widths.get(run.data)) for run in runs]
    known = [need for need in needs if need is not None]
    if len(known) < len(needs):
        return {"seconds": None, "disk": None}
    steps: dict[_Need, int] = {}
    for need, run in zip(known, runs, strict=True):
        steps[need] = steps.get(need, 0) + run.steps
    numbers = {need: known.count(need) for need in steps}
    weights = {need: planned_cost(need.backbone, need.shape).parameters for need in steps}
    disk = sum(BYTES_PER_WEIGHT * weights[need] * numbers[need] for need in steps)
    times = [count * need.seconds() for need, count in steps.items()] if counted else None
    return {"seconds": times and sum(times), "disk": disk}


@dataclass(frozen=True)
class _Need:
    """What the time of a training step depends on: the network, its input, and the samples."""

    backbone: str
    shape: Shape
    samples: int

    @classmethod
    def of(cls, run: Run, width: int | None) -> "_Need | None":
        """What a run needs; None if the shape of its input is unknown.

        `width` is the number of features, if the run has features that are not computed yet.
        """
        shape = (width,) if width else _shape(run)
        if shape is None:
            return None
        drawn = min(run.domains_per_step, len(run.sources)) or len(run.sources)
        return cls(run.backbone, shape, run.batch_total or run.batch * drawn or MAX_MEASURED)

    def seconds(self) -> float:
        """Seconds of a step: measured, or for a large network by its multiplications."""
        count = min(self.samples, MAX_MEASURED)
        macs = planned_cost(self.backbone, self.shape).macs
        if macs * count > MAX_MEASURED_MACS:
            return self.samples * macs * _seconds_per_mac()
        return _step(self.backbone, self.shape, count) * self.samples / count


def _shape(run: Run) -> Shape | None:
    """The shape of an input: known for images, read from the data for arrays."""
    if run.size:
        return (3, run.size, run.size)
    dataset = find_dataset(run.dataset)
    if dataset.missing_files() or not dataset.domains:
        return None
    domains = load_domains(dataset, run)
    return tuple(next(iter(domains.values())).x.shape[1:])


@lru_cache(maxsize=64)
def _step(backbone: str, shape: Shape, count: int) -> float:
    """Seconds of a training step on a batch of this size."""
    with preserve_torch_state(1, cuda=False):  # runs have one thread
        return _fastest_step(network(backbone, shape, 10, weights=""), shape, count)


@lru_cache(maxsize=1)
def _seconds_per_mac() -> float:
    """Seconds of training for one multiplication of a prediction, on layers as of a ResNet."""
    shape, layers = (64, 56, 56), list[nn.Module]()
    for _ in range(2):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    with preserve_torch_state(1, cuda=False):
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        macs = network_cost(net, torch.zeros(1, *shape)).macs
        return _fastest_step(net, shape, MAX_MEASURED) / (macs * MAX_MEASURED)


def _fastest_step(net: nn.Module, shape: Shape, count: int) -> float:
    device = default_device()
    net = net.to(device)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(count, *shape, device=device)
    y = torch.zeros(count, dtype=torch.int64, device=device)
    times: list[float] = []
    while len(times) < MEASURED_STEPS and sum(times) < MAX_SECONDS:
        times.append(_timed(net, optimizer, x, y))
    return min(times)


def _timed(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> float:
    start = time.perf_counter()
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
