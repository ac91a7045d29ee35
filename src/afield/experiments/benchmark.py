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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from afield.errors import AfieldError, DataError, SpecError
from afield.experiments import option_texts as texts
from afield.experiments.domain_choice import DomainChoice, check_domain_options
from afield.experiments.option_texts import DEFAULT_MERGES, DEFAULT_METHODS, START
from afield.experiments.options import (
    Option,
    build_validated,
    check_classes_choice,
    check_start,
    flatten_settings,
    parse_options,
    refuse_misspelled,
)

# The command line reads the options from here: nothing imports torch before a benchmark is made.
if TYPE_CHECKING:
    from afield.experiments.pools import Pool
    from afield.experiments.record import Run

__all__ = ["DEFAULT_MERGES", "DEFAULT_METHODS", "DEFAULT_VALIDATE", "OPTIONS", "START"]
__all__ += ["Benchmark", "Option", "make_benchmark", "read_benchmark", "read_toml"]

# The share of the domains to validate on, if a share is held out.
DEFAULT_VALIDATE = 0.1
# Trials or draws; no store could hold more.
MAX_REPETITIONS = 10_000

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
    methods: Annotated[Names, Option(texts.METHODS_HELP)] = ()
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
    rules: Annotated[Names, Option(texts.RULES_HELP)] = ()
    targets: Annotated[Names, Option(texts.TARGETS_HELP)] = ()
    sources: Annotated[Names, Option(texts.SOURCES_HELP)] = ()
    validate_on: Annotated[Names, Option(texts.VALIDATE_ON_HELP)] = ()
    single_source: Annotated[bool, Option(texts.SINGLE_SOURCE_HELP)] = False
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
    base_steps: Annotated[int | None, Option(texts.BASE_STEPS_HELP, min=1)] = None
    expert_draws: Annotated[int | None, Option(texts.EXPERT_DRAWS_HELP, min=2)] = None
    start: Annotated[str, Option(texts.START_HELP, metavar="NAME")] = ""
    average: Annotated[str, Option(texts.AVERAGE_HELP, metavar="NAME")] = "last"
    classes: Annotated[str | None, Option(texts.CLASSES_HELP, metavar="sources|all")] = None
    adapt: Annotated[Names, Option(texts.ADAPT_HELP)] = ()
    label: Annotated[str, Option(texts.LABEL_HELP, metavar="COLUMN")] = ""
    domain: Annotated[str, Option(texts.DOMAIN_HELP, metavar="COLUMN")] = ""
    text: Annotated[str, Option(texts.TEXT_HELP, metavar="COLUMN")] = ""
    finetune: Annotated[bool | None, Option(texts.FINETUNE_HELP)] = None
    settings: Annotated[Mapping[str, Any], Option("Other settings of the runs.")] = field(
        default_factory=dict
    )
    on: Annotated[str, Option(texts.ON_HELP, metavar="PLACE")] = "local"
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
        float | None, Option("On Ray: CPUs per run. Default: as --threads.", min=0.0)
    ] = None
    gpus: Annotated[float, Option("On Ray: GPUs per run, e.g. 0.25.", min=0.0)] = 0.0
    retries: Annotated[
        int, Option("On Ray: how many times to restart a run whose machine is lost.", min=0)
    ] = 3
    store: Annotated[str, Option(texts.STORE_HELP, metavar="STORE")] = "runs"

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            option.check(name, getattr(self, name))
        check_domain_options(
            self.domain_choice,
            hold_out=self.hold_out,
            validate=self.validate,
            train_on=self.train_on,
            merges=self.merges,
        )
        expert_options = self.base_steps or self.expert_draws
        if not self.merges and (expert_options or set(self.expert_method) != {"erm"}):
            raise SpecError("--expert-method, --expert-draws and --base-steps need --merges")
        check_start(self.start)
        if self.start and self.merges and not self.methods:
            raise SpecError("--start is for --methods; the experts of --merges share a base anyway")
        check_classes_choice(self.classes)
        self.pool()

    @property
    def domain_choice(self) -> DomainChoice:
        """The domains that are chosen by name."""
        return DomainChoice(self.targets, self.sources, self.validate_on, self.single_source)

    def runs(self) -> "list[Run]":
        """All runs of the benchmark, after reading and checking the data."""
        from afield.experiments.planning import plan_runs

        return plan_runs(self)

    def pool(self) -> "Pool":
        """Where the runs are done: in processes of this machine, or on Ray."""
        from afield.experiments.pools import make_pool

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
    words |= {name: value for name, value in changes.items() if value is not None}
    try:
        return make_benchmark(**words)
    except AfieldError as error:
        raise type(error)(f"{path}: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    from afield.files import check_regular_file  # imports torch, which --help does not

    try:
        check_regular_file(path)
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not TOML ({error})") from None
