"""What a pool is, and the pool that a text names: ``local`` or ``ray:cpus=2,gpus=0.25``.

A pool is a file of `afield.runs.pools`. The fields of its class are its options, and its class
method `suited` derives them from the options that all pools share, such as ``--threads``.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

from afield import registry
from afield.errors import SpecError, UnknownNameError
from afield.hyperparameters import build

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """Maps a function over items, in any order and anywhere."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Yield results as they come; `on_lost` makes the result of an item whose worker died."""


def default_pool() -> Pool:
    """The calling process."""
    return cast(Pool, registry.find("pools", "local")())


def make_pool(
    on: str = "local",
    *,
    threads: int = 1,
    workers: int | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    retries: int = 3,
    device: str | None = None,
) -> Pool:
    """The pool that `on` names, with options after a colon: ``NAME:option=value,…``.

    ``ray://HOST:PORT`` is short for ``ray:address=ray://HOST:PORT``. The options of `on` replace
    those that follow from the other arguments.

    >>> make_pool("ray:cpus=2,gpus=0.25")
    Ray(address='', cpus=2.0, gpus=0.25, retries=3)
    """
    name, _, text = on.partition(":")
    if name not in registry.names("pools"):
        known = [*registry.names("pools"), "ray://HOST:PORT"]
        raise UnknownNameError(f"cannot run on {on!r}; {registry.hint(name, known)}")
    kind = registry.find("pools", name)
    given = _parse_options(on, f"address={on}" if text.startswith("//") else text)
    suited = kind.suited(
        threads=threads, workers=workers, cpus=cpus, gpus=gpus, retries=retries, device=device
    )
    return cast(Pool, build(kind, {**suited, **given}, owner=name))


def _parse_options(on: str, text: str) -> dict[str, Any]:
    # A comma separates two options only before a name: the value of gpus may be a list.
    pairs = [pair.partition("=") for pair in re.split(r",(?=\s*\w+\s*=)", text) if text]
    if not all(name and value for name, _, value in pairs):
        raise SpecError(f"--on {on}: write the options as NAME:option=value,option=value")
    return {name.strip(): value.strip() for name, _, value in pairs}
