"""How the cost of commands grows: with records, domains, files and experts.

    python benchmarks/scaling.py [records] [domains] [files] [experts] [--sizes 500,1000,2000]

Each axis is measured at three sizes, every command in a process of its own. Printed are CPU time
(user and system, the least of three runs) and peak memory. The exponent of growth is the p for
which time = start + factor · size^p fits the smallest and the largest of these sizes and a still
smaller one: 1 is linear, 2 is quadratic. The exponents are printed last.

    records   table, report, status and the restart of a bench on a store of six domains
    domains   table and report on 1,500 records
    files     finding the dataset in a folder of images, with a cache that knows them
    experts   ties of state dicts with four million entries each
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scipy.optimize import brentq
from synthetic import write_images, write_store

SIZES = {
    "records": (1000, 2000, 4000),
    "domains": (6, 12, 24),
    "files": (2000, 4000, 8000),
    "experts": (4, 8, 16),
}
RECORDS = 1500
# The sizes that tell what a start costs.
SMALLEST = {"records": 60, "domains": 2, "files": 60, "experts": 1}
REPEATS = 3
# Less than this above the start is mostly noise.
NOISE_SECONDS = 0.5
COMMAND = "import sys; sys.argv[0] = 'afield'; from afield.cli import main; main()"
RESTART = "import sys; from restart import main; sys.argv[0] = 'restart'; main()"
FILES = """
import sys
from pathlib import Path
from afield.data.lookup import find_dataset
find_dataset(Path(sys.argv[1]))
"""
EXPERTS = """
import sys, torch
from afield.merging.job import merge
base = {"weight": torch.zeros(2000, 2000)}
noise = [{"weight": torch.randn(2000, 2000)} for _ in range(int(sys.argv[1]))]
merge("ties", base, noise)
"""


@dataclass(frozen=True)
class Cost:
    """CPU seconds and gigabytes of one process."""

    seconds: float
    memory: float


def cost(script: str, *words: object) -> Cost:
    """What a script costs in a process of its own: the least of several runs."""
    return min((_run(script, *words) for _ in range(REPEATS)), key=lambda each: each.seconds)


def _run(script: str, *words: object) -> Cost:
    command = [sys.executable, "-c", script, *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = Path(__file__).parent
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(map(str, words))}: ended with status {status}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def tasks(axis: str, size: int, work: Path) -> dict[str, tuple[object, ...]]:
    """The scripts of an axis with their arguments, by what they do."""
    if axis == "files":
        write_images(work / f"images-{size}", size)
        # The first time writes the cache.
        _run(FILES, work / f"images-{size}")
        return {"find": (FILES, work / f"images-{size}")}
    if axis == "experts":
        return {"ties": (EXPERTS, size)}
    records, domains = (size, 6) if axis == "records" else (RECORDS, size)
    store = work / f"store-{records}-{domains}"
    write_store(store, records, domains)
    commands = {name: (COMMAND, name, store) for name in ("table", "report", "status")}
    if axis == "domains":
        del commands["status"]
        return dict(commands)
    return {**commands, "restart": (RESTART, store, "--records", records)}


def exponent(sizes: list[int], costs: list[Cost], smallest: int, start: float) -> str:
    """The exponent of growth from the smallest, the first and the last size."""
    first, last = (max(1e-3, each.seconds - start) for each in (costs[0], costs[-1]))
    if last < NOISE_SECONDS:
        return "too fast to tell"

    def excess(power: float) -> float:
        grown = [size**power - smallest**power for size in (sizes[0], sizes[-1])]
        return grown[1] / grown[0] - last / first

    low, high = 0.01, 5.0
    if excess(low) > 0:
        return "0"
    return f"{brentq(excess, low, high):.2f}"


def measure(axis: str, sizes: list[int], work: Path) -> str:
    """Measure one axis; return its exponents as text."""
    smallest = SMALLEST[axis]
    starts = {name: cost(*task).seconds for name, task in tasks(axis, smallest, work).items()}
    costs: dict[str, list[Cost]] = {}
    for size in sizes:
        for name, task in tasks(axis, size, work).items():
            now = cost(*task)
            costs.setdefault(name, []).append(now)
            print(f"{axis} {size:6} {name:8} {now.seconds:6.2f} s {now.memory:5.2f} GB", flush=True)
    slopes = {name: exponent(sizes, each, smallest, starts[name]) for name, each in costs.items()}
    return f"{axis}: " + ", ".join(f"{name} {slope}" for name, slope in slopes.items())


def main() -> None:
    """Measure the chosen axes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("axes", nargs="*", metavar="AXIS", help="By default, all four.")
    parser.add_argument("--sizes", default="", help="Three sizes, for one axis.")
    args = parser.parse_args()
    axes = args.axes or list(SIZES)
    with tempfile.TemporaryDirectory() as work:
        lines = []
        for axis in axes:
            sizes = [int(size) for size in args.sizes.split(",")] if args.sizes else SIZES[axis]
            lines.append(measure(axis, list(sizes), Path(work)))
    for line in lines:
        print(f"exponent of growth, {line}")


if __name__ == "__main__":
    main()
