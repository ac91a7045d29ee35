"""A recipe: one table or figure of a paper as benchmarks, with the paper's numbers beside them.

A recipe is a TOML file. `recipes/` has one for each table and figure of the five papers that afield
implements. `[options]` holds what all parts share; each `[[parts]]` is a benchmark, as in the files
of `afield sweep`, with a `name` and the numbers of the paper::

    title = "Arith, Table 1: accuracy (%) on five datasets"
    reproduces = "approximate"                  # exact, approximate or impossible
    differs = "the validation accuracy is a mean over sources"

    [options]
    trials = 3
    steps = 5000

    [[parts]]
    dataset = "pacs"
    methods = ["erm", "arith"]
    [[parts.numbers]]
    columns = ["art_painting", "cartoon", "photo", "sketch", "mean"]
    rows.erm = [84.7, 80.8, 97.2, 79.3, 85.5]

A column is a domain, a dataset (the mean over its domains) or ``mean``. A row is a method or merge
of the part; other rows are numbers that the paper quotes, or of methods that afield does not have.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from afield.errors import AfieldError, SpecError, UnknownNameError
from afield.registry import hint
from afield.studies.benchmark import (
    OPTIONS,
    Benchmark,
    build_validated,
    make_benchmark,
    read_toml,
)

# The fewest steps that `--scale` leaves.
MIN_STEPS = 50


@dataclass(frozen=True)
class Changes:
    """What to do in another way than the paper.

    `scale` multiplies steps and epochs, `trials` replaces the recipe's number, `methods`,
    `datasets` and `rules` keep only those, `data` maps names of datasets to others or to paths, and
    `settings` are as after ``--set``.
    """

    scale: float = 1.0
    trials: int | None = None
    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise SpecError(f"--scale {self.scale:g}: must be above 0 and at most 1")

    def describe(self) -> str:
        """What was changed, for titles; empty if nothing was."""
        words = [f"steps × {self.scale:g}"] if self.scale != 1 else []
        words += [f"trials={self.trials}"] if self.trials else []
        words += [f"methods {', '.join(self.methods)} only"] if self.methods else []
        words += [f"datasets {', '.join(self.datasets)} only"] if self.datasets else []
        words += [f"rules {', '.join(self.rules)} only"] if self.rules else []
        words += [f"{Path(new).name} in place of {old}" for old, new in self.data.items()]
        words += [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join(words)


def change_benchmark(benchmark: Benchmark, changes: Changes) -> Benchmark:
    """A benchmark of a recipe with the changes; it may have no dataset, method or rule left."""
    settings = _scaled(benchmark.settings, changes.scale)
    # Steps and epochs exclude each other, and so do the two ways to give a batch size.
    for one, other in (("steps", "epochs"), ("batch", "batch_total")):
        for new, old in ((one, other), (other, one)):
            if new in changes.settings:
                settings.pop(old, None)
    methods = _kept(benchmark.methods, changes.methods)
    merges = _kept(benchmark.merges, changes.methods)
    used = {*methods, *merges, *benchmark.expert_method, benchmark.average, "linear_probe"}
    settings = {
        name: value
        for name, value in {**settings, **changes.settings}.items()
        if "." not in name or name.rpartition(".")[0] in used
    }
    words: dict[str, Any] = {"methods": methods, "merges": merges, "settings": settings}
    datasets = _kept(benchmark.dataset, changes.datasets)
    words["dataset"] = tuple(changes.data.get(name, name) for name in datasets)
    if changes.rules:
        words["rules"] = _kept(benchmark.rules or changes.rules, changes.rules)
    if not merges:
        words |= {"expert_method": ("erm",), "base_steps": None, "expert_draws": None}
    if changes.trials:
        words["trials"] = changes.trials
    return replace(benchmark, **words)


def _kept(names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if not wanted or name in wanted)


def _scaled(settings: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Settings with fewer steps or epochs, and checkpoints and warm-ups in proportion."""
    scaled = dict(settings)
    if scale == 1:
        return scaled
    if "steps" in scaled:
        scaled["steps"] = max(min(MIN_STEPS, scaled["steps"]), round(scaled["steps"] * scale))
    if "epochs" in scaled:
        scaled["epochs"] = scaled["epochs"] * scale
    if "every" in scaled:
        scaled["every"] = max(1, round(scaled["every"] * scale))
    if "lr_schedule" in scaled:
        scaled["lr_schedule"] = re.sub(
            r"warmup=(\d+)\b(?!\.)",
            lambda match: f"warmup={round(int(match[1]) * scale)}",
            scaled["lr_schedule"],
        )
    return scaled


FOLDER = Path(__file__).parent / "recipes"
# The keys of a part that are not options of its benchmark.
PART_KEYS = ("name", "numbers", "quoted")


