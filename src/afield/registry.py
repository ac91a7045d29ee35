"""The folder is the registry: a file's name is its name everywhere.

Another package adds its own through the entry points ``afield.methods``, ``afield.merges``,
``afield.averages``, ``afield.datasets`` and ``afield.diagnostics``. Nothing here imports torch
until an object is asked for.
"""

import ast
import hashlib
import inspect
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afield.errors import SpecError, UnknownNameError

__all__ = [
    "CODE_FORM",
    "KINDS",
    "code_differs",
    "digest",
    "docstring",
    "find",
    "hint",
    "names",
    "summary",
]

# What all of a kind extend: a change there is a change of afield itself, which has a version.
BASE_MODULES = ("afield.training.method", "afield.training.average")
# The room in which each kind lives.
ROOMS = {
    "methods": "training",
    "merges": "merging",
    "averages": "training",
    "datasets": "data",
    "diagnostics": "diagnosis",
    "backbones": "networks",
}
# Kinds that have hyperparameters or a description of their own; backbones are families of names.
KINDS = tuple(kind for kind in ROOMS if kind != "backbones")
# How a code digest is computed. A digest with another prefix, or none, cannot be compared.
CODE_FORM = "ast1:"


def names(kind: str) -> list[str]:
    """All names of a kind: the files of its folder, and what other packages add.

    >>> "erm" in names("methods")
    True
    """
    return sorted({*_files(kind), *_added(kind)})


def find(kind: str, name: str) -> Any:
    """Return the one public object of ``afield/<kind>/<name>.py``."""
    if name in _files(kind):
        module = import_module(_path(kind, name))
        public = getattr(module, "__all__", [])
        if len(public) != 1:
            raise SpecError(f"{module.__file__}: __all__ must name its one public object")
        return getattr(module, public[0])
    added = _added(kind)
    if name in added:
        return added[name].load()
    raise UnknownNameError(f"no {name!r} in {kind}; {hint(name, names(kind))}")


def docstring(kind: str, name: str) -> str:
    """Docstring of the module behind a name, read without running the module."""
    try:
        tree = ast.parse(_source(kind, name))
    except SyntaxError as error:
        return f"(line {error.lineno} is not Python)"
    return ast.get_docstring(tree) or ""


def summary(kind: str, name: str) -> str:
    """First line of the docstring of the module behind a name."""
    return docstring(kind, name).partition("\n")[0]


def digest(kind: str, name: str) -> str:
    """Digest of the code behind a name and of the classes it extends.

    Imports, docstrings, comments and formatting do not count, so a file may be moved or documented
    without making its records look outdated. The prefix names the form of the digest.
    """
    bases = [base.__module__ for base in getattr(find(kind, name), "__mro__", ())[1:]]
    ours = [base for base in bases if base.startswith("afield.") and base not in BASE_MODULES]
    sources = [_source(kind, name), *(inspect.getsource(import_module(each)) for each in ours)]
    code = "\n".join(_bare(source) for source in sources)
    return CODE_FORM + hashlib.sha256(code.encode()).hexdigest()[:12]


def code_differs(first: str, second: str) -> bool:
    """Whether two code digests are of different code.

    False where one of them is of another form: then nothing is known about it.
    """
    return first != second and first.startswith(CODE_FORM) and second.startswith(CODE_FORM)


def hint(name: str, choices: Sequence[str]) -> str:
    """What to write instead of an unknown name."""
    guess = get_close_matches(name, choices, n=1)
    return f"did you mean {guess[0]!r}?" if guess else f"known: {', '.join(choices) or 'none'}"


def _bare(source: str) -> str:
    """Syntax tree of a source file without its imports and docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            kept = getattr(node, block, None)
            if isinstance(kept, list):
                setattr(node, block, [n for n in kept if not _is_import_or_text(n)])
    return ast.dump(tree)


def _is_import_or_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, (ast.Import, ast.ImportFrom))


def _source(kind: str, name: str) -> str:
    module = (
        f"afield.{ROOMS[kind]}.{kind}.{name}" if name in _files(kind) else _added(kind)[name].module
    )
    found = find_spec(module)
    if found is None or found.origin is None:
        return ""
    return Path(found.origin).read_text(encoding="utf-8")


def _path(kind: str, name: str) -> str:
    return f"afield.{ROOMS[kind]}.{kind}.{name}"


def _files(kind: str) -> list[str]:
    folder = Path(__file__).parent / ROOMS[kind] / kind
    return [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]


def _added(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"afield.{kind}")}
