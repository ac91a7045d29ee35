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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from afield import registry
from afield.errors import AfieldError, DataError, SpecError, UnknownNameError
from afield.files import read_text
from afield.runs.selection import describe_rules
from afield.studies.protocol import DomainChoice, Protocol

if TYPE_CHECKING:
    from afield.runs.pool import Pool
    from afield.runs.run import Run


# The method from whose head other methods can start.
START = "linear_probe"
# The methods and merges of a benchmark that names neither.
DEFAULT_METHODS = ("erm", "arith", "seed_category", "dmg", "crossgrad")
DEFAULT_MERGES = ("score", "average")
METHODS_HELP = (
    "Methods to compare, separated by commas, or 'all'. "
    f"Default, without --merges: {', '.join(DEFAULT_METHODS)}, and the merges "
    f"{' and '.join(DEFAULT_MERGES)}, and classical methods that suit the data, such as logistic. "
    "See `afield list methods` and `afield list classical_methods`."
)
RULES_HELP = (
    "Rules that select a model, separated by commas, or 'all'; one table per rule. "
    f"{describe_rules()}. Default: the rules that need no additional runs."
)
LABEL_HELP = "Column of a table with the class of each sample. Default: the one called label or y."
DOMAIN_HELP = "Column of a table with the domain of each sample. Default: the one called domain."
COLUMN_TYPES_HELP = (
    "Types of columns of a table: age=number,thal=category. Default: a column holds numbers if "
    "nine of ten of its cells in the sources are numbers or dates, otherwise categories."
)
DROP_HELP = "Columns of a table to leave out, separated by commas."
TEXT_HELP = "Column of a table with texts to classify. Default: the one called text or sentence."
BASE_STEPS_HELP = (
    "Training steps of the base model, from which all experts start, if the network has no "
    "pretrained weights. Default: a fifth of the experts' steps."
)
AVERAGE_HELP = (
    f"Weight averaging during training: {', '.join(registry.names('averages'))}. 'last' uses the "
    "last weights, without averaging."
)
CLASSES_HELP = (
    "Classes that a network has outputs for: those of its sources, or all classes of the dataset. "
    "Samples of other classes are left out of the accuracy and reported apart. Default: sources "
    "for your own data, all for the datasets of `afield list datasets`."
)
START_HELP = (
    f"Where training starts: {START} (a head fitted on frozen features). Default: the "
    "network's initial weights, with a new head."
)
ADAPT_HELP = (
    "Test-time adaptations, separated by commas, or 'all'. Each adds a row per method or merge, "
    f"which sees unlabelled samples of the target: {', '.join(registry.names('adaptations'))}."
)
ENSEMBLE_HELP = (
    "Also train every method this many times, with other seeds on the same splits, and add a row "
    "for the mean of their predictions."
)
FINETUNE_HELP = (
    "Whether to train the whole network (as --tune full), or only a small one on the features that "
    "the frozen network computes once (as --tune frozen). Default: a network given by --backbone "
    "is trained; for a folder of photographs without --backbone, the pretrained network whose "
    "weights are at hand is frozen."
)
EXPERT_DRAWS_HELP = (
    "Merge this many hyperparameter samples of one method, trained on all sources (model soups), "
    "instead of one expert per source."
)
ON_HELP = (
    "Where to run: local (processes on this machine), slurm (an array job; the command returns "
    "with its number), ray (a Ray cluster that runs here, or else a new one on this machine), or "
    "ray://HOST:PORT (another cluster). Options follow a colon: local:workers=2, "
    "slurm:partition=gpu,time=8:00:00,gpus=1,array=50, ray:address=HOST:PORT,cpus=2,gpus=0.25."
)
STORE_HELP = (
    "Folder for records and weights, or an address such as s3://bucket/runs. Runs that it already "
    "holds are not repeated."
)
TARGETS_HELP = (
    "Domains to test on, each left out in turn: sketch,photo. With a plus sign they are left out "
    "together: sketch+photo. Default: every domain."
)
SOURCES_HELP = "Domains to train one model on, for all targets. Default: all other domains."
VALIDATE_ON_HELP = (
    "Domains to select a model with (rule 'validation'); they are neither trained nor tested on."
)
SINGLE_SOURCE_HELP = (
    "Train on each domain alone in turn and test on all others. The table has one column per "
    "source, with the mean over the others."
)


T = TypeVar("T")
# Tables within tables in which a setting may stand: settings.average.swad.tolerance has three.
MAX_DEPTH = 3


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


def check_classes_choice(choice: str | None) -> None:
    """Refuse a value of the option ``classes`` that is neither ``sources`` nor ``all``."""
    if choice not in (None, "sources", "all"):
        raise SpecError(f"classes={choice}: give 'sources' or 'all'")


