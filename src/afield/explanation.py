"""What a method, average or dataset is, in words: its docstring, its settings and their ranges."""

import sys
from typing import Any

from afield import catalog
from afield.domains import DomainSet
from afield.errors import UnknownNameError
from afield.space import defaults, ranges

__all__ = ["explained"]


def explained(name: str) -> str:
    """The explanation of the one thing that has this name.

    >>> print(explained("groupdro").splitlines()[-1])
      eta = 0.01    LogUniform(low=0.001, high=0.1)
    """
    for kind in catalog.KINDS:
        if name in catalog.names(kind):
            return _told(f"{name} ({kind})", catalog.find(kind, name), kind, name)
    known = [each for kind in catalog.KINDS for each in catalog.names(kind)]
    raise UnknownNameError(f"nothing is called {name!r}; {catalog.hint(name, known)}")


def _told(title: str, found: Any, kind: str, name: str) -> str:
    if isinstance(found, DomainSet):
        module = sys.modules.get(f"afield.{kind}.{name}")
        facts = [
            f"domains: {', '.join(found.domains)}",
            f"classes: {', '.join(found.classes)}",
            "training: " + ", ".join(f"{k} {v}" for k, v in vars(found.training).items() if v),
        ]
    else:
        module = sys.modules.get(found.__module__)
        known = ranges(found)
        facts = ["settings:" if defaults(found) else "settings: none"]
        facts += [f"  {n} = {value}    {known.get(n, '')}" for n, value in defaults(found).items()]
    doc = (module.__doc__ or "").strip() if module else ""
    return "\n".join([title, "", doc, "", *facts])
