"""Names of methods, merges, averages, adaptations and more: a folder is a registry.

The name of a file is the name of the one public object in it. Other packages add names through the
entry points ``afield.methods``, ``afield.merges``, ``afield.averages``, ``afield.adaptations``,
``afield.datasets``, ``afield.diagnostics`` and ``afield.pools``. This module imports neither torch
nor the files until `find` is called.
"""

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from afield import own_code
from afield.errors import SpecError, UnknownNameError

# Base classes of methods, averages and adaptations; the version of afield covers changes to them.
BASE_MODULES = (
    "afield.training.method",
    "afield.training.classical_method",
    "afield.training.average",
    "afield.training.adaptation",
)
# Subpackage of each kind.
ROOMS = {
    "methods": "training",
    "classical_methods": "training",
    "merges": "merging",
    "averages": "training",
    "adaptations": "training",
    "modalities": "data",
    "datasets": "data",
    "diagnostics": "diagnosis",
    "backbones": "networks",
    "pools": "runs",
    "estimators": "deployment",
}
# Kinds that users neither list nor explain: a backbone is a family of names, files tell the
# modality, and pools and estimators are described where they are used.
HIDDEN = ("backbones", "modalities", "pools", "estimators")
KINDS = tuple(kind for kind in ROOMS if kind not in HIDDEN)
# Methods that are looked up among the others, but listed apart: `all` does not stand for them.
CLASSICAL = "classical_methods"
# How many names a hint lists.
MAX_HINTS = 30
# Names the way code digests are computed; digests with another prefix cannot be compared.
CODE_FORM = "ast2:"


def names(kind: str) -> list[str]:
    """All names of a kind: files of its folder and entry points of other packages.

    >>> "erm" in names("methods")
    True
    """
    return sorted({*builtin_names(kind), *own_code.names(kind)})


def builtin_names(kind: str) -> list[str]:
    """Names of a kind without the user's own code."""
    return sorted({*_file_names(kind), *_entry_points(kind)})


def is_classical(name: str) -> bool:
    """Whether a method is a classical one, such as ``logistic``."""
    built_in = name in _file_names(CLASSICAL) or name in _entry_points(CLASSICAL)
    is_own = name in own_code.names("methods")
    return built_in or (is_own and bool(own_code.find("methods", name).is_classical))


def _home(kind: str, name: str) -> str:
    """The kind in whose folder a name is: that of classical methods for some methods."""
    is_own = name in own_code.names(kind)
    return CLASSICAL if kind == "methods" and not is_own and is_classical(name) else kind


def find(kind: str, name: str) -> Any:
    """Import and return the object with this name, e.g. ``find("methods", "vrex")``."""
    kind = _home(kind, name)
    if name in _file_names(kind):
        module = import_module(_module_name(kind, name))
        public = getattr(module, "__all__", [])
        if len(public) != 1:
            raise SpecError(f"{module.__file__}: __all__ must contain exactly one name")
        return getattr(module, public[0])
    points = _entry_points(kind)
    if name in points:
        return points[name].load()
    if name in own_code.names(kind):
        return own_code.find(kind, name)
    if own_code.is_code(kind, name):
        raise SpecError(
            f"{name}: code runs only if you name it on the command line or pass it in Python; use "
            f"`afield --code {name} …` and write {Path(name).stem.rpartition(':')[2]!r} here"
        )
    known = [*names(kind), *(names(CLASSICAL) if kind == "methods" else ())]
    raise UnknownNameError(f"no {kind[:-1]} {name!r}; {hint(name, known)}")


def class_constant(kind: str, name: str, attribute: str, default: Any) -> Any:
    """A class variable of an object, read from its source: built-in code is not imported for it.

    >>> class_constant("methods", "arm", "predicts_from_batches", False)
    True
    """
    kind = _home(kind, name)
    if name not in _file_names(kind):
        return getattr(find(kind, name), attribute, default)
    return _constants(_module_name(kind, name)).get(attribute, default)


