"""Which runs a benchmark of merges needs: for every target a base, its experts, and what is merged.

    base      a CLIP as it comes, with the head of its classes' names; any other pretrained network
              with a linear head fitted to the sources (linear_probe); a network from random
              weights after a short training on all sources together (erm)
    experts   fine-tuned from the base on one domain each: the sources, and the target for the upper
              bound; heads of pretrained networks stay frozen. Where several methods are to make
              them, there is one of each method instead, trained on all sources.
    merged    every merge, and what it is compared with (see assembly.py), of one target's sources

The experts of a CLIP are the same for all targets, as its base knows nothing of any domain.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from afield import registry
from afield.data.domains import DomainSet
from afield.errors import IncompatibleMethodError, MergeError, SpecError, UnknownNameError
from afield.experiments.merge_runner import MERGE_BASELINES
from afield.experiments.record import DEFAULT_RULES, Run
from afield.experiments.settings import (
    Settings,
    check_counts,
    check_settings,
    resolve_run,
    settings_of,
)
from afield.hyperparameters import build, defaults, draw_values, validate_values, without_neutral
from afield.merging.scopes import expert_count, needs_statistics
from afield.merging.state_dicts import merge as merge_by
from afield.networks.backbone import find_backbone, network
from afield.training.method import Task
from afield.training.optimizers import optimizer_factory

__all__ = ["merging_runs"]

# A warm-up of a network without pretraining takes so much of an expert's steps.
WARM_UP_SHARE = 0.2
# What methods are tried on before they are trusted to leave a network as it is.
TINY_SHAPE = (4,)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Plan:
    """What all runs of a benchmark of merges share."""

    dataset: DomainSet
    methods: tuple[str, ...]
    average: str
    base_steps: int | None
    settings: Settings

    def base(self, sources: tuple[str, ...], trial: int) -> Run:
        """What experts start from."""
        own = resolve_run(self.dataset, "erm", sources, trial=trial, settings=self.common)
        if find_backbone(own.backbone).zero_shot:
            return self._fitted(self.dataset.domains[:1], trial)
        if own.weights:
            return self._fitted(sources, trial)
        unused = next((name for name in self.settings if name.startswith("linear_probe.")), None)
        if unused:
            raise SpecError(f"{unused}: nothing is pretrained here, so the base is warmed up")
        steps = self.base_steps or _warm_up(own.steps)
        warm = {**self.common, "steps": steps, "every": None}
        run = resolve_run(self.dataset, "erm", sources, trial=trial, settings=warm)
        return replace(run, role="base", given={})

    def _fitted(self, sources: tuple[str, ...], trial: int) -> Run:
        own = settings_of(self.settings, "linear_probe")
        once = {**own, "steps": 1, "every": 1}
        run = resolve_run(self.dataset, "linear_probe", sources, trial=trial, settings=once)
        return replace(run, role="base", given={})

    @property
    def common(self) -> dict[str, Any]:
        """The settings of everybody."""
        return {name: value for name, value in self.settings.items() if "." not in name}

    def expert(self, method: str, sources: tuple[str, ...], base: Run) -> Run:
        """A model that is fine-tuned from a base."""
        run = resolve_run(
            self.dataset,
            method,
            sources,
            trial=base.trial,
            average=self.average,
            settings=settings_of(self.settings, method, self.average),
        )
        frozen = base.method == "linear_probe"
        return replace(run, role="expert", base=base.key, freeze_head=frozen)


def merging_runs(
    dataset: DomainSet,
    merges: Sequence[str],
    *,
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] = DEFAULT_RULES,
    average: str = "last",
    expert_methods: Sequence[str] = ("erm",),
    base_steps: int | None = None,
    settings: Settings | None = None,
) -> list[Run]:
    """The runs that leave each domain out once and merge what was learned on the others.

    Parameters
    ----------
    dataset, merges
        On what, and which merges; what they are compared with is added.
    trials, draws
        As in `leave_one_out`; draws are of the merges' settings, with the same experts.
    rules, average
        As in `leave_one_out`.
    expert_methods
        What trains the experts, one for every domain; or several methods, one expert for each.
    base_steps
        Of the warm-up, where there is one; by default a fifth of an expert's.
    settings
        As in `leave_one_out`, of the experts' training; and of merges, as ``score.tau``, with
        ``score.scale`` for how far to go.
    """
    _check(dataset, merges, expert_methods, settings or {}, average)
    check_counts(trials=trials, draws=draws, base_steps=base_steps)
    reading = tuple(rule for rule in rules if rule in DEFAULT_RULES) or DEFAULT_RULES
    if set(rules) - set(reading):
        log.warning("merges are read by %s: other rules would need twins", " and ".join(reading))
    plan = _Plan(dataset, tuple(expert_methods), average, base_steps, settings or {})
    found: dict[str, Run] = {}
    for trial in range(trials):
        for target in dataset.domains:
            for run in _of_target(plan, target, trial, merges, draws, reading):
                found.setdefault(run.key, run)
    return sorted(found.values(), key=lambda run: (run.trial, run.order))


def _of_target(
    plan: _Plan, target: str, trial: int, merges: Sequence[str], draws: int, rules: tuple[str, ...]
) -> list[Run]:
    """The runs of one target in one trial."""
    sources = plan.dataset.without(target)
    base = plan.base(sources, trial)
    if len(plan.methods) == 1:
        experts = [plan.expert(plan.methods[0], (name,), base) for name in sources]
    else:
        experts = [plan.expert(method, sources, base) for method in plan.methods]
    bound = _bound(plan, target, base)
    like = replace(
        experts[0],
        sources=sources,
        role="merged",
        experts=tuple(expert.key for expert in experts),
        params={},
        rules=rules,
        given=_told(plan, base, experts),
    )
    merged = [replace(like, method=name) for name in MERGE_BASELINES[:-1]]
    both = tuple(dict.fromkeys((*rules, "target")))
    merged.append(replace(like, method=MERGE_BASELINES[-1], experts=(bound.key,), rules=both))
    for name in merges:
        merged += [_merged(plan, like, name, draw) for draw in range(draws)]
    return [base, *experts, bound, *merged]


def _bound(plan: _Plan, target: str, base: Run) -> Run:
    """The expert of the target, by the first method that can do with one domain."""
    for method in plan.methods:
        try:
            return plan.expert(method, (target,), base)
        except IncompatibleMethodError:
            continue
    return plan.expert("erm", (target,), base)


def _merged(plan: _Plan, like: Run, name: str, draw: int) -> Run:
    merge = registry.find("merges", name)
    asked = {k.partition(".")[2]: v for k, v in plan.settings.items() if k.startswith(f"{name}.")}
    scale = _scale(name, asked.pop("scale", 1.0))
    chosen = validate_values(merge, asked)
    _try(name, chosen)
    params = {**draw_values(merge, draw=draw, trial=like.trial), **chosen}
    usual = {**defaults(merge), "scale": 1.0}
    given = {
        f"{name}.{key}": value
        for key, value in {**chosen, "scale": scale}.items()
        if value != usual[key]
    }
    params = {**without_neutral(merge, params), "scale": scale}
    return replace(like, method=name, params=params, draw=draw, given={**like.given, **given})


def _scale(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise SpecError(f"{name}.scale={value}: not a finite number")
    return found


def _try(name: str, chosen: dict[str, Any]) -> None:
    """Refuse settings that the merge would refuse when all experts are trained."""
    if chosen:
        base = torch.full((4, 4), 100.0)
        experts = [{"w": base + torch.eye(4)}, {"w": base + torch.eye(4).cumsum(0)}]
        try:
            merge_by(name, {"w": base}, experts, **chosen)
        except MergeError as error:
            raise SpecError(f"{name}.{str(error).removeprefix('w: ')}") from None


def _told(plan: _Plan, base: Run, experts: Sequence[Run]) -> dict[str, Any]:
    """What labels the rows: settings of the experts that were chosen by hand, and who they are."""
    every = {name: value for expert in experts for name, value in expert.given.items()}
    given = {name: value for name, value in every.items() if "." not in name}
    own = {name: value for name, value in every.items() if "." in name}
    warmed = base.method != "linear_probe"
    if warmed and base.steps != _warm_up(experts[0].steps):
        given["base_steps"] = base.steps
    if plan.methods != ("erm",) or own:
        given["experts"] = "+".join(plan.methods)
    return {**given, **{name.replace(".", " "): value for name, value in own.items()}}


def _warm_up(steps: int) -> int:
    return max(1, round(WARM_UP_SHARE * steps))


def _check(
    dataset: DomainSet,
    merges: Sequence[str],
    methods: Sequence[str],
    settings: Settings,
    average: str,
) -> None:
    if len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: merging takes three, so that two "
            "experts are left beside the target"
        )
    if not methods:
        raise SpecError("no method to make the experts; leave --expert-method out for erm")
    for name in merges:
        _check_merge(name, len(methods) if len(methods) > 1 else len(dataset.domains) - 1)
    check_settings(settings, [*merges, *methods, average, "linear_probe"])
    for method in methods:
        _check_plain(method, settings, domains=1 if len(methods) == 1 else 2)


def _check_merge(name: str, experts: int) -> None:
    if name in MERGE_BASELINES:
        raise UnknownNameError(f"{name} stands beside every merge already; leave it out")
    merge = registry.find("merges", name)
    required = expert_count(merge)
    if required is not None and required != experts:
        raise SpecError(
            f"{name} merges {required} experts, but there are {experts}: use a dataset of "
            f"{required + 1} domains, or {required} methods"
        )
    if needs_statistics(merge):
        raise SpecError(
            f"{name} needs statistics of every expert, which a benchmark does not make; use "
            f"`afield merge {name} … --statistics FILE`, or leave it out"
        )


def _check_plain(method: str, settings: Settings, *, domains: int) -> None:
    """Refuse methods that train another network than the base, before anything is trained."""
    own = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{method}.")}
    made = build(registry.find("methods", method), own)
    names = tuple(str(i) for i in range(domains))
    with torch.random.fork_rng(devices=[]):
        make = partial(network, "small:mlp", TINY_SHAPE)
        optimizer = optimizer_factory("", lr=1e-3, weight_decay=0.0)
        model = make(2)
        before = {name: value.shape for name, value in model.state_dict().items()}
        try:
            learner = made.setup(
                model, Task(names, ("a", "b"), 1, make, optimizer, shape=TINY_SHAPE)
            )
        except SpecError:
            # What this small network lacks, the real one may have.
            return
    after = {name: value.shape for name, value in learner.model.state_dict().items()}
    if after != before:
        raise SpecError(
            f"{method} trains another network than the base: it cannot be merged; use an "
            "--expert-method that leaves the network as it is, such as erm"
        )
