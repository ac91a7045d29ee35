"""A benchmark as one value: all that `afield bench` can be asked for, and a file may say.

A file is flat TOML. Its names are the options of `afield bench`; all others are settings, as after
``--set``:

    dataset = ["pacs", "vlcs"]
    methods = ["erm", "arith"]
    trials = 3
    on = "ray"
    lr = 5e-5
    vrex.penalty = 10
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from afield.data.domains import Training
from afield.errors import DataError, SpecError, UnknownNameError
from afield.experiments.benchmarking import plan_runs
from afield.experiments.pools import Local, Pool, Ray, default_workers
from afield.experiments.record import Run
from afield.registry import hint

__all__ = ["Benchmark", "read_benchmark"]

RAY = "ray"


@dataclass(frozen=True)
class Benchmark:
    """What to compare on which data, and where to do it."""

    dataset: tuple[str, ...] = ("rotated_digits",)
    methods: tuple[str, ...] = ()
    trials: int = 3
    draws: int = 1
    rules: tuple[str, ...] | None = None
    hold_out: float = 0.0
    validate: float | None = None
    train_on: tuple[int | str, ...] = ()
    merges: tuple[str, ...] = ()
    expert_method: tuple[str, ...] = ("erm",)
    base_steps: int | None = None
    average: str = "last"
    store: str = "runs"
    on: str = "local"
    workers: int | None = None
    threads: int = 1
    cpus: float | None = None
    gpus: float = 0.0
    retries: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.validate is not None and not self.hold_out:
            raise SpecError(
                "--validate goes with --hold-out: it is a share of the domains held out"
            )
        for name in ("workers", "threads", "trials", "draws"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name}={value}: must be 1 or more")
        self.pool()

    def runs(self) -> list[Run]:
        """All runs of it, after reading and checking the data."""
        found = []
        for dataset in self.dataset:
            found += plan_runs(
                dataset,
                list(self.methods),
                trials=self.trials,
                draws=self.draws,
                rules=self.rules,
                test=self.hold_out,
                validate=0.1 if self.validate is None else self.validate,
                train_on=[_count(word) for word in self.train_on],
                merges=list(self.merges),
                expert_methods=list(self.expert_method),
                base_steps=self.base_steps,
                average=self.average,
                settings=dict(self.settings),
            )
        return found

    def pool(self) -> Pool:
        """Where its runs are done: in processes of this machine, or on Ray."""
        kind, _, address = self.on.partition("://")
        if kind == "local" and not address:
            if self.gpus or self.cpus is not None:
                raise SpecError("--cpus and --gpus go with --on ray; use --workers and --threads")
            return Local(self.workers or default_workers(self.threads))
        if kind != RAY:
            known = ["local", RAY, "ray://HOST:PORT"]
            raise UnknownNameError(f"nowhere called {self.on!r} to run on; {hint(self.on, known)}")
        if self.workers is not None:
            raise SpecError("--workers goes with processes of this machine; on Ray use --cpus")
        cpus = self.threads if self.cpus is None else self.cpus
        return Ray(self.on if address else "", cpus=cpus, gpus=self.gpus, retries=self.retries)


def read_benchmark(path: Path, **changes: Any) -> Benchmark:
    """The benchmark that a TOML file asks for; what is not None in `changes` wins over it."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not TOML ({error})") from None
    names = [each.name for each in fields(Benchmark) if each.name != "settings"]
    plain = {name.replace("-", "_"): value for name, value in found.items()}
    asked = {name: _listed(name, plain.pop(name)) for name in names if name in plain}
    settings = dict(_flat(plain))
    _check_words(path, asked, settings, names)
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        adapter = TypeAdapter(Benchmark)
        checked: Benchmark = adapter.validate_python({**asked, "settings": settings}, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        # What we refuse ourselves says where it stands.
        where = ".".join(str(step) for step in first["loc"])
        told = first["msg"].removeprefix("Value error, ")
        raise SpecError(": ".join(filter(None, [str(path), where, told]))) from None
    return replace(checked, **given)


def _check_words(
    path: Path, asked: Mapping[str, Any], settings: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Refuse what would be taken for something else: true for 1, an option for a setting."""
    for name, value in asked.items():
        if isinstance(value, bool):
            raise SpecError(f"{path}: {name}={str(value).lower()}: give a number or a name")
    known = [each.name for each in fields(Training)]
    for name in settings:
        if name not in known and (close := get_close_matches(name, names, n=1)):
            raise UnknownNameError(f"{path}: no {name!r}; did you mean {close[0]!r}?")


def _listed(name: str, value: Any) -> Any:
    """Where several are possible, one may stand alone, or names with commas as in a command."""
    several = ("methods", "rules", "train_on", "merges", "expert_method")
    if name in several and isinstance(value, str):
        return [word.strip() for word in value.split(",")]
    return [value] if name in (*several, "dataset") and not isinstance(value, list) else value


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names: in TOML, ``vrex.penalty`` is a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _count(word: int | str) -> int | None:
    """A number of domains; None are all of them."""
    if word == "all":
        return None
    if not str(word).isdecimal():
        raise SpecError(f"--train-on {word}: write numbers of domains, as 5,10,all")
    return int(word)
