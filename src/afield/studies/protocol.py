"""How a question is asked: which domains are trained and tested on, how often, and by which rules.

    leave one out     each domain is the target once (the default)
    named domains     the targets, sources and validation domains are given by name
    single source     each domain is the only source once, and all others are targets
    hold out          a share of many domains is held out at once, other domains in every trial
    one training      some domains are left out of a single training, or none

A `Protocol` is a value: `bench`, `fit` and `train` plan their runs from one. What it does not need
is torch, so that the command line can read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint
from afield.runs.run import TARGETS
from afield.runs.selection import DEFAULT_RULES, RULES, Division, default_rules, resolve_rules
from afield.seeds import derive_seed

if TYPE_CHECKING:
    from afield.data.domains import DomainSet
    from afield.runs.record import Record

Names = tuple[str, ...]
# The share of the domains to validate on, if a share is held out.
DEFAULT_VALIDATE = 0.1


@dataclass(frozen=True)
class Fold:
    """One division of the domains: those to train on, those to test on, the rules that read it.

    Without `tested` domains, all that are not sources are tested on. `unused` domains are neither
    trained on nor evaluated; `given` labels the row in a table. `classes` are those of the sources,
    if the dataset has more.
    """

    sources: Names
    rules: Names = ()
    tested: Names = ()
    unused: Names = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    classes: Names = ()


@dataclass(frozen=True)
class DomainChoice:
    """Names of the domains to test, validate and train on; empty means all that are possible."""

    targets: Names = ()
    sources: Names = ()
    validate_on: Names = ()
    single_source: bool = False

    def __post_init__(self) -> None:
        if self.single_source and (self.targets or self.sources):
            other = "--targets" if self.targets else "--sources"
            raise SpecError(
                "--single-source trains on each domain in turn and tests on all others; remove "
                + other
            )

    def __bool__(self) -> bool:
        return bool(self.targets or self.sources or self.validate_on or self.single_source)

    def folds(self, dataset: "DomainSet") -> list[Fold]:
        """The divisions of a dataset's domains, checked."""
        validating = _known(dataset, self.validate_on)
        others = dataset.without(*validating)
        if not others:
            raise SpecError(f"{dataset.name}: no domain is left beside those to validate on")
        groups = list(dict.fromkeys(_group(dataset, text) for text in self.targets))
        named = {name for group in groups for name in group}
        sources = _known(dataset, self.sources)
        _check_disjoint(dataset, target=named, source=set(sources), validation=set(validating))
        if self.single_source:
            folds = [_fold(dataset, (n,), _except(others, n), validating) for n in others]
        elif sources:
            tested = _except(others, *sources)
            if named:
                tested = tuple(name for name in tested if name in named)
            folds = [_fold(dataset, sources, tested, validating)]
        else:
            groups = groups or [(name,) for name in others]
            folds = [_fold(dataset, _except(others, *group), group, validating) for group in groups]
        given = {TARGETS: [list(fold.tested) for fold in folds]} if self else {}
        return [replace(_leave_one_out(fold, dataset), given=given) for fold in folds]

    def division(self, dataset: "DomainSet") -> Division:
        """The greatest numbers of domains that a fold tests and validates on."""
        tested = max(len(fold.tested) for fold in self.folds(dataset))
        return Division(tested, len(set(self.validate_on)))


# Every domain is left out once.
ALL_DOMAINS = DomainChoice()


def _fold(dataset: "DomainSet", sources: Names, tested: Names, validating: Names = ()) -> Fold:
    for domains, purpose in ((sources, "train on"), (tested, "test on")):
        if not domains:
            raise SpecError(f"{dataset.name}: no domain is left to {purpose}; name fewer domains")
    unused = dataset.without(*sources, *tested, *validating)
    return Fold(sources, tested=tested, unused=unused)


def _leave_one_out(fold: Fold, dataset: "DomainSet") -> Fold:
    """The fold; one that leaves out a single domain is the run that others ask for as well."""
    if len(fold.tested) == 1 and len(fold.sources) == len(dataset.domains) - 1:
        return Fold(fold.sources)
    return fold


