"""Which runs a benchmark needs: each domain left out once, or a share of many domains held out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from afield import registry
from afield.data.domains import DomainSet, Training
from afield.errors import IncompatibleMethodError, SpecError, UnknownNameError
from afield.experiments.record import DEFAULT_RULES, Run
from afield.experiments.selection import RULES
from afield.hyperparameters import build, defaults, draw_values, validate_values, without_neutral
from afield.networks.backbone import HUB, find_backbone
from afield.registry import hint
from afield.seeds import derive_seed
from afield.training.optimizers import canonical_optimizer, canonical_schedule
from afield.weights import weights_digest

__all__ = [
    "CHECKPOINTS_PER_RUN",
    "Settings",
    "check_settings",
    "hold_out",
    "leave_one_out",
    "resolve_run",
    "resolve_settings",
    "settings_of",
]

# A checkpoint every 2 % of the steps, unless somebody says otherwise.
CHECKPOINTS_PER_RUN = 50
# For networks whose backbone has no size of its own, and files that have any.
DEFAULT_SIZE = 64
MIN_SIZE = 8
# From this size on pictures are taken for photographs, which may be flipped and recoloured.
PHOTOGRAPH_SIZE = 96
# The learning rate at which the field fine-tunes, where a dataset's own is meant for a small net.
FINE_TUNING_LR = 5e-5

# Settings that may be left open.
OPTIONAL_SETTINGS = ("every", "weights", "freeze_bn", "size", "augment", "optimizer", "lr_schedule")

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Fold:
    """One division of the domains: what is trained on, what is tested on, which rules read it."""

    sources: tuple[str, ...]
    rules: tuple[str, ...]
    tested: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


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
    >>> from afield.data.lookup import find_dataset
    >>> len(leave_one_out(find_dataset("rotated_digits"), ["erm", "vrex"], trials=1))
    12
    """
    twins = any(RULES[rule].needs_twins for rule in rules)
    if twins and len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: the rule left-out-source takes "
            "three, so that one is left to train on; use --rules sources,target"
        )
    folds = [Fold(dataset.without(target), tuple(rules)) for target in dataset.domains]
    if twins:
        reading = tuple(rule for rule in rules if RULES[rule].needs_twins)
        folds += [
            Fold(dataset.without(*pair), reading) for pair in combinations(dataset.domains, 2)
        ]
    of_trials = [folds for _ in range(trials)]
    return _runs(dataset, methods, of_trials, draws=draws, average=average, settings=settings)


def hold_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    test: float = 0.25,
    validate: float = 0.1,
    train_on: Sequence[int | None] = (),
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] | None = None,
    average: str = "last",
    settings: Settings | None = None,
) -> list[Run]:
    """The runs that hold out a share of many domains, other ones in every trial.

    Parameters
    ----------
    dataset, methods
        On what, and with which methods.
    test, validate
        The shares of the domains that are tested on, and that are validated on; both are unseen.
    train_on
        How many of the other domains to train on, for each number a benchmark of its own on the
        same unseen domains; a larger number has those of a smaller one. None are all of them.
    rules
        The selection rules that will read the records: by default validation and target, and
        sources in place of validation where no domain validates.
    trials, draws, average, settings
        As in `leave_one_out`.
    """
    names, count = sorted(dataset.domains), len(dataset.domains)
    tested, validated = (round(s * count) if 0 <= s < 1 else 0 for s in (test, validate))
    if not tested or not 0 <= validate < 1 or tested + validated >= count:
        raise SpecError(
            f"{dataset.name}: {test:g} of {count} domains to test on and {validate:g} to validate "
            "on: that leaves none to test on, or none to train on"
        )
    wanted = tuple(rules or ("validation" if validated else "sources", "target"))
    twins = next((rule for rule in wanted if RULES[rule].needs_twins), None)
    if twins:
        raise SpecError(f"the rule {twins} leaves one domain out; held-out shares have validation")
    if "sources" in wanted and validated:
        raise SpecError("the rule sources picks where no domain validates; use --validate 0")
    if "validation" in wanted and not validated:
        raise SpecError(f"{dataset.name}: no domain to validate on; hold out a larger share for it")
    of_trials = []
    for trial in range(trials):
        order = np.random.default_rng(derive_seed("hold-out", trial)).permutation(count)
        mixed = [names[i] for i in order]
        unseen, others = mixed[: tested + validated], mixed[tested + validated :]
        fold = Fold(dataset.without(*unseen), wanted, dataset.without(*mixed[tested:]))
        counts = dict.fromkeys(_count(number, len(others), dataset) for number in train_on)
        of_trials.append([_smaller(fold, others, count) for count in counts or [len(others)]])
    return _runs(dataset, methods, of_trials, draws=draws, average=average, settings=settings)


def _count(number: int | None, most: int, dataset: DomainSet) -> int:
    """How many domains to train on, of so many; None are all."""
    count = most if number is None else number
    if type(count) is not int or not 1 <= count <= most:
        raise SpecError(
            f"{dataset.name}: cannot train on {count} domains; {most} are left beside those that "
            "are held out"
        )
    return count


def _smaller(fold: Fold, others: Sequence[str], count: int) -> Fold:
    """The same division with the first so many of the domains that could be trained on."""
    sources = tuple(name for name in fold.sources if name in others[:count])
    unused = tuple(name for name in fold.sources if name in others[count:])
    return replace(fold, sources=sources, unused=unused, given={"domains": count})


