"""A benchmark as one value: what `afield bench`, a TOML file or `afield.bench` can ask for.

The fields of `Benchmark` are the only list of these options. The command line, TOML files and
Python use the same names, defaults and limits, and the help texts are taken from here.

In Python and in TOML, every other name is a setting of the runs, as after ``--set``:

    dataset = ["pacs", "vlcs"]
    methods = ["erm", "arith"]
    trials = 3
    on = "ray"
    lr = 5e-5
    vrex.penalty = 10
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from afield import registry
from afield.errors import AfieldError, DataError, SpecError, UnknownNameError
from afield.experiments.selection import describe_rules
from afield.registry import hint

# The command line reads the options from here: nothing imports torch before a benchmark is made.
if TYPE_CHECKING:
    from afield.experiments.pools import Pool
    from afield.experiments.record import Run

__all__ = ["DEFAULT_METHODS", "DEFAULT_VALIDATE", "OPTIONS", "Benchmark", "Option"]
__all__ += ["make_benchmark", "read_benchmark"]

# The methods of a benchmark that names none.
DEFAULT_METHODS = ("erm", "groupdro", "arith")
_METHODS_HELP = (
    "Methods to compare, separated by commas, or 'all'. "
    f"Default: {', '.join(DEFAULT_METHODS)}. See `afield list methods`."
)
_RULES_HELP = (
    "Rules that select a model, separated by commas, or 'all'; one table per rule. "
    f"{describe_rules()}. Default: the rules that need no additional runs."
)
_BASE_STEPS_HELP = (
    "Training steps of the base model, from which all experts start, if the network has no "
    "pretrained weights. Default: a fifth of the experts' steps."
)
_AVERAGE_HELP = (
    f"Weight averaging during training: {', '.join(registry.names('averages'))}. 'last' uses the "
    "last weights, without averaging."
)
_ON_HELP = (
    "Where to run: local (processes on this machine), ray (a Ray cluster that runs here, or else "
    "a new one on this machine), or ray://HOST:PORT (another cluster)."
)
_STORE_HELP = (
    "Folder for records and weights, or an address such as s3://bucket/runs. Runs that it already "
    "holds are not repeated."
)
# The share of the domains to validate on, if a share is held out.
DEFAULT_VALIDATE = 0.1

Names = tuple[str, ...]


@dataclass(frozen=True)
class Option:
    """The help text of an option, its placeholder in the help, and its limits."""

    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None

    def check(self, name: str, value: Any) -> None:
        """Refuse a number outside the limits."""
        if not isinstance(value, int | float):
            return
        if self.min is not None and value < self.min:
            raise SpecError(f"{name}={value:g}: must be {self.min:g} or more")
        if self.max is not None and value > self.max:
            raise SpecError(f"{name}={value:g}: must be {self.max:g} or less")


@dataclass(frozen=True)
class Benchmark:
    """Which methods to compare on which data, and where to do it."""

    dataset: Annotated[
        Names,
        Option(
            "Name of a dataset (see `afield data list`), a folder DATASET/<domain>/<class>/ of "
            "files, or an .npz file."
        ),
    ] = ("rotated_digits",)
    methods: Annotated[Names, Option(_METHODS_HELP)] = ()
    trials: Annotated[int, Option("Number of repetitions, with other splits and seeds.", min=1)] = 3
    draws: Annotated[
        int,
        Option("Number of hyperparameter samples (draws); the first one uses the defaults.", min=1),
    ] = 1
    rules: Annotated[Names, Option(_RULES_HELP)] = ()
    hold_out: Annotated[
        float,
        Option(
            "Test on this share of the domains at once, e.g. 0.25. 0 leaves out each domain in "
            "turn.",
            min=0.0,
            max=0.9,
        ),
    ] = 0.0
    validate: Annotated[
        float | None,
        Option(
            "With --hold-out: validate on this share of the domains. Default: 0.1.",
            min=0.0,
            max=0.9,
        ),
    ] = None
    train_on: Annotated[
        tuple[int | str, ...],
        Option(
            "With --hold-out: number of domains to train on, or 'all'. Several, e.g. 5,10,all, "
            "give one row each. Default: all.",
            metavar="N,…",
        ),
    ] = ()
    merges: Annotated[
        Names,
        Option(
            "Merges to compare, separated by commas, or 'all': each merges experts that were "
            "fine-tuned on one source. See `afield list merges`."
        ),
    ] = ()
    expert_method: Annotated[
        Names,
        Option(
            "Method that trains the experts. Several methods train one expert each, on all sources."
        ),
    ] = ("erm",)
    base_steps: Annotated[int | None, Option(_BASE_STEPS_HELP, min=1)] = None
    average: Annotated[str, Option(_AVERAGE_HELP, metavar="NAME")] = "last"
    settings: Annotated[Mapping[str, Any], Option("Other settings of the runs.")] = field(
        default_factory=dict
    )
    on: Annotated[str, Option(_ON_HELP, metavar="PLACE")] = "local"
    workers: Annotated[
        int | None,
        Option("Number of runs at a time, in parallel processes. Default: one per core.", min=1),
    ] = None
    threads: Annotated[int, Option("CPU threads per run.", min=1)] = 1
    cpus: Annotated[
        float | None, Option("On Ray: CPUs per run. Default: as --threads.", min=0.0)
    ] = None
    gpus: Annotated[float, Option("On Ray: GPUs per run, e.g. 0.25.", min=0.0)] = 0.0
    retries: Annotated[
        int, Option("On Ray: how many times to restart a run whose machine is lost.", min=0)
    ] = 3
    store: Annotated[str, Option(_STORE_HELP, metavar="STORE")] = "runs"

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            option.check(name, getattr(self, name))
        if self.validate is not None and not self.hold_out:
            raise SpecError("--validate needs --hold-out: it is a share of the domains held out")
        if self.train_on and not self.hold_out:
            raise SpecError("--train-on needs --hold-out: otherwise all other domains are sources")
        if self.merges and self.hold_out:
            raise SpecError("--merges leaves each domain out once; remove --hold-out")
        if not self.merges and (self.base_steps or set(self.expert_method) != {"erm"}):
            raise SpecError("--expert-method and --base-steps need --merges")
        self.pool()

    def runs(self) -> "list[Run]":
        """All runs of the benchmark, after reading and checking the data."""
        from afield.experiments.planning import plan_runs

        return plan_runs(self)

    def pool(self) -> "Pool":
        """Where the runs are done: in processes of this machine, or on Ray."""
        from afield.experiments.pools import Local, Ray, default_workers

        kind, _, address = self.on.partition("://")
        if kind == "local" and not address:
            if self.gpus or self.cpus is not None:
                raise SpecError("--cpus and --gpus need --on ray; use --workers and --threads")
            return Local(self.workers or default_workers(self.threads))
        if kind != "ray":
            known = ["local", "ray", "ray://HOST:PORT"]
            raise UnknownNameError(f"cannot run on {self.on!r}; {hint(self.on, known)}")
        if self.workers is not None:
            raise SpecError("--workers is for processes of this machine; on Ray use --cpus")
        cpus = self.threads if self.cpus is None else self.cpus
        return Ray(self.on if address else "", cpus=cpus, gpus=self.gpus, retries=self.retries)


# Every option by its name, in the order of the help.
OPTIONS: dict[str, Option] = {each.name: get_args(each.type)[1] for each in fields(Benchmark)}
_DEFAULTS = {each.name: each.default for each in fields(Benchmark)}


def make_benchmark(
    dataset: str | Path | Sequence[str | Path] = "rotated_digits",
    methods: str | Sequence[str] = (),
    **words: Any,
) -> Benchmark:
    """The benchmark that options and settings ask for.

    Parameters
    ----------
    dataset, methods
        Names or paths of datasets, and names of methods.
    words
        Other fields of `Benchmark`, by name. An option that takes several names also takes one
        text with commas, as on the command line. Every other name is a setting of the runs, such
        as ``steps``; the settings of a method go into ``settings={"vrex.penalty": 10}``.

    Examples
    --------
    >>> make_benchmark("spirals", "erm,vrex", steps=10).settings
    {'steps': 10}
    """
    words |= {"dataset": dataset, "methods": methods}
    settings = words.pop("settings", None) or {}
    given = {name: words.pop(name) for name in OPTIONS if name in words}
    options = {name: _parse(name, value) for name, value in given.items() if value is not None}
    options["settings"] = dict(_flatten({**settings, **words}))
    _check_names(options["settings"])
    return _validate(options)


def read_benchmark(path: Path, **changes: Any) -> Benchmark:
    """The benchmark of a TOML file; every value in `changes` that is not None replaces the file's.

    Names may be written with hyphens, as on the command line.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not TOML ({error})") from None
    words = {name.replace("-", "_"): value for name, value in content.items()}
    words |= {name: value for name, value in changes.items() if value is not None}
    try:
        return make_benchmark(**words)
    except AfieldError as error:
        raise type(error)(f"{path}: {error}") from None


