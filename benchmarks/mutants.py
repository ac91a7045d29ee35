"""Do the tests notice mistakes? Change one operator, number or comparison at a time and run them.

    make mutants                                         # 200 mutants, drawn with seed 0
    make mutants ARGS="--seed 1 --log build/mutants.jsonl"
    make mutants ARGS="--only training/methods --count 50"

The mutants are drawn from all rooms but `cli`. Each one is made in a copy of the package and runs
the tests of its module until one fails: its doctests; the quick tests of the file that mirrors the
module, and the contract tests of its registry; the quick tests of the files that import the module,
and of those that mirror the modules which import it; and at last the tests marked as slow of the
file that mirrors it. Tests on a cluster, in a browser or with downloaded data are left out. Tests
that do not end within `--limit` seconds count as a failure, and are printed as such: raise the
limit on a busy machine.

The survivors are printed with file and line: no test checks this line, or the change makes no
difference. `DRAWING`, the lists of neutral names and `EQUIVALENT` say what is not mutated. With
`--log`, results are kept in a file, and mutants that are in it are not tested again.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "afield"
# Tests that every member of a registry must pass.
CONTRACTS = {
    "training/methods": ["test_declared.py", "training/test_method.py"],
    "training/averages": ["test_declared.py", "training/test_average.py"],
    "training/building_blocks": ["test_declared.py"],
    "training/adaptations": ["test_declared.py", "training/test_adaptation.py"],
    "merging/merges": [
        "test_declared.py",
        "merging/test_scopes.py",
        "merging/test_job.py",
    ],
    "networks/backbones": ["test_declared.py", "networks/test_backbone.py"],
    "data/datasets": ["test_declared.py", "data/test_inspection.py"],
    "diagnosis/diagnostics": ["test_declared.py", "diagnosis/test_diagnostic.py"],
}
# Functions that draw with matplotlib take or return one of these; figures are checked by eye.
DRAWING = ("Axes", "Figure")
# Constants that only change how something looks, or the time and memory that it takes.
NEUTRAL_NAMES = (
    r".*(_INCHES|_COLUMNS|_SECONDS|CHUNK.*|_BYTES|_WIDTH|MAX_LEGEND.*|MAX_\w+_POINTS|TIMEOUT"
    r"|MALLOC_\w+)$"
)
# Keywords that only change how something looks, or the time and memory that it takes.
NEUTRAL_KEYWORDS = {
    "timeout",
    "maxsize",
    "buffering",
    "indent",
    "stacklevel",
    "dpi",
    "figsize",
    "ticks",
}
# Mutants that no test on a CPU can tell from the original: file, part of "change: line", reason.
EQUIVALENT: tuple[tuple[str, str, str], ...] = (
    ("training/averages/swad.py", "self.bound = 0.0", "is set before it is read"),
    ("merging/job.py", "else torch.zeros(1)", "only whether any entry differs is used"),
    ("merging/spectral.py", "lwork=64 * n", "the size of LAPACK's workspace"),
    ("data/augmentation.py", "> MAX_BATCHED_CROP_VALUES", "selects the faster of two ways"),
    ("studies/merge_protocol.py", "TINY_SHAPE = (4,)", "any small network serves the check"),
    ("compute.py", "os._exit(1)", "nobody reads the exit code of a worker without a parent"),
    ("runs/runner.py", "os.cpu_count() or 1", "the number of cores is known on Linux"),
    ("networks/masks.py", "x = torch.randn(4,", "any few random inputs serve the check"),
    ("reporting/reproduce.py", "number < 0x10000", "U+10000 is a letter, which is not escaped"),
    ("deployment/fitting.py", 'number: "trials": trial + 1', "more trials are dropped again"),
    ("merging/spectral.py", "operator: return Triplets(left * sign", "the sign is 1 or -1"),
    ("merging/adapter_files.py", "change_number: self.shares", "shares above 1 count as 1"),
    ("compute.py", "has_cuda = torch.cuda.device_count() > 0", "needs a GPU"),
)
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
Change = Callable[[ast.AST], None]
# Test files, and the marker of those tests that are run.
Stage = tuple[list[str], str]
# The exit code of pytest if no test has the marker.
NO_TESTS = 5


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the node's index in the order of `ast.walk`, and where it is."""

    file: str
    index: int
    change: str
    line: int
    column: int
    text: str

    @property
    def name(self) -> str:
        """The mutant's place, which stays the same as long as the line does."""
        return f"{self.file}|{self.text}|{self.column}|{self.change}"

    def rank(self, seed: int) -> str:
        """Mutants are drawn in this order, so that other lines can change and leave the draw."""
        return hashlib.sha256(f"{seed}|{self.name}".encode()).hexdigest()

    def source(self) -> str:
        """The module with the change."""
        tree = ast.parse((PACKAGE / self.file).read_text())
        node = list(ast.walk(tree))[self.index]
        CHANGES[self.change](node)
        return ast.unparse(ast.fix_missing_locations(tree))