@dataclass(frozen=True)
class Numbers:
    """Numbers of a paper in percent: one row per method, one value per column; NaN is unreadable.

    Attributes
    ----------
    columns, rows
        Names of the columns, and the values of each row.
    rule
        The rule that selects; empty means the first rule of the part.
    value
        What is shown for the domain of a column: the accuracy there, the accuracy on the sources
        (``in_domain``), the same with the domain label given (``known``), or the accuracy on a
        group of samples that the column names (``group``).
    relative_to
        The row of which the others are differences; empty means that rows are accuracies.
    title
        What the numbers have in common, such as the network.
    over
        For numbers over several parts: what the names of these parts begin with. ``mean`` is then
        the mean over their datasets.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]
    rule: str = ""
    value: Literal["accuracy", "in_domain", "known", "group"] = "accuracy"
    relative_to: str = ""
    title: str = ""
    over: str = ""

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise SpecError(
                    f"row {name!r} has {len(values)} numbers for {len(self.columns)} columns"
                )


@dataclass(frozen=True)
class Part:
    """A benchmark of a recipe, the numbers of the paper, and the rows that are quoted only."""

    benchmark: Benchmark
    name: str = ""
    numbers: tuple[Numbers, ...] = ()
    quoted: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The methods and merges that are run."""
        return (*self.benchmark.methods, *self.benchmark.merges)


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper.

    Attributes
    ----------
    name, title
        The name of the file, and what the table or figure shows.
    reproduces, differs
        ``exact``, ``approximate`` or ``impossible``, and what differs or why, in one line.
    parts
        The benchmarks; empty if afield cannot run it, or if it shows no results of training.
    numbers
        Numbers of the paper over several parts.
    after
        The command that shows the result where it is no table of accuracies; STORE stands for the
        store of the runs.
    changes
        What to do in another way than the paper.
    """

    name: str
    title: str
    reproduces: Literal["exact", "approximate", "impossible"]
    differs: str = ""
    parts: tuple[Part, ...] = ()
    numbers: tuple[Numbers, ...] = ()
    after: str = ""
    changes: Changes = field(default_factory=Changes)

    @property
    def full_title(self) -> str:
        """The title, with what was changed."""
        changes = self.changes.describe()
        return f"{self.title} [{changes}]" if changes else self.title

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets of all parts."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.benchmark.dataset))


def recipe_names() -> list[str]:
    """Names of all recipes of the package, tables before figures and in their order."""
    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=_order)


def _order(name: str) -> tuple[str, str, int]:
    paper, _, place = name.rpartition("_")
    kind, number = re.fullmatch(r"([a-z]+)(\d+)", place).groups()  # type: ignore[union-attr]
    return paper, "" if kind == "table" else kind, int(number)


def is_recipe(path: Path) -> bool:
    """Whether a TOML file is a recipe, and not one benchmark."""
    return "parts" in read_toml(path)


def read_recipe(name: str | Path, *, changes: Changes | None = None, **options: Any) -> Recipe:
    """The recipe of this name or in this file.

    Parameters
    ----------
    name
        The name of a recipe of the package, or the path of a TOML file.
    changes
        What to do in another way than the paper.
    options
        Options of all benchmarks, such as ``store`` and ``on``; None leaves the recipe's own.

    Examples
    --------
    >>> read_recipe("arith_table1").parts[0].numbers[0].rows["arith"]
    (86.5, 79.4, 69.4, 48.1, 41.5, 65.0)
    """
    path, content = _read_toml(name)
    given = {key: value for key, value in options.items() if value is not None}
    shared, parts = content.pop("options", {}), content.pop("parts", [])
    changes = changes or Changes()
    given.setdefault("store", shared.get("store", f"recipes/{path.stem}"))
    try:
        benchmarks = [_benchmark({**shared, **part}) for part in parts]
        _check_names(benchmarks, changes)
        made = [
            _part(part, benchmark, changes, given)
            for part, benchmark in zip(parts, benchmarks, strict=True)
        ]
        made = [part for part in made if part is not None]
        if parts and not made:
            wanted = ", ".join((*changes.methods, *changes.datasets, *changes.rules))
            raise SpecError(f"no part of the recipe has all of these: {wanted}")
        words = {"name": path.stem, "parts": tuple(made), "changes": changes, **content}
        return build_validated(Recipe, words)
    except AfieldError as error:
        raise type(error)(f"{path.stem}: {error}") from None


def _read_toml(name: str | Path) -> tuple[Path, dict[str, Any]]:
    path = Path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{name}.toml"
        if str(name) not in recipe_names():
            advice = hint(str(name), recipe_names())
            raise UnknownNameError(f"no recipe is called {str(name)!r}; {advice}")
    return path, read_toml(path)


def _benchmark(words: Mapping[str, Any]) -> Benchmark:
    return make_benchmark(**{key: value for key, value in words.items() if key not in PART_KEYS})


def _check_names(benchmarks: Sequence[Benchmark], changes: Changes) -> None:
    """Refuse to keep or replace what no part of the recipe has."""
    rules = {rule for each in benchmarks for rule in each.rules or changes.rules}
    for kind, wanted, known in (
        ("method", changes.methods, {m for each in benchmarks for m in each.methods + each.merges}),
        ("dataset", (*changes.datasets, *changes.data), {d for b in benchmarks for d in b.dataset}),
        ("rule", changes.rules, rules),
    ):
        for name in wanted:
            if known and name not in known:
                names = ", ".join(sorted(known))
                raise SpecError(f"the recipe has no {kind} {name!r}; it has {names}")


def _part(
    words: Mapping[str, Any],
    benchmark: Benchmark,
    changes: Changes,
    options: Mapping[str, Any],
) -> Part | None:
    """A part with its changes; None if none of its methods is wanted."""
    own = {key: words[key] for key in PART_KEYS if key in words}
    numbers = tuple(build_validated(Numbers, each) for each in own.pop("numbers", []))
    first_rule = (benchmark.rules or ("sources",))[0]
    benchmark = change_benchmark(benchmark, changes)
    if not benchmark.dataset or not benchmark.methods + benchmark.merges:
        return None
    if changes.rules:
        numbers = tuple(each for each in numbers if (each.rule or first_rule) in benchmark.rules)
        if not benchmark.rules:
            return None
    known = {name: value for name, value in options.items() if name in OPTIONS}
    return build_validated(
        Part, {**own, "benchmark": replace(benchmark, **known), "numbers": numbers}
    )
