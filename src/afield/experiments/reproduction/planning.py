"""From a recipe to its runs: the data that it needs, and the plans of its parts."""

from collections.abc import Sequence
from dataclasses import replace

from afield.data.lookup import find_dataset
from afield.errors import DataError
from afield.experiments.planning import plan_runs
from afield.experiments.record import Run
from afield.experiments.reproduction.recipe import Recipe

__all__ = ["merge_plans", "missing_data", "plan_recipe"]


def plan_recipe(recipe: Recipe) -> list[list[Run]]:
    """The runs of each part, after reading and checking the data; missing data are one error."""
    missing = missing_data(recipe)
    if missing:
        raise DataError(
            f"{recipe.name} needs data that are not here: {', '.join(missing)}; "
            f"`afield recipe show {recipe.name}` says how to get them"
        )
    return [plan_runs(part.benchmark) for part in recipe.parts]


def missing_data(recipe: Recipe) -> dict[str, str]:
    """Datasets of a recipe whose files are missing, and how to get them."""
    found = {name: find_dataset(name) for name in recipe.datasets}
    return {
        name: f"afield data get {name}"
        if dataset.download.archives
        else dataset.download.instructions
        for name, dataset in found.items()
        if dataset.missing_files()
    }


def merge_plans(plans: Sequence[Sequence[Run]]) -> list[Run]:
    """All runs of several plans, each once, with the selection rules of all of them."""
    merged: dict[str, Run] = {}
    for run in (run for plan in plans for run in plan):
        before = merged.get(run.key)
        rules = tuple(dict.fromkeys((*(before.rules if before else ()), *run.rules)))
        merged[run.key] = replace(before or run, rules=rules)
    return list(merged.values())
