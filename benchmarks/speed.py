"""Measure what docs/speed.md shows, and write the measurements into its tables.

    python benchmarks/speed.py [--only start,stores] [--list]

Each table of the page stands between two comments, ``<!-- speed:NAME -->`` and ``<!-- end -->``,
and is one entry of `TABLES` below. A row has a command. What is measured is the CPU time (user and
system, the sum over all processes) and the peak memory of its largest process; the wall-clock time
says little on a machine that is busy. A row with a `pattern` shows what the command prints instead.
The column "before" was measured with the same commands at commit 816a8bd.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "speed.md"
# Where synthetic stores and images are kept between measurements.
WORK = "build/speed"
STORE = f"{WORK}/store-10000"
PYTHON = "python"


@dataclass(frozen=True)
class Row:
    """What is measured, the shell command that does it, and the numbers before and to reach.

    `setup` runs first and is not measured. `pattern` is a regular expression: the row shows its
    first group in the command's output instead of CPU time and memory.
    """

    title: str
    command: str
    before: str
    goal: str = ""
    setup: str = ""
    pattern: str = ""


MAKE_STORE = f"{PYTHON} benchmarks/synthetic.py {STORE} --records 10000 --domains 6"

TABLES: dict[str, tuple[Row, ...]] = {
    "start": (
        Row("`afield list`", "afield list", "0.28 s, 0.04 GB", "0.5 s"),
        Row(
            "`afield status`, 60 records",
            f"afield status {WORK}/store-60",
            "3.2 s, 0.81 GB",
            "0.5 s",
            setup=f"{PYTHON} benchmarks/synthetic.py {WORK}/store-60 --records 60 --domains 6",
        ),
        Row(
            "`afield table`, 60 records", f"afield table {WORK}/store-60", "4.1 s, 0.83 GB", "0.8 s"
        ),
        Row("`afield explain vrex`", "afield explain vrex", "2.3 s, 0.82 GB", "3 s"),
        Row(
            "first step on rotated_digits",
            f"{PYTHON} benchmarks/first_step.py",
            "3.8 s",
            "3 s",
            pattern=r"first step after (.*)",
        ),
    ),
    "stores": (
        Row("`table`", f"afield table {STORE}", "93 s, 3.8 GB", "10 s, 1 GB", setup=MAKE_STORE),
        Row("`report`", f"afield report {STORE}", "108 s, 3.9 GB", "10 s, 1 GB", setup=MAKE_STORE),
        Row("`status`", f"afield status {STORE}", "3.6 s, 0.82 GB", "10 s, 1 GB", setup=MAKE_STORE),
        Row(
            "restart of a bench, with its report",
            f"{PYTHON} benchmarks/restart.py {STORE}",
            "184 s, 7.0 GB",
            "10 s, 1 GB",
            setup=MAKE_STORE,
        ),
    ),
    "growth": (
        Row(
            "exponents, with records",
            f"{PYTHON} benchmarks/scaling.py records",
            "not measured",
            "1",
            pattern=r"exponent of growth, records: (.*)",
        ),
        Row(
            "exponents, with domains",
            f"{PYTHON} benchmarks/scaling.py domains",
            "not measured",
            "1",
            pattern=r"exponent of growth, domains: (.*)",
        ),
        Row(
            "exponent, with files",
            f"{PYTHON} benchmarks/scaling.py files",
            "not measured",
            "1",
            pattern=r"exponent of growth, files: (.*)",
        ),
        Row(
            "exponent, with experts",
            f"{PYTHON} benchmarks/scaling.py experts",
            "not measured",
            "1",
            pattern=r"exponent of growth, experts: (.*)",
        ),
    ),
    "merging": (
        Row(
            "memory of merging an embedding of 128,000 × 4,096 with three experts",
            f"{PYTHON} benchmarks/merge_large.py",
            "not measured; dare with 32,000 rows: 4.6 GB",
            "1.5 GB",
            pattern=r"memory (.*)",
        ),
    ),
}

# Training and evaluation. Both columns are printed by one command, which compares the two.
_LITE, _MNIST, _RESNET = "timm:tf_efficientnet_lite0", "small:mnist_cnn", "timm:resnet18"
TABLES |= {
    "allocator": tuple(
        Row(
            title,
            f"{PYTHON} benchmarks/allocator.py {name}",
            before,
            pattern=r"kept: (.*), weights",
        )
        for title, name, before in (
            ("8 steps, EfficientNet-Lite0", _LITE, "7.70 s user + 11.23 s system, 2.77 GB"),
            ("40 steps, ColoredMNIST network", _MNIST, "16.10 s user + 1.78 s system, 1.07 GB"),
            ("3 steps, ResNet-18", _RESNET, "13.90 s user + 5.08 s system, 3.00 GB"),
        )
    ),
    "precision": tuple(
        Row(
            f"{what}, {title}",
            f"{PYTHON} benchmarks/precision.py {name}",
            before,
            pattern=rf"{what} +\S+ +(\S+ s)",
        )
        for title, name, numbers in (
            ("ResNet-18", _RESNET, {"step": "4.647 s", "evaluation": "1.438 s"}),
            ("ColoredMNIST network", _MNIST, {"step": "0.274 s", "evaluation": "0.346 s"}),
            ("EfficientNet-Lite0", _LITE, {"step": "1.005 s", "evaluation": "0.394 s"}),
        )
        for what, before in numbers.items()
    ),
    "compilation": tuple(
        Row(
            f"{what}, {title}",
            f"{PYTHON} benchmarks/compilation.py {name}",
            before,
            pattern=rf"{what} +\S+ +(\S+ s)",
        )
        for title, name, numbers in (
            ("ResNet-18", _RESNET, {"step": "5.1298 s", "evaluation": "1.4434 s"}),
            ("ColoredMNIST network", _MNIST, {"step": "0.2648 s", "evaluation": "0.3343 s"}),
            ("EfficientNet-Lite0", _LITE, {"step": "0.9253 s", "evaluation": "0.4027 s"}),
        )
        for what, before in numbers.items()
    ),
    "evaluation": tuple(
        Row(title, f"{PYTHON} benchmarks/evaluation.py {name}", "", pattern="(before: .*)")
        for title, name in (
            ("512 images, EfficientNet-Lite0", _LITE),
            ("2,048 images, ColoredMNIST network", _MNIST),
            ("110 images, ResNet-18", _RESNET),
        )
    ),
    "ahead": tuple(
        Row(title, f"{PYTHON} benchmarks/ahead.py {name}", before, pattern=r"with +(.* CPU s)")
        for title, name, before in (
            ("step, EfficientNet-Lite0", _LITE, "1.204 s, 0.902 CPU s"),
            ("step, small:cnn", "small:cnn", "0.098 s, 0.065 CPU s"),
        )
    ),
    "loop": (
        Row(
            "share of a bare loop, erm",
            f"{PYTHON} benchmarks/loop.py",
            "0.926",
            "0.97",
            pattern=r"ratio +(\S+)",
        ),
        Row(
            "20 steps of erm on ColoredMNIST, with evaluations",
            f"{PYTHON} benchmarks/run_memory.py",
            "45.6 s, 1.35 GB",
            pattern=r"run: (.*)",
        ),
    ),
}


def measure(row: Row) -> str:
    """Run a row's command and return its numbers as the page shows them."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if row.setup:
        subprocess.run(shlex.split(row.setup), cwd=ROOT, env=environment, check=True)
    process = subprocess.Popen(
        shlex.split(row.command), cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    output = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{row.command}: ended with status {status}")
    if row.pattern:
        found = re.search(row.pattern, output)
        return found[1] if found else "–"
    return f"{usage.ru_utime + usage.ru_stime:.2g} s, {usage.ru_maxrss / 2**20:.2f} GB"


def table(rows: list[tuple[Row, str]]) -> str:
    """A Markdown table."""
    lines = ["| what | before | now | goal | command |", "| --- | --- | --- | --- | --- |"]
    for row, now in rows:
        lines.append(f"| {row.title} | {row.before} | {now} | {row.goal} | `{row.command}` |")
    return "\n".join(lines)


def insert(page: str, name: str, content: str) -> str:
    """The page with one of its tables replaced."""
    pattern = re.compile(rf"(<!-- speed:{name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{PAGE}: no place for the table {name}")
    return pattern.sub(lambda match: match[1] + content + match[2], page)


def main() -> None:
    """Measure the chosen tables and write them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="Names of tables, separated by commas.")
    parser.add_argument("--list", action="store_true", help="Print the commands and stop.")
    args = parser.parse_args()
    for name in args.only.split(",") if args.only else TABLES:
        if args.list:
            print(name, *(f"  {row.command}" for row in TABLES[name]), sep="\n")
            continue
        rows = []
        for row in TABLES[name]:
            rows.append((row, measure(row)))
            print(f"{name}: {row.command}: {rows[-1][1]} (before {row.before})", flush=True)
        PAGE.write_text(insert(PAGE.read_text(), name, table(rows)))


if __name__ == "__main__":
    main()
