"""What to do in another way than the paper: less training, fewer rows, other data or settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from afield.errors import SpecError
from afield.experiments.benchmark import Benchmark

__all__ = ["Changes", "change_benchmark"]

# The fewest steps that `--scale` leaves.
MIN_STEPS = 50


@dataclass(frozen=True)
class Changes:
    """What to do in another way than the paper.

    `scale` multiplies steps and epochs, `trials` replaces the recipe's number, `methods`,
    `datasets` and `rules` keep only those, `data` maps names of datasets to others or to paths, and
    `settings` are as after ``--set``.
    """

    scale: float = 1.0
    trials: int | None = None
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise SpecError(f"--scale {self.scale:g}: must be above 0 and at most 1")

    def describe(self) -> str:
        """What was changed, for titles; empty if nothing was."""
        words = [f"steps × {self.scale:g}"] if self.scale != 1 else []
        words += [f"trials={self.trials}"] if self.trials else []
        words += [f"methods {', '.join(self.methods)} only"] if self.methods else []
        words += [f"datasets {', '.join(self.datasets)} only"] if self.datasets else []
        words += [f"rules {', '.join(self.rules)} only"] if self.rules else []
        words += [f"{Path(new).name} in place of {old}" for old, new in self.data.items()]
        words += [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join(words)


def change_benchmark(benchmark: Benchmark, changes: Changes) -> Benchmark:
    """A benchmark of a recipe with the changes; it may have no dataset, method or rule left."""
    settings = _scaled(benchmark.settings, changes.scale)
    # Steps and epochs exclude each other, and so do the two ways to give a batch size.
    for one, other in (("steps", "epochs"), ("batch", "batch_total")):
        for new, old in ((one, other), (other, one)):
            if new in changes.settings:
                settings.pop(old, None)
    methods = _kept(benchmark.methods, changes.methods)
    merges = _kept(benchmark.merges, changes.methods)
    used = {*methods, *merges, *benchmark.expert_method, benchmark.average, "linear_probe"}
    settings = {
        name: value
        for name, value in {**settings, **changes.settings}.items()
        if "." not in name or name.rpartition(".")[0] in used
    }
    words: dict[str, Any] = {"methods": methods, "merges": merges, "settings": settings}
    datasets = _kept(benchmark.dataset, changes.datasets)
    words["dataset"] = tuple(changes.data.get(name, name) for name in datasets)
    if changes.rules:
        words["rules"] = _kept(benchmark.rules or changes.rules, changes.rules)
    if not merges:
        words |= {"expert_method": ("erm",), "base_steps": None, "expert_draws": None}
    if changes.trials:
        words["trials"] = changes.trials
    return replace(benchmark, **words)


def _kept(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if not wanted or name in wanted)


def _scaled(settings: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Settings with fewer steps or epochs, and checkpoints and warm-ups in proportion."""
    scaled = dict(settings)
    if scale == 1:
        return scaled
    if "steps" in scaled:
        scaled["steps"] = max(min(MIN_STEPS, scaled["steps"]), round(scaled["steps"] * scale))
    if "epochs" in scaled:
        scaled["epochs"] = scaled["epochs"] * scale
    if "every" in scaled:
        scaled["every"] = max(1, round(scaled["every"] * scale))
    if "lr_schedule" in scaled:
        scaled["lr_schedule"] = re.sub(
            r"warmup=(\d+)\b(?!\.)",
            lambda match: f"warmup={round(int(match[1]) * scale)}",
            scaled["lr_schedule"],
        )
    return scaled
