"""The settings of a run in full: the dataset's defaults, the draw, and what is given by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from afield import registry
from afield.data.domains import DomainSet, Training
from afield.errors import IncompatibleMethodError, SpecError, UnknownNameError
from afield.experiments.record import Run
from afield.experiments.run_setup import steps_per_epoch
from afield.experiments.selection import DEFAULT_RULES
from afield.hyperparameters import build, defaults, draw_values, validate_values, without_neutral
from afield.networks.backbone import HUB, find_backbone
from afield.registry import hint
from afield.training.method import Method
from afield.training.optimizers import canonical_optimizer
from afield.training.schedules import canonical_schedule
from afield.weights import weights_digest

__all__ = [
    "CHECKPOINTS_PER_RUN",
    "Settings",
    "check_counts",
    "check_settings",
    "resolve_epochs",
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
    classes: tuple[str, ...] = (),
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
    classes
        The classes that the network has outputs for; empty means all classes of the dataset. A
        network whose head is built from the names of the classes always has all.
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
    chosen = {
        owner: validate_values(owners[owner], values, owner) for owner, values in asked.items()
    }
    start = {"": _start(dataset, chosen[""]), average: {}}
    for name, value in dataset.averages.get(average, {}).items():
        owner, _, own = name.rpartition(".")
        start[owner][own] = value
    usual = {owner: defaults(kind) | start.get(owner, {}) for owner, kind in owners.items()}
    drawn = {
        owner: draw_values(kind, draw=draw, trial=trial, start=start.get(owner)) | chosen[owner]
        for owner, kind in owners.items()
    }
    _check_duration(chosen[""])
    if drawn[""]["epochs"] and "every" not in chosen[""]:
        drawn[""]["every"] = None
    if drawn[""]["batch_total"]:
        drawn[""]["batch"], drawn[""]["domains_per_step"] = usual[""]["batch"], 0
    training = resolve_settings(drawn[""], dataset)
    per_step = min(training["domains_per_step"], len(sources)) or len(sources)
    built = build(owners[method], drawn[method])
    if training["batch_total"]:
        _check_pooled(built, method, training["batch_total"])
    try:
        built.check(per_step)
        built.check_batch(training["batch"])
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
    run = Run(
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
        classes=() if find_backbone(training["backbone"]).zero_shot else classes,
        rules=rules,
        given={
            f"{owner}.{name}".lstrip("."): value
            for owner, values in chosen.items()
            for name, value in values.items()
            if value != usual[owner][name] and name not in fitting
        },
        **training,
    )
    return resolve_epochs(run, dataset)


def resolve_epochs(run: Run, dataset: DomainSet) -> Run:
    """The run with as many steps as its epochs take on its sources."""
    if not run.epochs:
        return run
    steps = max(1, round(run.epochs * steps_per_epoch(run, dataset)))
    every = run.every
    if every == max(1, run.steps // CHECKPOINTS_PER_RUN):
        every = max(1, steps // CHECKPOINTS_PER_RUN)
    return replace(run, steps=steps, every=every)


def _check_pooled(built: Method, method: str, total: int) -> None:
    """Refuse a method that cannot use a step with samples of only one domain, or with few."""
    try:
        built.check(1)
    except SpecError:
        reason = "may have samples of one domain only, and it needs several domains in a step"
    else:
        if built.batches_per_group == 1:
            return
        reason = f"has one batch, and it takes {built.batches_per_group} of each domain in a step"
    raise IncompatibleMethodError(
        f"{method} with batch_total={total}: a pooled batch {reason}; use batch", method
    )


def _check_duration(chosen: Mapping[str, Any]) -> None:
    """Refuse two settings of which only one can hold."""
    for one, other in (
        ("steps", "epochs"),
        ("batch", "batch_total"),
        ("domains_per_step", "batch_total"),
    ):
        if chosen.get(one) and chosen.get(other):
            raise SpecError(
                f"{one}={chosen[one]} and {other}={chosen[other]:g}: give only one of them"
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
        found["size"] = own if dataset.modality.resizable else 0
    if dataset.modality.resizable and found["size"] < MIN_SIZE:
        raise SpecError(f"size={found['size']}: images need at least {MIN_SIZE} pixels a side")
    augment = training["augment"]
    if augment is None:
        augment = "full" if found["size"] >= PHOTOGRAPH_SIZE else "light"
        augment = augment if dataset.modality.resizable else "none"
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


def check_counts(**counts: int | None) -> None:
    """Refuse a count below 1; None means that it was not given."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise SpecError(f"{name}={count}: at least one is needed")
