"""Which domains a benchmark trains, validates and tests on, chosen by their names.

(nothing)                 each domain in turn is the target, all others are sources
targets: sketch, photo    only these are targets, each in turn
targets: sketch+photo     both are left out together, and one model is tested on each
validate_on: photo        never trained or tested on: the rule `validation` selects with it
sources: photo, cartoon   one model is trained on these and tested on all others, or on the
targets if there are any
single_source             each domain in turn is the only source, all others are targets
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from afield.errors import SpecError, UnknownNameError
from afield.experiments.selection import Division
from afield.registry import hint

if TYPE_CHECKING:
    from afield.data.domains import DomainSet

__all__ = ["ALL_DOMAINS", "TARGETS", "DomainChoice", "Fold", "check_domain_options"]

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
