"""Which classes a training knows: those of its source domains, or all classes of the dataset.

In a benchmark the target is unseen, so a class that only the target has must not add an output: its
existence is knowledge of the target, and one more output changes all trained weights. A dataset
with a list of classes that is given in advance may use the whole list (a closed set).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from afield.data.domains import Domain, DomainSet

__all__ = [
    "UNKNOWN",
    "ClassesByDomain",
    "classes_by_domain",
    "missing_class_warnings",
    "relabel",
    "source_classes",
    "uses_all_classes",
]

# The label of samples whose class a training does not know.
UNKNOWN = -1

ClassesByDomain = Mapping[str, frozenset[str]]


def uses_all_classes(dataset: DomainSet, choice: str | None = None) -> bool:
    """Whether a training has an output for every class of a dataset.

    `choice` is ``all`` or ``sources``. By default, datasets with a name use all classes, because
    their list is given in advance; a user's own data use the classes of the sources.
    """
    return choice == "all" if choice else not dataset.origin


def classes_by_domain(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> ClassesByDomain:
    """The classes that each domain has samples of."""
    return {
        name: frozenset(classes[label] for label in domain.y.unique().tolist())
        for name, domain in domains.items()
    }


def source_classes(
    dataset: DomainSet, known: ClassesByDomain | None, sources: Iterable[str]
) -> tuple[str, ...]:
    """The classes that the sources have, in the order of the dataset.

    Empty if these are all classes, and if `known` is None: then the whole list is used.
    """
    if known is None:
        return ()
    present = frozenset[str]().union(*(known[name] for name in sources))
    kept = tuple(name for name in dataset.classes if name in present)
    return kept if len(kept) < len(dataset.classes) else ()


def relabel(
    domains: Mapping[str, Domain], classes: tuple[str, ...], kept: tuple[str, ...]
) -> dict[str, Domain]:
    """Number the labels by the list `kept`; samples of other classes become `UNKNOWN`."""
    if not kept:
        return dict(domains)
    numbers = {name: number for number, name in enumerate(kept)}
    table = torch.tensor([numbers.get(name, UNKNOWN) for name in classes])
    return {name: replace(domain, y=table[domain.y]) for name, domain in domains.items()}


def missing_class_warnings(domains: Mapping[str, Domain], classes: tuple[str, ...]) -> list[str]:
    """One warning for every domain without samples of a class, which is allowed."""
    warnings = []
    for name, present in classes_by_domain(domains, classes).items():
        missing = [repr(label) for label in classes if label not in present]
        if missing:
            warnings.append(f"domain {name!r} has no sample of class {', '.join(missing)}")
    return warnings