def docstring(kind: str, name: str) -> str:
    """Docstring of the module behind a name, read without running the module."""
    kind = _home(kind, name)
    try:
        tree = ast.parse(_source(kind, name))
    except SyntaxError as error:
        return f"(syntax error in line {error.lineno})"
    return ast.get_docstring(tree) or ""


def summary(kind: str, name: str) -> str:
    """First line of the docstring of the module behind a name."""
    return docstring(kind, name).partition("\n")[0]


def digest(kind: str, name: str) -> str:
    """Digest of the code of an object and of the classes it extends; computed once per process.

    Imports, docstrings, comments and formatting do not count: moving or documenting a file does
    not make existing records look outdated.
    """
    kind = _home(kind, name)
    if name in own_code.names(kind):
        return f"own:{own_code.digests((kind, name))[f'{kind}/{name}']}"
    return _builtin_digest(kind, name)


@cache
def _builtin_digest(kind: str, name: str) -> str:
    bases = [base.__module__ for base in getattr(find(kind, name), "__mro__", ())[1:]]
    modules = [base for base in bases if base.startswith("afield.") and base not in BASE_MODULES]
    sources = [_source(kind, name), *(inspect.getsource(import_module(m)) for m in modules)]
    code = "\n".join(_dump_code(source) for source in sources)
    return CODE_FORM + hashlib.sha256(code.encode()).hexdigest()[:12]


def code_differs(first: str, second: str) -> bool:
    """Whether two digests belong to different code; False if they cannot be compared."""
    return first != second and first.startswith(CODE_FORM) and second.startswith(CODE_FORM)


def hint(name: str, choices: Sequence[str]) -> str:
    """Suggest the closest choice for an unknown name, or list the choices."""
    if guess := get_close_matches(name, choices, n=1):
        return f"did you mean {guess[0]!r}?"
    more = f" and {len(choices) - MAX_HINTS} more" if len(choices) > MAX_HINTS else ""
    return f"known: {', '.join(choices[:MAX_HINTS]) or 'none'}{more}"


def _dump_code(source: str) -> str:
    """Text of a syntax tree without imports and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                setattr(node, block, [s for s in statements if not _is_import_or_text(s)])
    return ast.dump(tree)


def _is_import_or_text(node: ast.AST) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, (ast.Import, ast.ImportFrom))


def _source(kind: str, name: str) -> str:
    if name in own_code.names(kind):
        return next(code.source for code in own_code.registered() if code.name == name)
    file = getattr(find_spec(_module_name(kind, name)), "origin", None)
    return Path(file).read_text(encoding="utf-8") if file else ""


def _module_name(kind: str, name: str) -> str:
    if name in _file_names(kind):
        return f"afield.{ROOMS[kind]}.{kind}.{name}"
    return _entry_points(kind)[name].module


@cache
def _file_names(kind: str) -> frozenset[str]:
    folder = Path(__file__).parent / ROOMS[kind] / kind
    return frozenset(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _entry_points(kind: str) -> dict[str, EntryPoint]:
    return _entry_points_on(kind, tuple(sys.path))


@cache
def _entry_points_on(kind: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """The entry points of a kind; a change of the path may add packages."""
    del path
    return {point.name: point for point in entry_points(group=f"afield.{kind}")}


@cache
def _constants(module: str) -> dict[str, Any]:
    """Literal class variables of the public class of a module and of the methods it extends."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return {}
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("afield."):
            imported = {alias.asname or alias.name for alias in node.names}
            if imported & {base.id for c in tree.body for base in _bases(c)}:
                constants |= _constants(str(node.module))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            constants |= dict(_literals(node))
    return constants


def _bases(node: ast.stmt) -> list[ast.Name]:
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return [base for base in bases if isinstance(base, ast.Name)]


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        if isinstance(statement.value, ast.Constant):
            yield from ((ast.unparse(target), statement.value.value) for target in targets)
