"""The house as text: its rooms and files with a line each, and numbers about its shape.

    make house

prints it. `test_rooms` checks the rules that these functions measure.
"""

import ast
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import chain
from pathlib import Path

import afield
from afield.registry import ROOMS

PACKAGE = Path(afield.__file__).parent
# Folders whose files are found by their names, and not imported by others.
REGISTRIES = {*ROOMS, "recipes", "templates"}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> dict[str, Path]:
    """The files of all modules by their dotted names; a package is its ``__init__``."""
    files = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return files


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        # The name of a function or class stands for its module.
        known = (name if name in modules() else name.rpartition(".")[0] for name in names)
        yield from (name for name in known if name in modules())


def imports(name: str, *, anywhere: bool = True) -> set[str]:
    """The modules that a module imports: anywhere in it, or only when it is imported itself."""
    tree = parsed(modules()[name])
    return {*_imported(ast.walk(tree) if anywhere else tree.body)} - {name}


@cache
def importers() -> dict[str, set[str]]:
    """The modules that import each module."""
    result: dict[str, set[str]] = {name: set() for name in modules()}
    for name in modules():
        for other in imports(name):
            result[other].add(name)
    return result


def is_package(name: str) -> bool:
    """Whether a module is the ``__init__`` of a folder."""
    return modules()[name].name == "__init__.py"


def length(name: str) -> int:
    """The number of lines of a module."""
    return len(modules()[name].read_text(encoding="utf-8").splitlines())


def lonely_modules() -> list[str]:
    """The modules with a single importer."""
    return [name for name, by in importers().items() if len(by) == 1 and not is_package(name)]


def import_share() -> float:
    """The share of the lines that import something, or list what may be imported."""
    lines = 0
    for path in modules().values():
        for node in parsed(path).body:
            is_list = isinstance(node, ast.Assign | ast.AugAssign) and "__all__" in ast.unparse(
                node.targets[0] if isinstance(node, ast.Assign) else node.target
            )
            if is_list or isinstance(node, ast.Import | ast.ImportFrom):
                lines += (node.end_lineno or 0) - node.lineno + 1
    return lines / sum(map(length, modules()))


def longest_chain() -> list[str]:
    """The longest chain of modules that import each other when the first one is imported."""

    @cache
    def below(name: str) -> tuple[str, ...]:
        chains = (below(other) for other in imports(name, anywhere=False))
        return (name, *max(chains, key=len, default=()))

    return list(max(map(below, modules()), key=len))


def folder_cycles() -> list[str]:
    """Folders that import, directly or not, what imports them; a folder counts as one module."""
    folders = {name for name in modules() if is_package(name)}

    def node(name: str) -> str:
        """The folder of a module within a room, or the module itself."""
        parts = name.split(".")
        return ".".join(parts[:3]) if ".".join(parts[:3]) in folders else name

    edges: dict[str, set[str]] = {}
    for name in modules():
        others = {node(other) for other in imports(name, anywhere=False)}
        edges.setdefault(node(name), set()).update(others - {node(name)})

    def reachable(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            for other in edges[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        return seen

    return sorted(name for name in edges if name in folders and name in reachable(name))


def entered_modules() -> list[str]:
    """The modules in rooms that ``afield bench rotated_digits`` calls; registries do not count."""
    from afield.cli import main

    entered: set[str] = set()
    paths = {str(path): name for name, path in modules().items()}

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        # A class or module that is being defined is not optimized code.
        if event == "call" and code.co_flags & 1 and code.co_filename in paths:
            entered.add(paths[code.co_filename])

    with tempfile.TemporaryDirectory() as store:
        words = ["bench", "rotated_digits", "--trials", "1", "--workers", "1", "--quiet"]
        sys.argv = ["afield", *words, "--set", "steps=5", "--store", store]
        sys.setprofile(note)
        try:
            with redirect_stdout(StringIO()):
                main()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    return sorted(name for name in entered if name.split(".")[-2] not in {"afield", *REGISTRIES})


def tree() -> Iterator[str]:
    """A line per room and file; of a registry, only the number of files."""
    for name, path in modules().items():
        parts = name.split(".")
        summary = (ast.get_docstring(parsed(path)) or "").partition("\n")[0]
        if is_package(name):
            count = len(list(path.parent.glob("[!_]*.*")))
            counted = f" ({count} files)" if parts[-1] in REGISTRIES else ""
            yield f"{'  ' * (len(parts) - 1)}{parts[-1]}/{counted}  {summary}"
        elif parts[-2] not in REGISTRIES:
            yield f"{'  ' * (len(parts) - 1)}{parts[-1]:<20} {length(name):>4}  {summary}"


def numbers() -> Iterator[str]:
    """What the shape rules measure, a line each."""
    lengths = sorted(map(length, modules()))
    yield f"modules                              {len(modules())}"
    yield f"lines                                {sum(lengths)}"
    yield f"median file                          {lengths[len(lengths) // 2]}"
    yield f"modules with one importer            {len(lonely_modules())}"
    yield f"lines that import or list names      {import_share():.1%}"
    yield f"longest chain of imports             {len(longest_chain())}"
    yield f"folder cycles                        {len(folder_cycles())}"
    yield f"modules that a first bench enters    {len(entered_modules())}"


if __name__ == "__main__":
    for line in chain(tree(), [""], numbers()):
        print(line)  # noqa: T201  it is what this is for
