"""Which runs a benchmark needs: leave one domain out, and the twins of the second rule."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from afield import catalog
from afield.catalog import hint
from afield.domains import DomainSet, Training
from afield.errors import SpecError, UnknownNameError
from afield.record import DEFAULT_RULES, Run
from afield.selection import RULES
from afield.space import checked, defaults, draw_values

__all__ = ["CHECKPOINTS", "leave_one_out", "planned_run"]

# A checkpoint every 2 % of the steps, unless somebody says otherwise.
CHECKPOINTS = 50

Settings = Mapping[str, Any]


def leave_one_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] = DEFAULT_RULES,
    average: str = "last",
    settings: Settings | None = None,
) -> list[Run]:
    """The runs that leave each domain out once, and for the second rule each pair of domains.

    Parameters
    ----------
    dataset, methods
        On what, and with which methods.
    trials
        How often to repeat everything, each time with other splits and another seed.
    draws
        How many draws of the hyperparameters to try; the first is the defaults.
    rules
        The selection rules that will read the records.
    average, settings
        What is deployed, and settings that are not the defaults: ``steps``, ``every``, ``batch``,
        ``lr``, ``weight_decay``, ``backbone``, or a method's or average's own as
        ``vrex.penalty``.

    Examples
    --------
    >>> from afield.readers import find_dataset
    >>> len(leave_one_out(find_dataset("rotated_digits"), ["erm", "vrex"], trials=1))
    12
    """
    twins = any(RULES[rule].needs_twins for rule in rules)
    if twins and len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: the rule left-out-source takes "
            "three, so that one is left to train on; use --rules sources,target"
        )
    _check_settings(settings or {}, [*methods, average])
    for name, count in (("trials", trials), ("draws", draws)):
        if count < 1:
            raise SpecError(f"{name}={count}: at least one is needed")
    left_out: list[tuple[tuple[str, ...], tuple[str, ...]]]
    left_out = [((target,), tuple(rules)) for target in dataset.domains]
    if twins:
        reading = tuple(rule for rule in rules if RULES[rule].needs_twins)
        left_out += [(pair, reading) for pair in combinations(dataset.domains, 2)]
    return [
        planned_run(
            dataset,
            method,
            dataset.without(*unseen),
            trial=trial,
            draw=number,
            rules=reading,
            average=average,
            settings=_of(settings or {}, method, average),
        )
        for trial in range(trials)
        for number in range(draws)
        for unseen, reading in left_out
        for method in methods
    ]


def planned_run(
    dataset: DomainSet,
    method: str,
    sources: tuple[str, ...],
    *,
    trial: int = 0,
    draw: int = 0,
    rules: tuple[str, ...] = DEFAULT_RULES,
    average: str = "last",
    settings: Settings | None = None,
) -> Run:
    """One run with every setting in full: the dataset's defaults, the draw, what is given.

    Parameters
    ----------
    dataset, method, sources
        On what, with which method, trained on which domains.
    trial, draw
        Which splits and seed, and which hyperparameters.
    rules, average, settings
        As in `leave_one_out`.
    """
    owners = {"": Training, method: catalog.find("methods", method)}
    owners[average] = catalog.find("averages", average)
    asked: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    for name, value in (settings or {}).items():
        owner, _, own = name.rpartition(".")
        if owner not in asked:
            known = hint(owner, [method, average])
            raise UnknownNameError(f"{name}: {owner!r} is not in this run; {known}")
        asked[owner][own] = value
    chosen = {owner: checked(owners[owner], values) for owner, values in asked.items()}
    start = {"": vars(dataset.training)}
    usual = {owner: defaults(kind) | start.get(owner, {}) for owner, kind in owners.items()}
    drawn = {
        owner: draw_values(kind, draw=draw, trial=trial, start=start.get(owner)) | chosen[owner]
        for owner, kind in owners.items()
    }
    training = drawn[""]
    if training["every"] is None:
        training["every"] = max(1, training["steps"] // CHECKPOINTS)
    return Run(
        dataset=dataset.spec,
        data=dataset.fingerprint,
        method=method,
        sources=sources,
        trial=trial,
        draw=draw,
        params=drawn[method],
        average=average,
        average_params=drawn[average],
        rules=rules,
        given={
            f"{owner}.{name}".lstrip("."): value
            for owner, values in chosen.items()
            for name, value in values.items()
            if value != usual[owner][name]
        },
        **training,
    )


def _of(settings: Settings, method: str, average: str) -> Settings:
    """The settings that concern a method and an average, or everybody."""
    owners = ("", method, average)
    return {name: value for name, value in settings.items() if name.rpartition(".")[0] in owners}


def _check_settings(settings: Settings, used: Sequence[str]) -> None:
    for name in settings:
        owner = name.rpartition(".")[0]
        if owner and owner not in used:
            raise UnknownNameError(f"{name}: no {owner!r} in this benchmark; {hint(owner, used)}")