def swap_comparison(node: ast.AST) -> None:
    """Replace the first operator of a comparison."""
    node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[attr-defined]


def swap_operator(node: ast.AST) -> None:
    """Replace an arithmetic or Boolean operator."""
    node.op = SWAPS[type(node.op)]()  # type: ignore[attr-defined]


def drop_not(node: ast.AST) -> None:
    """Turn ``not x`` into ``not not x``."""
    node.operand = ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]


def change_number(node: ast.AST) -> None:
    """Replace a number by one that is larger by 1."""
    node.value = node.value + 1  # type: ignore[attr-defined]


CHANGES: dict[str, Change] = {
    change.__name__: change for change in (swap_comparison, swap_operator, drop_not, change_number)
}


def change_of(node: ast.AST) -> str:
    """The change that a node allows; empty if there is none."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        # A random number that is equal to a share is one in 2^24.
        is_draw = re.match(r"(float\()?torch\.rand\(", ast.unparse(node))
        return "" if is_draw else "swap_comparison"
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        return "swap_operator"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "drop_not"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return "change_number"
    return ""


def skipped_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Parts of a node that are not mutated: annotations, drawing, neutral names and keywords."""
    if isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation:
        yield node.annotation
    if isinstance(node, ast.FunctionDef) and node.returns:
        yield node.returns
    if isinstance(node, ast.FunctionDef) and any(
        name in ast.unparse(annotation or ast.Constant(""))
        for name in DRAWING
        for annotation in (node.returns, *(argument.annotation for argument in node.args.args))
    ):
        yield node
    if isinstance(node, ast.keyword) and node.arg in NEUTRAL_KEYWORDS:
        yield node.value
    if isinstance(node, ast.Assign) and re.fullmatch(NEUTRAL_NAMES, ast.unparse(node.targets[0])):
        yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        yield node
    # Aliases of types, such as `Settings = Mapping[str, Any] | None`.
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield node


def mutants_of(file: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    source = (PACKAGE / file).read_text()
    tree, lines = ast.parse(source), source.splitlines()
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in skipped_parts(node)
        for inner in ast.walk(part)
    }
    for index, node in enumerate(ast.walk(tree)):
        change = change_of(node)
        if not change or id(node) in skipped:
            continue
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        text = lines[line - 1].strip()
        described = f"{change}: {text}"
        if not any(file == where and part in described for where, part, _ in EQUIVALENT):
            yield Mutant(file, index, change, line, column, text)


def core_files() -> list[str]:
    """All modules of the package but those of the command line."""
    files = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return sorted(file for file in files if not file.startswith("cli/"))


@cache
def test_sources() -> dict[str, str]:
    """The text of every test file that may be run for a module."""
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if "docs" not in path.parts]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def mirroring(file: str) -> list[str]:
    """The test files that mirror a module or its folder, as that of `store` and `selection`."""
    path = Path("tests", file)
    names = [
        path.with_name(f"test_{path.name}"),
        path.parent.with_name(f"test_{path.parent.name}.py"),
    ]
    return [str(name) for name in names if (ROOT / name).exists()]


