"""Recipes of a benchmark on all domains: a training, with its start, or a merge with its parts."""

from dataclasses import replace
from typing import Any

from afield import registry
from afield.data.domains import DomainSet
from afield.experiments.merged import MERGE_BASELINES
from afield.experiments.record import Run
from afield.experiments.selection import DEFAULT_RULES
from afield.experiments.settings import resolve_epochs
from afield.experiments.store import Store, read_record

__all__ = ["is_merge", "is_recipe", "merge_recipe", "plan_whole"]


def is_merge(run: Run) -> bool:
    """Whether a run is a merge, and neither a baseline of one nor adapted to its target."""
    return run.role == "merged" and run.method in registry.names("merges")


def is_recipe(run: Run) -> bool:
    """Whether `fit` can make the model of such a run: of a training, a merge or an adaptation."""
    trained = run.role in ("", "adapted") and not run.experts
    merged = run.role in ("merged", "adapted") and run.method in registry.names("merges")
    return (trained or merged) and run.method not in MERGE_BASELINES


def merge_recipe(run: Run) -> str:
    """What the merged runs of all targets have in common: all but base, experts and domains."""
    labels = sorted((name, str(value)) for name, value in run.given.items())
    plain = replace(run, trial=0, classes=(), base="", experts=(), role="merged")
    return f"{plain.recipe} {labels}"


def plan_whole(run: Run, store: Store, dataset: DomainSet) -> tuple[list[Run], Run]:
    """A run like one that left a domain out, on all domains, and the runs that it is made from."""
    if is_merge(run):
        return _plan_whole_merge(run, store, dataset)
    # All domains are sources, so the model knows the classes of all.
    whole: dict[str, Any] = {"dataset": dataset.spec, "sources": dataset.domains}
    whole |= {"tested": (), "unused": (), "classes": ()}
    run = resolve_epochs(replace(run, rules=DEFAULT_RULES, **whole), dataset)
    if not run.base:
        return [], run
    store.fetch(run.base)
    start = resolve_epochs(replace(read_record(store.root / run.base).run, **whole), dataset)
    return [start], replace(run, base=start.key)


def _plan_whole_merge(run: Run, store: Store, dataset: DomainSet) -> tuple[list[Run], Run]:
    """The base and experts on all domains, and their merge, like a merge that left one domain out.

    Parameters
    ----------
    run
        A merged run of a benchmark; its base and experts are in the store.
    store, dataset
        Where the records are, and the data as they are found now.
    """
    store.fetch(run.base, *run.experts)
    stored_base, *stored_experts = (
        read_record(store.root / key).run for key in (run.base, *run.experts)
    )
    whole: dict[str, Any] = {"dataset": dataset.spec, "tested": (), "unused": (), "classes": ()}
    # The base of a zero-shot CLIP uses no domain, and is the same for all targets.
    sources = dataset.domains if stored_base.sources == run.sources else stored_base.sources
    base = resolve_epochs(replace(stored_base, sources=sources, **whole), dataset)
    chosen: list[tuple[Run, tuple[str, ...]]]
    if all(len(expert.sources) == 1 for expert in stored_experts):
        chosen = [(stored_experts[0], (name,)) for name in dataset.domains]
    else:
        chosen = [(expert, dataset.domains) for expert in stored_experts]
    experts = [
        resolve_epochs(replace(expert, sources=own, base=base.key, **whole), dataset)
        for expert, own in chosen
    ]
    merged = replace(
        run,
        sources=dataset.domains,
        base=base.key,
        experts=tuple(expert.key for expert in experts),
        rules=DEFAULT_RULES,
        **whole,
    )
    return [base, *experts], merged