def _group(dataset: "DomainSet", text: str) -> Names:
    """The domains of a target: one, or several that are joined by plus signs."""
    names = [text] if text in dataset.domains else [name.strip() for name in text.split("+")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(f"--targets {text}: names {twice} twice; write each domain once")
    return _known(dataset, names)


def _known(dataset: "DomainSet", names: Sequence[str]) -> Names:
    """The named domains in the order of the dataset; an unknown one is an error with a guess."""
    for name in names:
        if name not in dataset.domains:
            advice = hint(name, dataset.domains)
            raise UnknownNameError(f"{dataset.name} has no domain {name!r}; {advice}")
    return tuple(name for name in dataset.domains if name in names)


def _except(names: Names, *excluded: str) -> Names:
    return tuple(name for name in names if name not in excluded)


def _check_disjoint(dataset: "DomainSet", **roles: set[str]) -> None:
    """Refuse a domain that has two roles."""
    for name in dataset.domains:
        taken = [role for role, names in roles.items() if name in names]
        if len(taken) > 1:
            raise SpecError(
                f"{dataset.name}: {name!r} is both a {taken[0]} and a {taken[1]} domain; a domain "
                "has one role in a run"
            )


@dataclass(frozen=True)
class Protocol:
    """The division of the domains, the numbers of trials and draws, and the selection rules.

    Attributes
    ----------
    choice
        The domains to test, validate and train on, by their names.
    hold_out, validate, train_on
        If `hold_out` is above 0: the shares of the domains to test on and to validate on, and
        numbers of the remaining domains to train on, or ``"all"``. Each number is a benchmark of
        its own with the same held-out domains; a larger number includes the domains of a smaller
        one. Empty means all remaining domains.
    left_out
        If not None: there is one training, on all domains but these.
    trials, draws
        Numbers of repetitions, each with other splits and another seed, and of hyperparameter
        samples; the first sample is the defaults.
    rules
        Names of the selection rules that will read the records; empty means the default rules for
        this division of the domains.
    first_trial, first_draw
        The numbers from which trials and draws are counted.
    """

    choice: DomainChoice = ALL_DOMAINS
    hold_out: float = 0.0
    validate: float | None = None
    train_on: tuple[int | str, ...] = ()
    left_out: Names | None = None
    trials: int = 3
    draws: int = 1
    rules: Names = ()
    first_trial: int = 0
    first_draw: int = 0

    def __post_init__(self) -> None:
        if self.validate is not None and not self.hold_out:
            raise SpecError("--validate needs --hold-out: it is a share of the domains held out")
        if self.train_on and not self.hold_out:
            raise SpecError("--train-on needs --hold-out: otherwise all other domains are sources")
        if self.choice and self.hold_out:
            raise SpecError("--hold-out draws the domains to test on; remove it to name domains")
        for name in ("trials", "draws"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)}: at least one is needed")

    @property
    def trial_numbers(self) -> range:
        """The numbers of the trials."""
        return range(self.first_trial, self.first_trial + self.trials)

    @property
    def draw_numbers(self) -> range:
        """The numbers of the hyperparameter samples."""
        return range(self.first_draw, self.first_draw + self.draws)

    def division(self, dataset: "DomainSet", *, whole: bool = False) -> Division:
        """The numbers of domains to test and validate on; `whole` if whole domains are tested."""
        if not self.hold_out:
            return replace(self.choice.division(dataset), whole=whole)
        count, validate = len(dataset.domains), self._validated_share
        tested, validated = (
            round(s * count) if 0 <= s < 1 else 0 for s in (self.hold_out, validate)
        )
        if not tested or not 0 <= validate < 1 or tested + validated >= count:
            raise SpecError(
                f"{dataset.name}: of {count} domains, --hold-out {self.hold_out:g} and --validate "
                f"{validate:g} leave none to test on or none to train on; choose other shares"
            )
        return Division(tested, validated, whole=whole)

    def resolved(self, dataset: "DomainSet", *, whole: bool = False) -> "Protocol":
        """The protocol with the names of its rules, which are checked."""
        if self.left_out is not None:
            return replace(self, rules=self.rules or DEFAULT_RULES)
        division = self.division(dataset, whole=whole)
        return replace(self, rules=resolve_rules(self.rules or default_rules(division), division))

    def folds(self, dataset: "DomainSet", trial: int = 0) -> list[Fold]:
        """The divisions of the domains in one trial, without the twins that some rules need."""
        if self.left_out is not None:
            given = {TARGETS: [list(self.left_out)]} if len(self.left_out) == 1 else {}
            folds = [Fold(dataset.without(*self.left_out), given=given)]
        elif self.hold_out:
            folds = self._held_out_folds(dataset, trial)
        else:
            folds = self.choice.folds(dataset)
        return [replace(fold, rules=self.rules) for fold in folds]

    def _held_out_folds(self, dataset: "DomainSet", trial: int) -> list[Fold]:
        """The folds that hold out a share of the domains."""
        import numpy as np

        division = self.division(dataset)
        names, count = sorted(dataset.domains), len(dataset.domains)
        order = np.random.default_rng(derive_seed("hold-out", trial)).permutation(count)
        shuffled = [names[i] for i in order]
        unseen_count = division.tested + division.validated
        unseen, others = shuffled[:unseen_count], shuffled[unseen_count:]
        tested = dataset.without(*shuffled[division.tested :])
        fold = Fold(dataset.without(*unseen), tested=tested)
        sizes = dict.fromkeys(_source_count(size, len(others), dataset) for size in self.train_on)
        return [_with_sources(fold, others, size) for size in sizes or [len(others)]]

    @property
    def _validated_share(self) -> float:
        return DEFAULT_VALIDATE if self.validate is None else self.validate

    @classmethod
    def of(cls, records: "Sequence[Record]") -> "Protocol":
        """The protocol that gave the records of one row."""
        runs = [record.run for record in records]
        asked = _shares(records[0]) if is_held_out_share(records[0]) else _choice(records)
        rules = {rule for run in runs for rule in run.rules}
        first = records[0]
        validating = len(first.unseen) - len(first.run.tested) if first.run.tested else 0
        tested = max(len(run.tested) for run in runs)
        usual = default_rules(Division(tested, validating, whole=bool(first.run.report)))
        named = () if first.run.experts or rules == set(usual) else rules
        return replace(
            asked,
            trials=1 + max(run.trial for run in runs),
            draws=1 + max(run.draw for run in runs),
            rules=tuple(rule for rule in RULES if rule in named),
        )

    def options(self) -> list[tuple[str, Any]]:
        """The options of a command that ask for this division of the domains and these rules."""
        shares: list[tuple[str, float]] = []
        if self.hold_out:
            shares = [("hold_out", self.hold_out), ("validate", self._validated_share)]
        return [
            *((name, f"{share:.8g}") for name, share in shares),
            ("train_on", self.train_on),
            ("single_source", self.choice.single_source or None),
            ("targets", self.choice.targets),
            ("sources", self.choice.sources),
            ("validate_on", self.choice.validate_on),
            ("rules", self.rules),
        ]


