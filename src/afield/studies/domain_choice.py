"""Domains that are chosen by name: how they divide a dataset, and what tables say about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint
from afield.runs.selection import Division

if TYPE_CHECKING:
    from afield.data.domains import DomainSet
if TYPE_CHECKING:
    from afield.runs.record import Record

__all__ = ["ALL_DOMAINS", "TARGETS", "DomainChoice", "Fold", "check_domain_options"]
__all__ += ["choice_identity", "describe_choice", "is_held_out_share", "is_single_source"]
__all__ += ["named_targets"]

Names = tuple[str, ...]
# The word in `given` for the targets of all folds, each a list, if domains were chosen by name.
TARGETS = "targets"


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


def check_domain_options(
    choice: DomainChoice,
    *,
    hold_out: float,
    validate: float | None,
    train_on: Sequence[int | str],
    merges: Sequence[str],
) -> None:
    """Refuse options of a benchmark that divide the domains in two ways."""
    if validate is not None and not hold_out:
        raise SpecError("--validate needs --hold-out: it is a share of the domains held out")
    if train_on and not hold_out:
        raise SpecError("--train-on needs --hold-out: otherwise all other domains are sources")
    if merges and hold_out:
        raise SpecError("--merges leaves each domain out once; remove --hold-out")
    if choice and hold_out:
        raise SpecError("--hold-out draws the domains to test on; remove it to name domains")
    if merges and choice.single_source:
        raise SpecError("--merges needs several sources; remove --single-source")


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
