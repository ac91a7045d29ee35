"""Which classes the runs of a benchmark know, read from the labels of the data."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from afield.data.domains import (
    ClassesByDomain,
    DomainSet,
    classes_by_domain,
    relabel,
    uses_all_classes,
)
from afield.errors import SpecError
from afield.runs.record import Run
from afield.runs.run_setup import load_domains
from afield.studies.benchmark import check_classes_choice
from afield.studies.settings import Settings, resolve_run

__all__ = ["check_unseen_classes", "read_classes", "with_classes_choice"]

log = logging.getLogger(__name__)

# The note about unseen classes names at most this many domains.
MAX_NAMED_DOMAINS = 5


def read_classes(
    dataset: DomainSet, settings: Settings | None = None, choice: str | None = None
) -> ClassesByDomain | None:
    """The classes that each domain has; None if the whole list of the dataset is used.

    `settings` are those of the runs, and `choice` is the option ``classes``.
    """
    check_classes_choice(choice)
    if uses_all_classes(dataset, choice):
        return None
    common = {name: value for name, value in (settings or {}).items() if "." not in name}
    run = resolve_run(dataset, "erm", dataset.domains, settings=common)
    return classes_by_domain(load_domains(dataset, run), dataset.classes)


def with_classes_choice(runs: Sequence[Run], dataset: DomainSet, choice: str | None) -> list[Run]:
    """The runs with a choice of classes that is not the default of the dataset."""
    if uses_all_classes(dataset, choice) == uses_all_classes(dataset):
        return list(runs)
    return [replace(run, given={**run.given, "classes": choice}) for run in runs]


def check_unseen_classes(dataset: DomainSet, runs: Sequence[Run]) -> None:
    """Log how many samples have a class that no source has.

    Raises an error if a domain has no other samples.
    """
    counts: dict[str, str] = {}
    for run in {(run.sources, run.classes): run for run in runs if run.classes}.values():
        raw = load_domains(dataset, replace(run, classes=()))
        known = relabel(raw, dataset.classes, run.classes)
        for name in dataset.without(*run.sources, *run.unused):
            unknown = known[name].y < 0
            if unknown.all():
                raise SpecError(
                    f"{dataset.name}: domain {name!r} has no sample of a class that its sources "
                    "have; remove the domain, or use --classes all"
                )
            if unknown.any():
                lacking = [dataset.classes[i] for i in raw[name].y[unknown].unique().tolist()]
                names = ", ".join(map(repr, lacking))
                counts[name] = f"{int(unknown.sum())} of {len(unknown)} in {name!r} ({names})"
    if counts:
        shown = list(counts.values())[:MAX_NAMED_DOMAINS]
        more = len(counts) - len(shown)
        rest = f" and {more} more domains" if more else ""
        log.warning(
            "%s: samples of classes that no source has are left out of the accuracy and reported "
            "apart: %s%s (--classes all trains outputs for them)",
            dataset.name,
            "; ".join(shown),
            rest,
        )
