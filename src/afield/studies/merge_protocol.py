"""Which runs a benchmark of merges needs: for every target a base, experts and merged models.

    base      a CLIP as published, with a head from the class names; any other pretrained network
              with a linear head fitted to the sources (linear_probe); a network from random
              weights after a short training on all sources together (erm)
    experts   fine-tuned from the base on one domain each: the sources, and the target for the upper
              bound. The heads of pretrained networks stay frozen. With several expert methods,
              there is one expert per method instead, trained on all sources. Expert draws (model
              soups) are samples of one method's hyperparameters; their heads are trained as well.
    merged    every merge and its baselines (see `merged`), of the sources of one target

The experts of a CLIP are the same for all targets, because its base uses no domain.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from afield import own_code, registry
from afield.compute import preserve_torch_state
from afield.data.domains import ClassesByDomain, DomainSet, source_classes
from afield.data.samples import Rows
from afield.errors import IncompatibleMethodError, MergeError, SpecError
from afield.hyperparameters import (
    build,
    defaults,
    draw_values,
    parse_range,
    seed_name,
    split_ranges,
    without_neutral,
)
from afield.merging.job import merge as merge_by
from afield.merging.scopes import scale_of
from afield.networks.backbone import find_backbone, network
from afield.networks.inference import compute_outputs
from afield.runs.merged import check_merge
from afield.runs.row import MERGE_BASELINES
from afield.runs.run import Run
from afield.runs.selection import DEFAULT_RULES, RULES
from afield.seeds import derive_seed
from afield.studies.protocol import Fold, Protocol
from afield.studies.settings import (
    Settings,
    check_counts,
    check_settings,
    resolve_run,
    settings_of,
)
from afield.training.learner import Task
from afield.training.optimizers import optimizer_factory

log = logging.getLogger(__name__)

# Input shape of the small network on which expert methods are tried out.
TINY_SHAPE = (4,)


def short_names(settings: Settings, owner: str) -> dict[str, Any]:
    """The settings of one method or merge, by their short names."""
    return {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{owner}.")}


def check_scale(name: str, value: Any) -> float:
    """The factor of a merged delta as a number; refuse what is not finite."""
    with suppress(TypeError, ValueError):
        if math.isfinite(scale := float(value)):
            return scale
    raise SpecError(f"{name}.scale={value}: not a finite number")


def check_values(name: str, chosen: dict[str, Any]) -> None:
    """Refuse values that the merge would refuse only after all experts are trained."""
    if chosen:
        base = torch.full((4, 4), 100.0)
        experts = [{"w": base + torch.eye(4)}, {"w": base + torch.eye(4).cumsum(0)}]
        try:
            merge_by(name, {"w": base}, experts, **chosen)
        except MergeError as error:
            raise SpecError(f"{name}.{str(error).removeprefix('w: ')}") from None


def check_merging(
    dataset: DomainSet,
    merges: Sequence[str],
    methods: Sequence[str],
    draws: int,
    settings: Settings,
    average: str,
    *,
    sources: int,
) -> None:
    """Refuse merges, expert methods and settings that cannot work, before anything is trained."""
    if len(dataset.domains) < 3:
        count = len(dataset.domains)
        raise SpecError(f"{dataset.name} has {count} domains: merging needs three or more")
    if sources < 2:
        raise SpecError(f"{dataset.name}: merging needs two or more sources; name fewer targets")
    if not methods:
        raise SpecError("no method trains the experts; leave --expert-method out for erm")
    if draws and len(methods) > 1:
        raise SpecError("--expert-draws are of one method; give one --expert-method")
    per_domain = len(methods) == 1 and not draws
    for name in merges:
        check_merge(name, sources if per_domain else draws or len(methods))
    check_settings(settings, [*merges, *methods, average, "linear_probe"])
    for method in methods:
        _check_plain(method, settings, domains=1 if per_domain else 2)


def _check_plain(method: str, settings: Settings, *, domains: int) -> None:
    """Refuse a method that changes the network of the base, before anything is trained."""
    instance = build(registry.find("methods", method), short_names(settings, method))
    with preserve_torch_state(cuda=False):
        make = partial(network, "small:mlp", TINY_SHAPE)
        optimizer = optimizer_factory("", lr=1e-3, weight_decay=0.0)
        model = make(2)
        before = {name: value.shape for name, value in model.state_dict().items()}
        x = torch.ones(1, *TINY_SHAPE)
        expected = compute_outputs(model, Rows([x]))
        try:
            names = tuple(str(i) for i in range(domains))
            task = Task(names, ("a", "b"), 1, make, optimizer, shape=TINY_SHAPE)
            learner = instance.setup(model, task)
        except SpecError:
            # The real network may have what this small one lacks.
            return
    after = {name: value.shape for name, value in learner.model.state_dict().items()}
    if after != before or not torch.allclose(compute_outputs(learner.model, Rows([x])), expected):
        raise SpecError(
            f"{method} changes the network of the base, so its experts cannot be merged; use an "
            "--expert-method that keeps the network, such as erm"
        )


# Steps of the base of a network without pretrained weights, as a share of an expert's steps.
WARM_UP_SHARE = 0.2


@dataclass(frozen=True)
class _Plan:
    """The options that all runs of a benchmark of merges share."""

    dataset: DomainSet
    methods: tuple[str, ...]
    average: str
    base_steps: int | None
    expert_draws: int
    settings: Settings
    known_classes: ClassesByDomain | None = None
    baselines: bool = True
    planned: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def base(self, sources: tuple[str, ...], trial: int) -> Run:
        """The run that experts start from."""
        single = {"steps": 1, "every": 1, "epochs": 0.0}
        # Steps of epochs need the sizes of all sources, and few bases are trained in steps.
        network = {**self.common, **single}
        plain = resolve_run(self.dataset, "erm", sources, trial=trial, settings=network)
        once = {**settings_of(self.settings, "linear_probe"), **single}
        if find_backbone(plain.backbone).zero_shot:
            return self._base("linear_probe", self.dataset.domains[:1], trial, once)
        if plain.weights:
            return self._base("linear_probe", sources, trial, once)
        unused = next((name for name in self.settings if name.startswith("linear_probe.")), None)
        if unused:
            raise SpecError(f"{unused}: only a base with pretrained weights has a linear probe")
        plain = resolve_run(self.dataset, "erm", sources, trial=trial, settings=self.common)
        steps = self.base_steps or _warm_up(plain.steps)
        warm = {**self.common, "steps": steps, "every": None, "epochs": 0.0}
        return self._base("erm", sources, trial, warm)

    def _base(self, method: str, sources: tuple[str, ...], trial: int, settings: Settings) -> Run:
        # All experts of a target have the classes of their base.
        classes = source_classes(self.dataset, self.known_classes, sources)
        run = resolve_run(
            self.dataset, method, sources, trial=trial, settings=settings, classes=classes
        )
        return replace(run, role="base", given={})

    @property
    def common(self) -> dict[str, Any]:
        """The settings that belong to no method, average or merge."""
        return {name: value for name, value in self.settings.items() if "." not in name}

    def experts(self, sources: tuple[str, ...], base: Run) -> list[Run]:
        """The runs whose models are merged."""
        if self.expert_draws:
            draws = range(self.expert_draws)
            return [self.expert(self.methods[0], sources, base, draw) for draw in draws]
        if len(self.methods) == 1:
            return [self.expert(self.methods[0], (name,), base) for name in sources]
        return [self.expert(method, sources, base) for method in self.methods]

    def expert(self, method: str, sources: tuple[str, ...], base: Run, draw: int = 0) -> Run:
        """The run that fine-tunes an expert from a base; folds share those of a CLIP."""
        asked = (method, sources, base.key, draw)
        if asked not in self.planned:
            self.planned[asked] = self._expert(method, sources, base, draw)
        return self.planned[asked]

    def _expert(self, method: str, sources: tuple[str, ...], base: Run, draw: int) -> Run:
        run = resolve_run(
            self.dataset,
            method,
            sources,
            trial=base.trial,
            draw=draw,
            average=self.average,
            settings=settings_of(self.settings, method, self.average),
            classes=base.classes,
        )
        frozen = base.method == "linear_probe" and not self.expert_draws
        frozen = frozen or run.freeze_head
        return replace(run, role="expert", base=base.key, freeze_head=frozen)


def merging_runs(
    dataset: DomainSet,
    merges: Sequence[str],
    protocol: Protocol,
    *,
    average: str = "last",
    expert_method: Sequence[str] = ("erm",),
    base_steps: int | None = None,
    expert_draws: int = 0,
    settings: Settings | None = None,
    known_classes: ClassesByDomain | None = None,
    baselines: bool = True,
) -> list[Run]:
    """The runs that leave each domain out once, or as chosen, and merge the experts of the others.

    Parameters
    ----------
    dataset, merges, protocol
        The dataset, the names of the merges, and how the domains are divided. Draws vary the
        settings of the merges, with the same experts.
    baselines
        Whether to add the base, the best expert, the ensemble and the target's expert.
    average, known_classes
        As in `method_runs`; base, experts and merged models of a target have the same classes.
    expert_method
        The method that trains one expert per domain, or several methods with one expert each.
    base_steps
        Training steps of a base without pretrained weights; by default a fifth of an expert's.
    expert_draws
        Number of draws of one method to merge; 0 trains one expert per domain or method.
    settings
        As in `method_runs`, for the experts' training, and those of merges, such as
        ``score.tau``; ``score.scale`` multiplies the merged delta (by default the merge's usual
        scale).
    """
    folds, rules = protocol.folds(dataset), protocol.rules or DEFAULT_RULES
    sources = min(len(fold.sources) for fold in folds)
    check_merging(
        dataset, merges, expert_method, expert_draws, settings or {}, average, sources=sources
    )
    check_counts(base_steps=base_steps)
    usable = tuple(rule for rule in rules if not RULES[rule].needs_twins) or DEFAULT_RULES
    if set(rules) - set(usable):
        log.warning("merges are selected by %s: other rules need twins", " and ".join(usable))
    methods = tuple(expert_method)
    shared = (average, base_steps, expert_draws, settings or {}, known_classes, baselines)
    plan = _Plan(dataset, methods, *shared)
    runs: dict[str, Run] = {}
    for trial in protocol.trial_numbers:
        for fold in folds:
            usable_fold = replace(fold, rules=usable)
            for run in _of_fold(plan, usable_fold, trial, merges, protocol.draw_numbers):
                runs.setdefault(run.key, run)
    return sorted(runs.values(), key=lambda run: (run.trial, run.order))


def _of_fold(
    plan: _Plan, fold: Fold, trial: int, merges: Sequence[str], draws: Iterable[int]
) -> list[Run]:
    """The runs of one division of the domains in one trial."""
    sources, rules = fold.sources, fold.rules
    base = plan.base(sources, trial)
    experts = plan.experts(sources, base)
    template = replace(
        experts[0],
        sources=sources,
        role="merged",
        experts=tuple(expert.key for expert in experts),
        params={},
        rules=rules,
        tested=fold.tested,
        unused=fold.unused,
        given={**_row_label(plan, base, experts), **fold.given},
    )
    merged = [_merged(plan, template, name, draw) for name in merges for draw in draws]
    compared = _baselines(plan, template, fold, base) if plan.baselines else []
    return [base, *experts, *compared, *merged]


def _baselines(plan: _Plan, template: Run, fold: Fold, base: Run) -> list[Run]:
    """The rows beside the merges, and the expert of the target that one of them needs."""
    targets = fold.tested or plan.dataset.without(*fold.sources)
    upper_bound = _upper_bound(plan, targets, base)
    both = tuple(name for name in RULES if name in fold.rules or RULES[name].is_oracle)
    bound = replace(
        template,
        method=MERGE_BASELINES[-1],
        experts=(upper_bound.key,),
        rules=both,
        # The expert has seen a part of the target.
        report="",
    )
    return [
        upper_bound,
        *(replace(template, method=name) for name in MERGE_BASELINES[:-1]),
        bound,
    ]


def _upper_bound(plan: _Plan, targets: tuple[str, ...], base: Run) -> Run:
    """The expert of the targets, by the first method that can train on as many domains."""
    for method in plan.methods:
        try:
            return plan.expert(method, targets, base)
        except IncompatibleMethodError:
            continue
    return plan.expert("erm", targets, base)


def _merged(plan: _Plan, template: Run, name: str, draw: int) -> Run:
    merge = registry.find("merges", name)
    settings = short_names(plan.settings, name)
    asked = settings.pop("scale", scale_of(merge))
    scale = check_scale(name, _drawn_scale(merge, asked, draw, template.trial))
    chosen, own = split_ranges(merge, settings)
    check_values(name, chosen)
    params = {**draw_values(merge, draw=draw, trial=template.trial, own=own), **chosen}
    # A scale other than 1 is always shown: the scale of earlier versions was 1.
    default = {**defaults(merge), "scale": 1.0}
    given = {
        f"{name}.{key}": value
        for key, value in {**chosen, "scale": scale}.items()
        if value != default[key]
    }
    given |= {f"{name}.{key}": settings[key] for key in own}
    if parse_range(asked):
        given[f"{name}.scale"] = asked
    params = {**without_neutral(merge, params), "scale": scale}
    return replace(
        template,
        method=name,
        params=params,
        draw=draw,
        given={**template.given, **given},
        code={**template.code, **own_code.digests(("merges", name))},
    )


def _drawn_scale(merge: Callable[..., Any], asked: Any, draw: int, trial: int) -> Any:
    """The scale of a draw, if a range was given; the first draw has the usual scale."""
    range_ = parse_range(asked)
    if range_ is None:
        return asked
    if draw == 0:
        return scale_of(merge)
    seed = derive_seed(seed_name(merge), "scale", draw, trial)
    return range_.draw(np.random.default_rng(seed), None)


def _row_label(plan: _Plan, base: Run, experts: Sequence[Run]) -> dict[str, Any]:
    """The settings that label a row: those chosen by hand for the experts, and their methods."""
    chosen = {name: value for expert in experts for name, value in expert.given.items()}
    given = {name: value for name, value in chosen.items() if "." not in name}
    of_methods = {name: value for name, value in chosen.items() if "." in name}
    by_hand = plan.base_steps and base.method != "linear_probe"
    if by_hand and base.steps != _warm_up(experts[0].steps):
        given["base_steps"] = base.steps
    if plan.expert_draws:
        given["expert_draws"] = plan.expert_draws
    if plan.methods != ("erm",) or of_methods:
        given["experts"] = "+".join(plan.methods)
    return {**given, **{name.replace(".", " "): value for name, value in of_methods.items()}}


def _warm_up(steps: int) -> int:
    return max(1, round(WARM_UP_SHARE * steps))
