"""Code of the user: a method, backbone, merge or dataset in one file, in a module, or in Python.

    ./my_idea.py               a file with one public object
    my_package.ideas:Idea      an object of a module that can be imported

Such code runs only because a person names it on the command line or passes it in Python. Names in
records, TOML files and model folders never load code. Records keep a digest of the source
(`Run.code`), and a run whose code is not given again, with the same digest, is refused.
"""

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from afield.errors import SpecError
from afield.files import read_text

# The idea of each kind, `module:class`; a merge is a function with a scope.
IDEAS = {
    "methods": "afield.training.method:Method",
    "averages": "afield.training.average:Average",
    "adaptations": "afield.training.adaptation:Adaptation",
    "backbones": "afield.networks.backbone:Backbone",
    "datasets": "afield.data.domains:DomainSet",
    "merges": "",
}
# What makes code of an object that was passed in Python.
PAYLOADS = {
    "backbones": "afield.networks.own_network:own_backbone",
    "methods": "afield.training.own_classifier:own_classifier",
}
# The kind of code that each option of a command or function may name.
OPTIONS = {
    **dict.fromkeys(("method", "methods", "expert_method"), "methods"),
    "average": "averages",
    **dict.fromkeys(("adapt", "adaptation"), "adaptations"),
    "merges": "merges",
    "backbone": "backbones",
    "dataset": "datasets",
}
MODULE_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
# Of the modules that files are run as.
MODULE_PREFIX = "afield_own_code_"
# Words with another meaning where names are expected.
RESERVED = ("all", "best", "hf")


@dataclass(frozen=True)
class Code:
    """Registered code: kind, name, digest of its source, and how a worker gets it.

    A file is sent as its `source`; other code is imported from `origin`, ``module:name``. A
    network that was passed in Python is the `payload`, with its weights.
    """

    kind: str
    name: str
    digest: str
    origin: str
    source: str = field(default="", repr=False)
    payload: Any = field(default=None, repr=False)


_registered: dict[tuple[str, str], tuple[Code, Any]] = {}


def names(kind: str) -> list[str]:
    """Names of the registered code of a kind."""
    return [name for of, name in _registered if of == kind]


def find(kind: str, name: str) -> Any:
    """The registered object with this name."""
    return _registered[kind, name][1]


def registered() -> tuple[Code, ...]:
    """All registered code, for `restore` in another process."""
    return tuple(code for code, _ in _registered.values())


def digests(*used: tuple[str, str]) -> dict[str, str]:
    """Digests of those (kind, name) that are registered code; empty if all are afield's own."""
    return {
        f"{kind}/{name}": _registered[kind, name][0].digest
        for kind, name in used
        if (kind, name) in _registered
    }


def check(needed: Mapping[str, str], where: str) -> None:
    """Refuse what needs code that was not given, or given in another version."""
    for each, digest in needed.items():
        kind, _, name = each.partition("/")
        given = digests((kind, name)).get(each)
        if given is None:
            raise SpecError(
                f"{where}: uses the code of {name!r} ({kind[:-1]}, sha256 {digest}), which runs "
                f"only if you give it again: afield --code {name}.py …"
            )
        if given != digest:
            raise SpecError(
                f"{where}: was made with another version of {name!r} (sha256 {digest}, now {given})"
            )


def is_code(kind: str, text: str) -> bool:
    """Whether a text names a file or module, and not something that afield or a package has."""
    if kind == "datasets" and Path(text).is_dir():
        return False
    if text.endswith(".py"):
        return True
    module, _, _ = text.partition(":")
    # The names of backbones have colons as well.
    plain = kind in ("backbones", "datasets") and "." not in module
    return bool(MODULE_FORM.fullmatch(text)) and not plain


def accept(words: Mapping[str, Any]) -> dict[str, Any]:
    """Load the code that a person has named in these options, and put its names in place.

    Texts may list several names with commas, as on the command line.
    """
    accepted = dict(words)
    for option, kind in OPTIONS.items():
        value = words.get(option)
        if isinstance(value, str):
            parts = [value] if kind == "datasets" else value.split(",")
            accepted[option] = ",".join(_accept(kind, part.strip()) for part in parts)
        elif isinstance(value, list | tuple):
            accepted[option] = type(value)(_accept(kind, each) for each in value)
    return accepted


def _accept(kind: str, value: Any) -> Any:
    return load(kind, value) if isinstance(value, str) and is_code(kind, value) else value


def load(kind: str, origin: str) -> str:
    """Run a file, or import a module, that a person has named; return the name of its object.

    An empty kind stands for any: the object decides.
    """
    if not origin.strip():
        raise SpecError("the name of your own code is empty; give a file such as my_idea.py")
    if origin.endswith(".py"):
        path = Path(origin).expanduser()
        try:
            source = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{origin}: cannot be read ({error}); give a file of Python") from None
        return _add(kind, path.stem, str(path), source)
    return _add(kind, origin.partition(":")[2], origin, "")


def register(kind: str, name: str, value: Any, *, source: str, payload: Any = None) -> str:
    """Register an object that was passed in Python; return its name."""
    origin = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    code = Code(kind, name, _digest(source), origin, payload=payload)
    return _keep(code, value)


def restore(codes: Iterable[Code]) -> None:
    """Register code in a worker, as it is registered in the process that started it."""
    for code in codes:
        if digests((code.kind, code.name)).get(f"{code.kind}/{code.name}") == code.digest:
            continue
        if code.source:
            value = _object(_run(code.name, code.origin, code.source), code.kind, code.origin)
        elif code.payload is not None:
            value = _imported(PAYLOADS[code.kind])(code.payload)
        else:
            value = _imported(code.origin)
        _keep(code, value)