def _parse(name: str, value: Any) -> Any:
    """An option's value as its field has it: a tuple where several values are possible."""
    if isinstance(value, bool):
        raise SpecError(f"{name}={str(value).lower()}: give a number or a name")
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(_DEFAULTS[name], tuple):
        return value
    if isinstance(value, str) and name != "dataset":
        value = _split(name, value)
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if isinstance(each, Path) else each for each in values)


def _split(name: str, text: str) -> Any:
    """Names separated by commas; an empty text means the default."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if text.strip() and not names:
        raise SpecError(f"{name}={text}: give names separated by commas")
    return names or _DEFAULTS[name]


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names: in TOML, ``vrex.penalty`` is a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_names(settings: Mapping[str, Any]) -> None:
    """Refuse a misspelled option, which would be taken for a setting."""
    from afield.data.domains import Training

    known = [each.name for each in fields(Training)]
    for name in settings:
        guess = get_close_matches(name, [*known, *OPTIONS], n=1) if "." not in name else []
        if guess and guess[0] not in known:
            raise UnknownNameError(f"no option {name!r}; did you mean {guess[0]!r}?")


def _validate(options: Mapping[str, Any]) -> Benchmark:
    """A benchmark whose values have the types of its fields."""
    from pydantic import TypeAdapter, ValidationError

    try:
        benchmark: Benchmark = TypeAdapter(Benchmark).validate_python(options, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        # Our own errors, raised by __post_init__, name the option themselves.
        where = ".".join(str(step) for step in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise SpecError(": ".join(filter(None, [where, message]))) from None
    return benchmark