def _source_count(number: int | str, available: int, dataset: "DomainSet") -> int:
    """The number of domains to train on, out of those available; ``"all"`` means all of them."""
    if number != "all" and not str(number).removeprefix("-").isdecimal():
        raise SpecError(f"--train-on {number}: write numbers of domains, such as 5,10,all")
    count = available if number == "all" else int(number)
    if not 1 <= count <= available:
        raise SpecError(
            f"{dataset.name}: cannot train on {number} domains; {available} remain beside those "
            "that are held out"
        )
    return count


def _with_sources(fold: Fold, others: Sequence[str], count: int) -> Fold:
    """The fold with only the first `count` of the domains that are not held out as sources."""
    sources = tuple(name for name in fold.sources if name in others[:count])
    unused = tuple(name for name in fold.sources if name in others[count:])
    return replace(fold, sources=sources, unused=unused, given={"domains": count})


def _shares(record: "Record") -> Protocol:
    """The shares of held-out domains, with as few digits as give the same numbers of domains."""
    run = record.run
    total = len(run.sources) + len(run.unused) + len(record.unseen)
    counts = len(run.tested), len(record.unseen) - len(run.tested)
    hold_out, validate = (_share(count, total) for count in counts)
    train_on = (len(run.sources),) if run.unused else ()
    return Protocol(hold_out=hold_out, validate=validate, train_on=train_on)


