"""Do the tests notice mistakes? Change one operator or number at a time and run the tests.

    python benchmarks/mutants.py                    # 40 mutants of the core, drawn with seed 0
    python benchmarks/mutants.py --count 10 --seed 1

Each mutant is made in a copy of the package. It is killed if a test of its module fails. Survivors
are printed with their line: they show what no test checks, or a change that makes no difference.
"""

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from os import environ
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The core, and where it is tested beside the file that mirrors it.
CORE = {
    "hyperparameters.py": [],
    "registry.py": [],
    "data/samples.py": [],
    "data/scaling.py": [],
    "data/stream.py": [],
    "training/calibration.py": [],
    "training/evaluation.py": [],
    "training/inner_loop.py": ["tests/training/methods/test_arith.py"],
    "training/loop.py": [],
    "training/method.py": ["tests/training/methods/test_groupdro.py"],
    "training/methods/arith.py": [],
    "training/methods/seed_category.py": [],
    "training/averages/swad.py": [],
    "merging/scopes.py": ["tests/merging/test_state_dicts.py"],
    "merging/merges/score.py": [],
    "merging/merges/ties.py": [],
    "experiments/record.py": ["tests/test_golden.py"],
    "experiments/protocol.py": [],
    "experiments/selection.py": [],
    "experiments/settings.py": ["tests/experiments/test_protocol.py"],
    "reporting/comparison.py": [],
}
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


def places(tree: ast.Module) -> Iterator[tuple[int, Change]]:
    """What can be changed: the index of a node in the order of `ast.walk`, and how."""
    skipped = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, (ast.AnnAssign, ast.arg, ast.FunctionDef))
        for field in ("annotation", "returns")
        if (found := getattr(node, field, None)) is not None
        for part in ast.walk(found)
    }
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield index, swap_comparison
        elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
            yield index, swap_operator
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield index, drop_not
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield index, change_number


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


def tests_of(file: str) -> list[str]:
    """The test files of a module: the one that mirrors it, and those that are named for it."""
    path = Path("tests", file)
    mirrored = path.with_name(f"test_{path.name}")
    return [str(name) for name in (mirrored, *map(Path, CORE[file])) if (ROOT / name).exists()]


def survives(file: str, source: str, folder: Path) -> bool:
    """Whether all tests of a module pass with another source."""
    package = folder / "afield"
    shutil.copytree(ROOT / "src" / "afield", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / file).write_text(source)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not ray and not browser and not data", *tests_of(file)]
    variables = {**environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, check=False, timeout=300
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Draw mutants, test them, and count those that are killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sources = {file: (ROOT / "src" / "afield" / file).read_text() for file in CORE}
    mutants = [(file, *place) for file in CORE for place in places(ast.parse(sources[file]))]
    drawn = random.Random(asked.seed).sample(mutants, asked.count)
    killed = 0
    for number, (file, index, change) in enumerate(drawn, 1):
        tree = ast.parse(sources[file])
        node = list(ast.walk(tree))[index]
        line = getattr(node, "lineno", 0)
        change(node)
        with tempfile.TemporaryDirectory() as folder:
            alive = survives(file, ast.unparse(ast.fix_missing_locations(tree)), Path(folder))
        killed += not alive
        text = sources[file].splitlines()[line - 1].strip()
        state = "SURVIVED" if alive else "killed"
        print(f"{number}/{asked.count} {state} {file}:{line} {change.__name__}: {text}", flush=True)
    print(f"{killed} of {asked.count} mutants killed")


if __name__ == "__main__":
    main()