@cache
def imports_of(text: str) -> set[str]:
    """The dotted names that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def names_of(file: str) -> set[str]:
    """The dotted names by which a module is imported: its own, and its names from its folder."""
    folder, module = Path("afield", file).parent, Path("afield", file).with_suffix("")
    bodies = ast.parse((PACKAGE / file).read_text()).body
    defined = {node.name for node in bodies if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    of_folder = {".".join([*folder.parts, name]) for name in defined if len(folder.parts) > 2}
    return {".".join(module.parts), *of_folder}


@cache
def tests_of(file: str) -> list[Stage]:
    """The test files of a module, in the order in which they are run, and which tests of them."""
    contracts = [f"tests/{name}" for name in CONTRACTS.get(str(Path(file).parent), [])]
    first = mirroring(file) + [name for name in contracts if (ROOT / name).exists()]
    names = names_of(file)
    importing = [name for name, text in test_sources().items() if names & imports_of(text)]
    others = sorted(set(importing) - set(first), key=lambda name: len(test_sources()[name]))
    users = [user for user in core_files() if names & imports_of((PACKAGE / user).read_text())]
    mirrored = {name for user in users for name in mirroring(user)} - set(first) - set(others)
    stages = [(first, "not slow"), (others, "not slow"), (sorted(mirrored), "not slow")]
    return [stage for stage in [*stages, (first, "slow")] if stage[0]]


def run_tests(mutant: Mutant | None, stages: list[Stage], folder: Path) -> None:
    """Exit with 0 if the tests pass with the mutant, in a process of its own."""
    package = folder / "afield"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant:
        (package / mutant.file).write_text(mutant.source())
    sys.path.insert(0, str(folder))
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)
    os.setpgrp()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    import pytest

    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}"]
    options += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    if mutant and ">>>" in mutant.source():
        stages = [([str(package / mutant.file)], "not slow"), *stages]
    for files, marked in stages:
        chosen = ["-m", f"{marked} and not ray and not browser and not data"]
        if pytest.main([*options, *chosen, *files]) not in (0, NO_TESTS):
            os._exit(1)
    os._exit(0)


@dataclass
class Job:
    """A mutant, or with none the tests themselves, that is being tested."""

    mutant: Mutant | None
    stages: list[Stage]
    folder: Path
    process: ForkProcess
    started: float

    @staticmethod
    def start(mutant: Mutant | None, stages: list[Stage]) -> "Job":
        """Start the tests in a fork of this process, which has imported torch already."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        context = multiprocessing.get_context("fork")
        process = context.Process(target=run_tests, args=(mutant, stages, folder))
        process.start()
        return Job(mutant, stages, folder, process, time.monotonic())

    def outcome(self) -> str:
        """End the tests, and return whether the mutant survived, was killed, or ran too long."""
        ended = not self.process.is_alive()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, 9)
        self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)
        if not ended:
            return "out of time"
        return "SURVIVED" if self.process.exitcode == 0 else "killed"


Task = tuple[Mutant | None, list[Stage]]


def tested(tasks: list[Task], workers: int, limit: float) -> Iterator[tuple[Task, str]]:
    """Every task and its outcome, as they end."""
    waiting, running = list(reversed(tasks)), list[Job]()
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(Job.start(*waiting.pop()))
        wait([job.process.sentinel for job in running], timeout=5)
        for job in list(running):
            if not job.process.is_alive() or time.monotonic() - job.started > limit:
                running.remove(job)
                yield (job.mutant, job.stages), job.outcome()


def check_tests(files: set[str], workers: int, limit: float) -> None:
    """Refuse to count if a test fails without any mutant."""
    names = sorted({name for file in files for stage, _ in tests_of(file) for name in stage})
    tasks: list[Task] = [(None, [([name], "not slow")]) for name in names]
    outcomes = tested(tasks, workers, limit)
    failed = [task[1][0][0][0] for task, outcome in outcomes if outcome != "SURVIVED"]
    if failed:
        sys.exit(f"fails without a mutant: {', '.join(failed)}")


def main() -> None:
    """Draw mutants, test them, and count those that are killed."""
    parser = argparse.ArgumentParser(description="Test whether the tests notice mistakes.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="start of the paths to mutate")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=300, help="seconds for a mutant's tests")
    parser.add_argument("--log", type=Path, help="file of results, to continue later")
    parser.add_argument("--unchecked", action="store_true", help="trust that all tests pass")
    asked = parser.parse_args()
    files = [file for file in core_files() if file.startswith(asked.only)]
    mutants = [mutant for file in files for mutant in mutants_of(file)]
    drawn = sorted(mutants, key=lambda mutant: mutant.rank(asked.seed))[: asked.count]
    kept = asked.log.read_text().splitlines() if asked.log and asked.log.exists() else []
    outcomes = {line["name"]: line["outcome"] for line in map(json.loads, kept)}
    tasks: list[Task] = [(m, tests_of(m.file)) for m in drawn if m.name not in outcomes]
    import torch  # noqa: F401  (once, for all forks)

    if not asked.unchecked:
        check_tests({mutant.file for mutant in drawn}, asked.workers, asked.limit)
    for (mutant, _), outcome in tested(tasks, asked.workers, asked.limit):
        assert mutant
        outcomes[mutant.name] = outcome
        print(f"{outcome} {mutant.file}:{mutant.line} {mutant.change}: {mutant.text}", flush=True)
        if asked.log:
            with asked.log.open("a") as log:
                log.write(json.dumps({"name": mutant.name, "outcome": outcome}) + "\n")
    alive = [mutant for mutant in drawn if outcomes[mutant.name] == "SURVIVED"]
    late = sum(outcomes[mutant.name] == "out of time" for mutant in drawn)
    killed = f"{len(drawn) - len(alive)} of {len(drawn)} mutants killed"
    print(f"\n{killed} ({late} of them because the tests ran out of time); survivors:")
    for m in sorted(alive, key=lambda mutant: (mutant.file, mutant.line)):
        print(f"src/afield/{m.file}:{m.line}:{m.column} {m.change}: {m.text}")


if __name__ == "__main__":
    main()
