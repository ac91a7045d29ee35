"""What a method, a dataset and the like is, in words: its docstring, settings and ranges."""

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from afield import registry
from afield.data.lookup import find_dataset
from afield.errors import UnknownNameError
from afield.hyperparameters import defaults, ranges

__all__ = ["explanation_text"]

# How many domains or classes are listed.
MAX_NAMES = 20


def explanation_text(name: str) -> str:
    """The explanation of the one thing that has this name.

    >>> print(explanation_text("groupdro").splitlines()[-1])
      eta = 0.01    LogUniform(low=0.001, high=0.1)
    """
    for kind in registry.KINDS:
        if name in registry.names(kind):
            if kind == "datasets":
                return _told(f"{name} ({kind})", name, _of_dataset(name))
            found = registry.find(kind, name)
            return _told(
                f"{name} ({kind})", found.__module__, [_of_class(found), *_of_settings(found)]
            )
    known = [each for kind in registry.KINDS for each in registry.names(kind)]
    raise UnknownNameError(f"nothing is called {name!r}; {registry.hint(name, known)}")


def _of_dataset(name: str) -> list[str]:
    found = find_dataset(name)
    source, here = found.source, not found.missing_files()
    comes = f"`afield data get {name}`" if source.archives else source.instructions
    facts = [
        f"domains: {_listed(found.domains)}",
        f"classes: {_listed(found.classes)}",
        "training: " + ", ".join(f"{k} {v}" for k, v in vars(found.training).items() if v),
        "here: yes" if here else f"here: no; {comes}",
    ]
    return [*facts, f"licence: {source.licence}"] if source.licence else facts


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return (", ".join(names[:MAX_NAMES]) + more) or "known when the files are here"


def _of_class(found: Any) -> str:
    """What its settings mean stands in the docstring of the class."""
    return f"{inspect.cleandoc(found.__doc__ or '')}\n"


def _of_settings(found: Any) -> list[str]:
    known = ranges(found)
    facts = ["settings:" if defaults(found) else "settings: none"]
    return facts + [f"  {n} = {v}    {known.get(n, '')}" for n, v in defaults(found).items()]


def _told(title: str, module: str, facts: list[str]) -> str:
    found = sys.modules.get(module) or sys.modules.get(f"afield.datasets.{module}")
    doc = (found.__doc__ or "").strip() if found else ""
    return "\n".join([title, "", doc, "", *facts])