def _share(count: int, total: int) -> float:
    shares = (float(f"{count / total:.{digits}g}") for digits in range(1, 9))
    return next(share for share in shares if round(share * total) == count)


def _choice(records: "Sequence[Record]") -> Protocol:
    """The names of the domains to test, validate and train on, unless each is left out once."""
    first = records[0]
    validating = [name for name in first.unseen if first.run.tested and name not in first.tests]
    targets = {"+".join(record.tests): None for record in records if record.is_tested}
    sources = {record.run.sources for record in records}
    choice = DomainChoice(validate_on=tuple(validating))
    if is_single_source(first) and len(sources) > 1:
        choice = replace(choice, single_source=True)
    elif TARGETS in first.run.given and len(targets) < len(first.domains) - len(validating):
        named = first.run.sources if first.run.unused else ()
        choice = replace(choice, targets=tuple(targets), sources=named)
    return Protocol(choice)


# Titles name at most this many domains, and count more of them.
MAX_NAMED = 6


def is_held_out_share(record: "Record") -> bool:
    """Whether a share of many domains is held out, other domains in every trial."""
    return bool(record.run.tested) and TARGETS not in record.run.given


def is_single_source(record: "Record") -> bool:
    """Whether a run trains on one domain and tests on all others, except validation domains."""
    run = record.run
    named = TARGETS in run.given and not run.unused
    return named and len(run.sources) == 1 and len(run.tested) > 1


def named_targets(records: "Sequence[Record]") -> set[str]:
    """The targets of these records; empty unless all were chosen by name."""
    choices = [record.run.given.get(TARGETS) for record in records]
    if None in choices:
        return set()
    return {name for groups in choices for group in groups or () for name in group}


def choice_identity(record: "Record") -> str:
    """What records share that belong into one table; empty for runs that leave one domain out."""
    if is_single_source(record):
        return f"one source{_validating(record, most=None)}"
    return _describe(record, most=None)


def describe_choice(records: "Sequence[Record]") -> str:
    """What the title of a table says about the choice of domains and of their splits."""
    runs = [record.run for record in records]
    words = _describe_domains(records)
    words += ", on whole domains" if all(run.report for run in runs) else ""
    return words + (", split at random" if all(run.split for run in runs) else "")


def _describe_domains(records: "Sequence[Record]") -> str:
    first = records[0]
    if is_single_source(first) and len({record.run.sources for record in records}) > 1:
        return f", by the only source, mean over the others{_validating(first, most=MAX_NAMED)}"
    if first.run.tested:
        return _describe(first, most=MAX_NAMED)
    named = named_targets(records)
    targets = [name for name in first.domains if name in named]
    if not targets or len(targets) == len(first.domains):
        return ""
    return f", tested on {_listed(targets, MAX_NAMED)}" + " in turn" * (len(targets) > 1)


def _describe(record: "Record", *, most: int | None) -> str:
    run = record.run
    if not run.tested:
        return ""
    if is_held_out_share(record):
        validating = len(record.unseen) - len(run.tested)
        text = f", {len(run.tested)} domain{'s' * (len(run.tested) > 1)} held out"
        return text + f", {validating} validating" * bool(validating)
    words = f", trained on {_listed(run.sources, most)}" if run.unused else ""
    words += f", tested on {_listed(run.tested, most)}" if len(run.tested) > 1 else ""
    return words + _validating(record, most)


def _validating(record: "Record", most: int | None) -> str:
    names = [name for name in record.unseen if name not in record.run.tested]
    return f", validated on {_listed(names, most)}" if names else ""


def _listed(names: Sequence[str], most: int | None) -> str:
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