def _runs(
    dataset: DomainSet,
    methods: Sequence[str],
    of_trials: Sequence[Iterable[Fold]],
    *,
    draws: int,
    average: str,
    settings: Settings | None,
) -> list[Run]:
    check_settings(settings or {}, [*methods, average])
    for name, count in (("trials", len(of_trials)), ("draws", draws)):
        if count < 1:
            raise SpecError(f"{name}={count}: at least one is needed")
    return [
        _folded(
            resolve_run(
                dataset,
                method,
                fold.sources,
                trial=trial,
                draw=number,
                rules=fold.rules,
                average=average,
                settings=settings_of(settings or {}, method, average),
                tested=fold.tested,
            ),
            fold,
        )
        for trial, folds in enumerate(of_trials)
        for number in range(draws)
        for fold in folds
        for method in methods
    ]


def _folded(run: Run, fold: Fold) -> Run:
    """A run that leaves aside what its division does."""
    return replace(run, unused=fold.unused, given={**run.given, **fold.given})


def resolve_run(
    dataset: DomainSet,
    method: str,
    sources: tuple[str, ...],
    *,
    trial: int = 0,
    draw: int = 0,
    rules: tuple[str, ...] = DEFAULT_RULES,
    average: str = "last",
    settings: Settings | None = None,
    tested: tuple[str, ...] = (),
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
    tested
        Of the other domains those to test on, if the rest of them is to validate on.
    """
    owners = {"": Training, method: registry.find("methods", method)}
    owners[average] = registry.find("averages", average)
    asked: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    for name, value in (settings or {}).items():
        owner, _, own = name.rpartition(".")
        if owner not in asked:
            known = hint(owner, [method, average])
            raise UnknownNameError(f"{name}: {owner!r} is not in this run; {known}")
        asked[owner][own] = value
    chosen = {owner: validate_values(owners[owner], values) for owner, values in asked.items()}
    start = {"": _start(dataset, chosen[""])}
    usual = {owner: defaults(kind) | start.get(owner, {}) for owner, kind in owners.items()}
    drawn = {
        owner: draw_values(kind, draw=draw, trial=trial, start=start.get(owner)) | chosen[owner]
        for owner, kind in owners.items()
    }
    training = resolve_settings(drawn[""], dataset)
    per_step = min(training["domains_per_step"], len(sources)) or len(sources)
    built = build(owners[method], drawn[method])
    try:
        built.check(per_step)
    except SpecError as error:
        told = (
            f"{error} (to be trained on {', '.join(sources)})" if len(sources) < 9 else str(error)
        )
        raise IncompatibleMethodError(told, method) from None
    build(owners[average], drawn[average])
    # What was asked for by hand and would be chosen anyway is not worth a word.
    fitting = {
        name
        for name in OPTIONAL_SETTINGS
        if resolve_settings({**drawn[""], name: None}, dataset)[name] == training[name]
    }
    return Run(
        dataset=dataset.spec,
        data=dataset.fingerprint,
        method=method,
        sources=sources,
        trial=trial,
        draw=draw,
        params=without_neutral(owners[method], drawn[method]),
        average=average,
        average_params=without_neutral(owners[average], drawn[average]),
        tested=tested,
        rules=rules,
        given={
            f"{owner}.{name}".lstrip("."): value
            for owner, values in chosen.items()
            for name, value in values.items()
            if value != usual[owner][name] and name not in fitting
        },
        **training,
    )


def _start(dataset: DomainSet, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The dataset's defaults; a pretrained network in place of a small one is tuned gently."""
    usual = dict(vars(dataset.training))
    backbone = find_backbone(chosen.get("backbone", dataset.training.backbone))
    tuned = backbone.input_form() is not None and chosen.get("weights") != "none"
    if tuned and backbone.fine_tuning_settings:
        usual |= backbone.fine_tuning_settings
    elif tuned and find_backbone(dataset.training.backbone).input_form() is None:
        usual["lr"] = FINE_TUNING_LR
    return usual


def resolve_settings(training: dict[str, Any], dataset: DomainSet) -> dict[str, Any]:
    """The settings with nothing left open: what fits the network and the data."""
    found = dict(training)
    backbone = find_backbone(training["backbone"])
    form = backbone.input_form()
    if training["every"] is None:
        found["every"] = max(1, training["steps"] // CHECKPOINTS_PER_RUN)
    usual = HUB if form and backbone.has_pretrained_weights() else "none"
    weights = training["weights"] if training["weights"] is not None else usual
    found["weights"] = "" if weights == "none" else weights
    if weights == HUB:
        found["backbone"] = backbone.tagged_name()
    found["optimizer"] = canonical_optimizer(training["optimizer"] or "")
    found["lr_schedule"] = canonical_schedule(training["lr_schedule"] or "")
    found["start"] = weights_digest(weights) if weights not in (HUB, "none") else ""
    if training["freeze_bn"] is None:
        found["freeze_bn"] = bool(found["weights"])
    if training["size"] is None:
        own = form.size if form else DEFAULT_SIZE
        found["size"] = own if dataset.resizable else 0
    if dataset.resizable and found["size"] < MIN_SIZE:
        raise SpecError(f"size={found['size']}: pictures need {MIN_SIZE} pixels a side or more")
    augment = training["augment"]
    if augment is None:
        augment = "full" if found["size"] >= PHOTOGRAPH_SIZE else "light"
        augment = augment if dataset.resizable else "none"
    found["augment"] = "" if augment == "none" else augment
    return found


def settings_of(settings: Settings, *names: str) -> Settings:
    """The settings that concern these methods, averages or merges, or everybody."""
    owners = ("", *names)
    return {name: value for name, value in settings.items() if name.rpartition(".")[0] in owners}


def check_settings(settings: Settings, used: Sequence[str]) -> None:
    """Refuse settings of what is not in a benchmark."""
    for name in settings:
        owner = name.rpartition(".")[0]
        if owner and owner not in used:
            raise UnknownNameError(f"{name}: no {owner!r} in this benchmark; {hint(owner, used)}")