def _add(kind: str, name: str, origin: str, source: str) -> str:
    if source:
        value, text = _object(_run(name, origin, source), kind, origin), source
    else:
        value = _imported(origin)
        _require(value, kind, origin)
        text = inspect.getsource(sys.modules[origin.partition(":")[0]])
    return _keep(Code(kind or _kind_of(value), name, _digest(text), origin, source), value)


def _keep(code: Code, value: Any) -> str:
    if code.kind == "backbones" and inspect.isfunction(value):
        value = _imported("afield.networks.own_network:own_backbone")(value)
    if not code.name.isidentifier() or code.name in RESERVED:
        raise SpecError(f"{code.origin}: {code.name!r} cannot be a name; rename the file or object")
    from afield.registry import CLASSICAL, builtin_names

    alike = [code.kind, CLASSICAL] if code.kind == "methods" else [code.kind]
    if any(code.name in builtin_names(kind) for kind in alike):
        raise SpecError(
            f"{code.origin}: {code.name!r} is already a name of afield's {code.kind}; rename it"
        )
    _registered[code.kind, code.name] = code, value
    return code.name


def _run(name: str, origin: str, source: str) -> ModuleType:
    """Run the source of a file as a module."""
    module = ModuleType(f"{MODULE_PREFIX}{name}_{_digest(source)}")
    module.__file__ = origin
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, origin, "exec"), module.__dict__)
    except SyntaxError as error:
        raise SpecError(f"{origin}: syntax error in line {error.lineno} ({error.msg})") from None
    except ValueError as error:  # such as null bytes, which are no syntax error
        raise SpecError(describe_error(error) or f"{origin}: {error}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(describe_error(error) or f"{origin}: {_reason(error)}") from error
    return module


def describe_error(error: BaseException) -> str:
    """The line of the user's code in which an error arose, and the error; empty if not in there.

    An exit counts only if the user's code asks for it, and not a signal that arrives meanwhile.
    """
    modules = {getattr(value, "__module__", "") or "" for _, value in _registered.values()}
    own = {name for name in modules if name.partition(".")[0] != "afield"}
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    if isinstance(error, SystemExit) and names and names[-1].partition(".")[0] == "afield":
        return ""
    for (frame, line), name in zip(reversed(frames), reversed(names), strict=True):
        if name.startswith(MODULE_PREFIX) or name in own:
            return f"{frame.f_code.co_filename}: {_reason(error, line)}"
    return ""


def _reason(error: BaseException, line: int = 0) -> str:
    where = f" in line {line}" if line else ""
    text = " ".join(str(error).split())
    if isinstance(error, SystemExit):
        text = f"the code ends the program (exit code {error.code}), which it must not do"
    return f"{type(error).__name__}{where}: {text}"


def _imported(origin: str) -> Any:
    module, _, name = origin.partition(":")
    try:
        value = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        advice = "put it into a file, or use workers=1" if module == "__main__" else "check it"
        raise SpecError(f"{origin}: cannot be imported ({error}); {advice}") from None
    except (Exception, SystemExit) as error:
        frames = traceback.walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if frame.f_globals.get("__name__") == module]
        reason = _reason(error, lines[-1] if lines else 0)
        raise SpecError(f"{origin}: cannot be imported ({reason})") from error
    return value


def _object(module: ModuleType, kind: str, origin: str) -> Any:
    """The one public object of a file: that of ``__all__``, or the only one of its kind."""
    public = getattr(module, "__all__", None)
    if public is not None:
        names = list(public) if isinstance(public, list | tuple) else []
        if len(names) != 1 or not isinstance(names[0], str) or not hasattr(module, names[0]):
            raise SpecError(f"{origin}: __all__ must contain exactly one name")
        value = getattr(module, names[0])
        _require(value, kind, origin)
        return value
    kinds = [kind] if kind else list(IDEAS)
    own = [each for each in vars(module).values() if _defined_in(module, each)]
    fitting = [each for each in own if any(_fits(each, one) for one in kinds)]
    if len(fitting) != 1:
        what = " or ".join(one[:-1] for one in kinds)
        count = "no" if not fitting else f"{len(fitting)} objects:"
        raise SpecError(f"{origin}: has {count} {what}; define one, or name it in __all__")
    return fitting[0]


def _defined_in(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", module.__name__) == module.__name__ or not callable(value)


def _require(value: Any, kind: str, origin: str) -> None:
    if not any(_fits(value, one) for one in ([kind] if kind else IDEAS)):
        raise SpecError(f"{origin}: is no {(kind or 'methods')[:-1]}; see CONTRIBUTING.md")


def _kind_of(value: Any) -> str:
    return next(kind for kind in IDEAS if _fits(value, kind))


def _fits(value: Any, kind: str) -> bool:
    """Whether an object is of a kind: a class that extends its idea, a dataset, or a function.

    A function of (shape, classes) is a backbone, one with a scope is a merge.
    """
    if kind == "merges":
        return callable(value) and hasattr(value, "scope")
    if kind == "backbones" and inspect.isfunction(value) and not hasattr(value, "scope"):
        return list(inspect.signature(value).parameters)[:2] == ["shape", "classes"]
    idea = _imported(IDEAS[kind])
    return isinstance(value, idea) or (isinstance(value, type) and issubclass(value, idea))


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]
