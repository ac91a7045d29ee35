"""Stores of records that were never run, folders of tiny images and experts, for `scaling.py`.

    python benchmarks/synthetic.py runs/large --records 10000 --domains 6

The records look like those of a default benchmark that leaves each domain out once: 50 checkpoints,
validation scores of every source, a sample of the target for curves, and full scores with a
confusion matrix where a rule can pick.
"""

import argparse
import json
import os
import socket
import time
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from afield.runs.record import Plan
from afield.runs.run import Run
from afield.runs.store import Store

METHODS = ("erm", "vrex", "coral", "mmd", "irm", "groupdro", "sd", "rsc", "mixup", "arith")
TRIALS, STEPS, EVERY, CLASSES, PLANS = 3, 300, 6, 10, 5
# How many different curves a domain has; writing them is what takes time.
VARIANTS = 40
SOURCES_SIZE, TARGET_SIZE, SAMPLE_SIZE = 60, 240, 64


def domain_names(domains: int) -> tuple[str, ...]:
    """Names of domains."""
    return tuple(f"domain{number}" for number in range(domains))


def planned_runs(records: int, domains: int) -> list[Run]:
    """The runs of a benchmark with as many draws as are needed."""
    names = domain_names(domains)
    draws = -(-records // (TRIALS * len(METHODS) * domains))
    parts = product(range(draws), range(TRIALS), METHODS, names)
    return [_run(names, *part) for part in islice(parts, records)]


def _run(names: tuple[str, ...], draw: int, trial: int, method: str, target: str) -> Run:
    return Run(
        dataset="synthetic",
        method=method,
        sources=tuple(name for name in names if name != target),
        trial=trial,
        draw=draw,
        lr=1e-3 * 1.001**draw,
        steps=STEPS,
        every=EVERY,
    )


def write_store(folder: Path, records: int, domains: int) -> None:
    """Write the records and the plans of five commands; a complete store is left as it is."""
    stamp = folder / "complete"
    if stamp.exists():
        return
    runs, generator = planned_runs(records, domains), np.random.default_rng(0)
    names = domain_names(domains)
    curves = {name: [_curve(names, name, generator) for _ in range(VARIANTS)] for name in names}
    for number, run in enumerate(runs):
        (target,) = set(names) - set(run.sources)
        head = json.dumps({"run": _fields(run)})[:-1]
        place = folder / run.key
        place.mkdir(parents=True)
        curve = curves[target][number % VARIANTS]
        (place / "record.json").write_text(f"{head}, {curve}, {_tail(number)}}}")
    _write_plans(Store(folder), runs)
    stamp.touch()


def _fields(run: Run) -> dict[str, Any]:
    return {name: value for name, value in vars(run).items() if name not in ("key", "recipe")}


def _tail(number: int) -> str:
    rest = {
        "seconds": 20 + number % 7,
        "versions": {"afield": "0.1.0", "torch": "2.0", "code": "synthetic"},
        "device": "cpu, 1 thread(s)",
        "memory": 10**9,
        "class_names": [str(number) for number in range(CLASSES)],
    }
    return json.dumps(rest)[1:-1]


def _write_plans(store: Store, runs: list[Run]) -> None:
    keys = [run.key for run in runs]
    for number in range(PLANS):
        part = tuple(keys[number::PLANS])
        command = f"afield bench synthetic --part {number}"
        started = time.time() - 1000 + number
        store.put_plan(Plan(part, 0, command, socket.gethostname(), os.getpid(), started))


def _curve(names: tuple[str, ...], target: str, generator: np.random.Generator) -> str:
    """The checkpoints of one run, as text."""
    checkpoints: list[dict[str, Any]] = []
    for step in range(EVERY, STEPS + 1, EVERY):
        level = 0.9 * (1 - np.exp(-step / 60))
        scores = {
            name: {"sample": _score(level - 0.1, SAMPLE_SIZE, generator)}
            if name == target
            else {"probe": _score(level, SOURCES_SIZE, generator)}
            for name in names
        }
        logs = {"loss": float(generator.random()), "penalty": float(generator.random())}
        checkpoints.append({"step": step, "scores": scores, "logs": logs, "deployed": True})
    sources = [name for name in names if name != target]
    best = max(
        checkpoints, key=lambda each: sum(each["scores"][n]["probe"]["accuracy"] for n in sources)
    )
    for checkpoint in (best, checkpoints[-1]):
        checkpoint["scores"][target]["main"] = _detailed(0.8, TARGET_SIZE, generator)
        checkpoint["scores"][target]["probe"] = _detailed(0.8, SOURCES_SIZE, generator)
    return json.dumps({"checkpoints": checkpoints})[1:-1]


def _score(level: float, size: int, generator: np.random.Generator) -> dict[str, Any]:
    hits = int(generator.binomial(size, min(max(level, 0.0), 1.0)))
    balanced = min(1.0, hits / size * (0.98 + 0.02 * generator.random()))
    loss = float(generator.gamma(2.0))
    return {"accuracy": hits / size, "balanced_accuracy": balanced, "loss": loss, "size": size}


def _detailed(level: float, size: int, generator: np.random.Generator) -> dict[str, Any]:
    score = _score(level, size, generator)
    counts = generator.integers(1, 9, 3 * CLASSES).tolist()
    cells = sorted(generator.choice(CLASSES**2, len(counts), replace=False).tolist())
    return score | {
        "calibration_error": float(generator.random()),
        "accuracy_at_90": float(generator.random()),
        "metrics": {name: float(generator.random()) for name in ("macro_f1", "worst_class")},
        "confusion": {"classes": CLASSES, "cells": cells, "counts": counts},
    }


def write_images(folder: Path, files: int) -> None:
    """Write a folder of four domains and five classes with small images."""
    if folder.exists():
        return
    content = _image(folder.parent)
    places = [folder / f"domain{d}" / f"class{c}" for d, c in product(range(4), range(5))]
    for place in places:
        place.mkdir(parents=True)
    for number, place in zip(range(files), _cycle(places), strict=False):
        # The end of a JPEG may be followed by anything, so that no two files are equal.
        (place / f"{number}.jpg").write_bytes(content + str(number).encode())


def _image(folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pixel.jpg"
    Image.new("RGB", (8, 8), (200, 100, 50)).save(path)
    return path.read_bytes()


def _cycle(places: list[Path]) -> Iterator[Path]:
    return (places[number % len(places)] for number in count())


def main() -> None:
    """Write one store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--domains", type=int, default=6)
    args = parser.parse_args()
    write_store(args.folder, args.records, args.domains)


if __name__ == "__main__":
    main()