def check_start(name: str) -> None:
    """Refuse a start of training other than the one there is."""
    if name not in ("", START):
        raise SpecError(f"--start {name}: training can start from {START} only")


def parse_options(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values as the fields have them; None stands for an option that is not given."""
    return {
        name: _parse(name, value, defaults[name])
        for name, value in values.items()
        if value is not None
    }


def _parse(name: str, value: Any, default: Any) -> Any:
    """An option's value as its field has it: a tuple where several values are possible."""
    if isinstance(value, bool) and not isinstance(default, bool) and name != "finetune":
        raise SpecError(f"{name}={str(value).lower()}: give a number or a name")
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(default, tuple):
        return value
    if isinstance(value, str) and name != "dataset":
        value = _split(name, value)
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(str(each) if isinstance(each, Path) else each for each in values)


def _split(name: str, text: str) -> tuple[str, ...]:
    """Names separated by commas, at least one."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise SpecError(f"{name}={text!r}: give names separated by commas, or leave it out")
    return names


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their full names: in TOML, ``vrex.penalty`` is a table in a table.

    >>> flatten_settings({"lr": 0.1, "vrex": {"penalty": 10}})
    {'lr': 0.1, 'vrex.penalty': 10}
    """
    return dict(_flatten(settings))


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if prefix.count(".") > MAX_DEPTH:
        raise SpecError(f"{prefix}…: nested too deeply; a setting is NAME or METHOD.NAME")
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def refuse_misspelled(settings: Iterable[str], options: Iterable[str]) -> None:
    """Refuse a misspelled option, which would be taken for a setting."""
    from afield.data.training_settings import Training

    known = [each.name for each in fields(Training)]
    for name in settings:
        guess = get_close_matches(name, [*known, *options], n=1) if "." not in name else []
        if guess and guess[0] not in known:
            raise UnknownNameError(f"no option {name!r}; did you mean {guess[0]!r}?")


def build_validated(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass whose values have the types of its fields."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(values, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        # Our own errors, raised by __post_init__, name the option themselves.
        where = ".".join(str(step) for step in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise SpecError(": ".join(filter(None, [where, message]))) from None


# The command line reads the options from here: nothing imports torch before a benchmark is made.


# Trials or draws; no store could hold more.
MAX_REPETITIONS = 10_000
# Members of an ensemble; a model of more would be too slow to use.
MAX_MEMBERS = 100

Names = tuple[str, ...]


@dataclass(frozen=True)
class Benchmark:
    """Which methods to compare on which data, and where to do it."""

    dataset: Annotated[
        Names,
        Option(
            "Name of a dataset (see `afield data list`), a folder DATASET/<domain>/<class>/ of "
            "files, an .npz file, or a table (.csv, .parquet, .jsonl)."
        ),
    ] = ("rotated_digits",)
    methods: Annotated[Names, Option(METHODS_HELP)] = ()
    trials: Annotated[
        int,
        Option("Number of repetitions, with other splits and seeds.", min=1, max=MAX_REPETITIONS),
    ] = 3
    draws: Annotated[
        int,
        Option(
            "Number of hyperparameter samples (draws); the first one uses the defaults.",
            min=1,
            max=MAX_REPETITIONS,
        ),
    ] = 1
    rules: Annotated[Names, Option(RULES_HELP)] = ()
    targets: Annotated[Names, Option(TARGETS_HELP)] = ()
    sources: Annotated[Names, Option(SOURCES_HELP)] = ()
    validate_on: Annotated[Names, Option(VALIDATE_ON_HELP)] = ()
    single_source: Annotated[bool, Option(SINGLE_SOURCE_HELP)] = False
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
    base_steps: Annotated[int | None, Option(BASE_STEPS_HELP, min=1)] = None
    expert_draws: Annotated[int | None, Option(EXPERT_DRAWS_HELP, min=2)] = None
    start: Annotated[str, Option(START_HELP, metavar="NAME")] = ""
    average: Annotated[str, Option(AVERAGE_HELP, metavar="NAME")] = "last"
    ensemble: Annotated[int | None, Option(ENSEMBLE_HELP, metavar="N", min=2, max=MAX_MEMBERS)] = (
        None
    )
    classes: Annotated[str | None, Option(CLASSES_HELP, metavar="sources|all")] = None
    adapt: Annotated[Names, Option(ADAPT_HELP)] = ()
    label: Annotated[str, Option(LABEL_HELP, metavar="COLUMN")] = ""
    domain: Annotated[str, Option(DOMAIN_HELP, metavar="COLUMN")] = ""
    text: Annotated[str, Option(TEXT_HELP, metavar="COLUMN")] = ""
    column_types: Annotated[str, Option(COLUMN_TYPES_HELP, metavar="NAME=TYPE,…")] = ""
    drop: Annotated[str, Option(DROP_HELP, metavar="COLUMNS")] = ""
    finetune: Annotated[bool | None, Option(FINETUNE_HELP)] = None
    settings: Annotated[Mapping[str, Any], Option("Other settings of the runs.")] = field(
        default_factory=dict
    )
    on: Annotated[str, Option(ON_HELP, metavar="PLACE")] = "local"
    workers: Annotated[
        int | None,
        Option(
            "Number of runs at a time, in parallel processes. Default: one per core, or per GPU.",
            min=1,
        ),
    ] = None
    device: Annotated[
        str,
        Option(
            "Device to compute on: cpu, cuda or cuda:1. Default: the fastest.", metavar="DEVICE"
        ),
    ] = ""
    threads: Annotated[int, Option("CPU threads per run.", min=1)] = 1
    cpus: Annotated[
        float | None,
        Option(
            "On Ray: CPUs per run, the same as --on ray:cpus=N. Default: as --threads.", min=0.0
        ),
    ] = None
    gpus: Annotated[
        float, Option("On Ray: GPUs per run, e.g. 0.25, the same as --on ray:gpus=N.", min=0.0)
    ] = 0.0
    retries: Annotated[
        int,
        Option(
            "On Ray: how many times to restart a run whose machine is lost, the same as --on "
            "ray:retries=N.",
            min=0,
        ),
    ] = 3
    store: Annotated[str, Option(STORE_HELP, metavar="STORE")] = "runs"

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            option.check(name, getattr(self, name))
        if self.merges and self.hold_out:
            raise SpecError("--merges leaves each domain out once; remove --hold-out")
        if self.merges and self.single_source:
            raise SpecError("--merges needs several sources; remove --single-source")
        _ = self.protocol
        expert_options = self.base_steps or self.expert_draws
        if not self.merges and (expert_options or set(self.expert_method) != {"erm"}):
            raise SpecError("--expert-method, --expert-draws and --base-steps need --merges")
        check_start(self.start)
        if self.ensemble and self.merges and not self.methods:
            raise SpecError("--ensemble is for --methods; a merge is one network of several anyway")
        if self.start and self.merges and not self.methods:
            raise SpecError("--start is for --methods; the experts of --merges share a base anyway")
        check_classes_choice(self.classes)
        self._check_ranges()
        self.pool()

    def _check_ranges(self) -> None:
        """Refuse a range if nothing is drawn from it."""
        from afield.hyperparameters import parse_range

        for name, value in self.settings.items():
            if parse_range(value) and self.draws == 1:
                raise SpecError(f"{name}={value}: a range needs --draws 2 or more")

    @property
    def protocol(self) -> Protocol:
        """How the domains are divided, how often, and by which rules models are selected."""
        return Protocol(
            DomainChoice(self.targets, self.sources, self.validate_on, self.single_source),
            self.hold_out,
            self.validate,
            self.train_on,
            trials=self.trials,
            draws=self.draws,
            rules=self.rules,
        )

    def runs(self) -> "list[Run]":
        """All runs of the benchmark, after reading and checking the data."""
        from afield.studies.planning import plan_runs

        return plan_runs(self)

    def pool(self) -> "Pool":
        """Where the runs are done: in processes of this machine, or on Ray."""
        from afield.runs.pool import make_pool

        return make_pool(
            self.on,
            threads=self.threads,
            workers=self.workers,
            cpus=self.cpus,
            gpus=self.gpus,
            retries=self.retries,
            device=self.device or None,
        )


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
    options = parse_options(given, _DEFAULTS)
    options["settings"] = flatten_settings({**settings, **words})
    refuse_misspelled(options["settings"], OPTIONS)
    return build_validated(Benchmark, options)


def read_benchmark(path: Path, **changes: Any) -> Benchmark:
    """The benchmark of a TOML file; every value in `changes` that is not None replaces the file's.

    Names may be written with hyphens, as on the command line.
    """
    content = read_toml(path)
    words = {name.replace("-", "_"): value for name, value in content.items()}
    # As names of their own, settings replace those of the file in whichever form it has them.
    changes |= changes.pop("settings", {})
    words |= {name: value for name, value in changes.items() if value is not None}
    try:
        return make_benchmark(**words)
    except AfieldError as error:
        raise type(error)(f"{path}: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not TOML ({error})") from None
