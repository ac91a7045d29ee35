"""What a recipe or a benchmark costs, before it is run: runs, time, disk, and missing data."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import torch
import torch.nn.functional as F

from afield.compute import default_device, preserve_torch_state
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.errors import AfieldError, DataError
from afield.files import format_bytes
from afield.networks.backbone import Shape, network
from afield.networks.pretrained import Encoder
from afield.runs.run import Run
from afield.runs.run_setup import load_domains
from afield.runs.store import open_store
from afield.studies.benchmark import Benchmark
from afield.studies.features import features_file, plan_features, spell_finetune, use_features
from afield.studies.planning import asked_dataset, plan_runs
from afield.studies.recipe import Part, Recipe


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
MAX_MEASURED, MEASURED_STEPS, MAX_SECONDS = 8, 6, 3.0
BYTES_PER_WEIGHT = 4
DAY, HOUR, MINUTE = 86_400, 3600, 60
Number = TypeVar("Number", int, float)


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

    def describe(self) -> list[str]:
        """The cost in a few lines."""
        steps = f"{self.steps:,} training steps" if self.steps is not None else "steps by epochs"
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
                f"{default_device()}, {at_once} at a time (measured with plain training; other "
                "methods take longer)"
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
    runs = merge_plans([_plan(part, missing) for part in recipe.parts])
    trained = [run for run in runs if not run.is_derived]
    known = not any(run.dataset in missing and _has_epochs(recipe) for run in trained)
    costs = Costs(
        runs=len(runs),
        steps=sum(run.steps for run in trained) if known else None,
        images={name: _image_count(name) for name in recipe.datasets},
        missing=missing,
    )
    if not measure or not runs:
        return costs
    measured = [_measure(run) for run in trained]
    times = [None if each is None else each[0] for each in measured]
    sizes = [None if each is None else each[1] for each in measured]
    return replace(
        costs,
        seconds=_total(times) if known else None,
        disk=_total(sizes),
    )


def benchmark_costs(benchmark: Benchmark) -> Costs:
    """The cost of a benchmark, without training anything or computing features.

    Data that are here are read and checked, as before training. Time and disk are those of the runs
    that the store lacks.
    """
    asked = {name: asked_dataset(benchmark, name) for name in benchmark.dataset}
    missing = _missing(asked)
    here = replace(benchmark, dataset=tuple(name for name in asked if name not in missing))
    runs = plan_runs(here, compute_features=False) if here.dataset else []
    if missing:
        there = replace(benchmark, dataset=tuple(missing))
        runs += _plan(Part(there), missing)
    known = open_store(benchmark.store).known(runs)
    todo = [run for run, record in zip(runs, known, strict=True) if record is None]
    trained = [run for run in todo if not run.is_derived]
    counts = {each.name: _sample_count(benchmark, each, runs) for each in asked.values()}
    embedding, widths = _embedding(benchmark, asked, counts)
    measured = [_measure(run, widths.get(run.data)) for run in trained]
    # Steps of an unknown number of epochs.
    counted = not (missing and benchmark.settings.get("epochs"))
    return Costs(
        runs=len(runs),
        steps=sum(run.steps for run in trained) if counted else None,
        images=counts,
        seconds=_total([each and each[0] for each in measured]) if counted else None,
        disk=_total([each and each[1] for each in measured]),
        missing=missing,
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
        return sum(dataset.sizes.values()) if dataset.sizes else None
    given, finetune = spell_finetune(benchmark.settings, finetune=benchmark.finetune)
    planned, _ = use_features(dataset, given, finetune=finetune, compute=False)
    # As its runs read it: no file is decoded in another size.
    run = next(run for run in runs if run.dataset == planned.spec)
    domains = load_domains(planned, replace(run, classes=()))
    return sum(len(domain.y) for domain in domains.values())


def _total(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _has_epochs(recipe: Recipe) -> bool:
    return any(part.benchmark.settings.get("epochs") for part in recipe.parts)


def _plan(part: Part, missing: Mapping[str, str]) -> list[Run]:
    """The runs of a part; with missing data, epochs cannot be counted, and each run has a step."""
    benchmark = part.benchmark
    if set(benchmark.dataset) & set(missing):
        settings = {name: value for name, value in benchmark.settings.items() if name != "epochs"}
        if len(settings) < len(benchmark.settings):
            settings |= {"steps": 1, "lr_schedule": ""}
        benchmark = replace(benchmark, settings=settings)
        if benchmark.hold_out and not _has_domains(benchmark.dataset):
            return []
    return plan_runs(benchmark, check_inputs=False)


def _has_domains(datasets: Sequence[str]) -> bool:
    return all(find_dataset(name).domains for name in datasets)


def _image_count(name: str) -> int | None:
    dataset = find_dataset(name)
    if dataset.sizes:
        return sum(dataset.sizes.values())
    return None


def _measure(run: Run, width: int | None = None) -> tuple[float, int] | None:
    """Seconds of all steps of a run and bytes of its weights; None if the input is unknown.

    `width` is the number of features, if the run has features that are not computed yet.
    """
    shape = (width,) if width else _shape(run)
    if shape is None:
        return None
    samples = run.batch_total or run.batch * (
        min(run.domains_per_step, len(run.sources)) or len(run.sources)
    )
    count = min(samples, MAX_MEASURED) or MAX_MEASURED
    seconds, weights = _step(run.backbone, shape, count)
    return run.steps * seconds * samples / count, weights * BYTES_PER_WEIGHT


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
def _step(backbone: str, shape: Shape, count: int) -> tuple[float, int]:
    """Seconds of a training step on a batch of this size, and the number of weights."""
    device = default_device()
    with preserve_torch_state(1, cuda=False):  # runs have one thread
        try:
            net = network(backbone, shape, 10, weights="").to(device)
        except AfieldError:
            return float("nan"), 0
        optimizer = torch.optim.Adam(net.parameters())
        x = torch.randn(count, *shape, device=device)
        y = torch.zeros(count, dtype=torch.int64, device=device)
        times: list[float] = []
        while len(times) < MEASURED_STEPS and sum(times) < MAX_SECONDS:
            times.append(_timed(net, optimizer, x, y))
    return min(times), sum(weight.numel() for weight in net.parameters())


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
