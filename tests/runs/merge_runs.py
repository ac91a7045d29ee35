"""Runs of merged models and of their experts, on little pictures."""

from pathlib import Path

import numpy as np

from afield.runs.run import Run
from afield.studies.benchmark import make_benchmark

MERGES = ("average", "score", "task_arithmetic", "ties")
DOMAINS = ("a", "b", "c", "d")


def write_domains(path: Path, *, flipped=(), numbers: bool = False) -> Path:
    """Four domains of dark and bright little pictures; in `flipped` ones labels are exchanged."""
    generator = np.random.default_rng(0)
    y = np.tile([0, 1, 2], 4 * 12)
    domain = np.repeat(DOMAINS, 36)
    shift = 12 * np.repeat(np.arange(4), 36)
    x = 60 * y[:, None, None, None] + generator.integers(0, 70, (len(y), 1, 8, 8))
    x = (x + shift[:, None, None, None]).astype(np.float32 if numbers else np.uint8)
    for name in flipped:
        y = np.where(domain == name, 2 - y, y)
    np.savez(path, X=x, y=y, domain=domain)
    return path


def of_target(runs: list[Run], target: str) -> list[Run]:
    """The runs that one target needs."""
    merged = [run for run in runs if run.experts and target not in run.sources]
    needed = {run.base for run in merged} | {key for run in merged for key in run.experts}
    return [run for run in runs if run in merged or run.key in needed]


def runs_of_merges(data, target="d", *, merges=MERGES, **options) -> list[Run]:
    settings = {"steps": 12, "every": 4, **options.pop("settings", {})}
    return of_target(
        make_benchmark(data, merges=merges, trials=1, settings=settings, **options).runs(), target
    )
