"""Which runs `fit` needs: the training to deploy, and the held-out runs that estimate it."""

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from afield.data.class_lists import ClassesByDomain
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.deployment.merged_recipes import is_merge, plan_whole_merge
from afield.deployment.model_folder import Estimate
from afield.deployment.recipes import Recipe, choose_recipe, complete_recipes, estimate_choice
from afield.errors import DataError, SpecError
from afield.experiments.frozen.encoder import Encoder
from afield.experiments.frozen.photographs import feature_identity, plan_features, use_features
from afield.experiments.known_classes import check_unseen_classes, read_classes
from afield.experiments.planning import plan_run
from afield.experiments.protocol import hold_out, leave_one_out
from afield.experiments.record import Run
from afield.experiments.selection import DEFAULT_RULES
from afield.experiments.settings import resolve_epochs
from afield.experiments.store import Store

__all__ = ["BEST", "FitPlan", "FitRequest", "plan_fit"]

log = logging.getLogger(__name__)

# The name that stands for the best recipe of a benchmark in the store.
BEST = "best"
# Datasets with more domains than this hold out a share of them at once.
LEAVE_ONE_OUT_LIMIT = 12
HELD_OUT_SHARE = 0.25
# The largest number of trials to look for in a store.
MAX_TRIALS = 100


@dataclass(frozen=True)
class FitRequest:
    """The arguments of `fit` that determine which runs it needs."""

    dataset: str
    method: str
    average: str = "last"
    settings: Mapping[str, Any] | None = None
    estimate: bool = True
    trials: int = 1
    hold_out: float = 0.0
    classes: str | None = None
    finetune: bool | None = None

    def command(self, out: Path, store: str) -> str:
        """The command that makes the same model again."""
        # The model card may be published: paths, user names and passwords do not belong in it.
        words = ["afield", "fit", Path(self.dataset).name, self.method, "--out", out.name]
        if self.method == BEST:
            words += ["--store", Path(store).name]
        if self.average != "last":
            words += ["--average", self.average]
        if self.classes:
            words += ["--classes", self.classes]
        words += {None: [], True: ["--finetune"], False: ["--no-finetune"]}[self.finetune]
        for name, value in (self.settings or {}).items():
            words += ["--set", f"{name}={value}"]
        if not self.estimate:
            words.append("--no-estimate")
        elif self.trials != 1:
            words += ["--trials", str(self.trials)]
        if self.hold_out:
            words += ["--hold-out", f"{self.hold_out:g}"]
        return shlex.join(words)


@dataclass(frozen=True)
class FitPlan:
    """The run to deploy, and the same training with domains held out.

    `needed` are the base and the experts of a merge. `estimate` is set if the recipe was chosen
    among several: then the held-out runs of this recipe alone would promise too much.
    """

    run: Run
    held_out: tuple[Run, ...]
    estimate: Estimate | None = None
    needed: tuple[Run, ...] = ()


def plan_fit(request: FitRequest, store: Store) -> FitPlan:
    """Plan the runs of `fit`; runs that the store has already are planned as it has them."""
    if request.method == BEST:
        return _plan_best(request, store)
    found = find_dataset(request.dataset)
    found.check_available()
    dataset, settings = use_features(found, request.settings or {}, finetune=request.finetune)
    request = replace(request, settings=settings)
    run = plan_run(dataset.spec, request.method, average=request.average, settings=settings)
    if not request.estimate:
        return FitPlan(run, ())
    if request.trials < 1:
        raise SpecError(f"trials={request.trials}: must be at least 1; or use --no-estimate")
    known_classes = read_classes(dataset, settings, request.classes)
    held_out: list[Run] = []
    for trial in range(MAX_TRIALS):
        planned = _plan_trial(request, dataset, trial, known_classes)
        if not trial:
            check_unseen_classes(dataset, planned)
        runs = [_as_stored(run, store) for run in planned]
        if trial >= request.trials and not all(store.get(run) for run in runs):
            break
        held_out += runs
    return FitPlan(run, tuple(held_out))


def _plan_trial(
    request: FitRequest, dataset: DomainSet, trial: int, known_classes: ClassesByDomain | None
) -> list[Run]:
    """The runs of one trial: each domain left out in turn, or a share of the domains held out."""
    share = request.hold_out
    if not share and len(dataset.domains) > LEAVE_ONE_OUT_LIMIT:
        share = HELD_OUT_SHARE
    options: dict[str, Any] = {
        "average": request.average,
        "settings": request.settings or {},
        "trials": trial + 1,
        "known_classes": known_classes,
    }
    if share:
        runs = hold_out(dataset, [request.method], hold_out=share, validate=0.0, **options)
    else:
        runs = leave_one_out(dataset, [request.method], **options)
    return [run for run in runs if run.trial == trial]


def _as_stored(run: Run, store: Store) -> Run:
    """The run, or the same run with fewer rules if that is what the store has."""
    fewer = replace(run, rules=("sources",))
    return fewer if store.get(run) is None and store.get(fewer) is not None else run


def _plan_best(request: FitRequest, store: Store) -> FitPlan:
    """Plan the recipe in the store with the best mean accuracy on unseen domains."""
    given = request.settings or request.classes or request.finetune is not None
    if given or request.average != "last":
        raise SpecError(
            f"{BEST!r} takes method and settings from the store; remove --average, --classes, "
            "--finetune and all settings"
        )
    dataset = find_dataset(request.dataset)
    dataset.check_available()
    recipes = complete_recipes(store, dataset)
    on_features = _recipes_on_features(store, dataset)
    if not recipes and not on_features:
        raise DataError(
            f"{store.where()}: no benchmark of {dataset.name} there that has left out each domain; "
            f"run `afield bench {request.dataset} --store {store.where()}` first, or name a method"
        )
    recipes = [*recipes, *on_features]
    best = choose_recipe(recipes, dataset.domains)
    if best in on_features:
        dataset, _ = use_features(dataset, {})
    runs = [record.run for name in dataset.domains for record in best.left_out(name)]
    # The data may be in another folder now.
    held_out = tuple(
        replace(run, dataset=dataset.spec) for run in sorted(runs, key=lambda run: run.trial)
    )
    estimate = estimate_choice(recipes, dataset.domains)
    _name_better_adaptation(store, dataset, best)
    if is_merge(held_out[0]):
        needed, merged = plan_whole_merge(held_out[0], store, dataset)
        return FitPlan(merged, held_out, estimate, tuple(needed))
    # All domains are sources, so the model knows the classes of all.
    run = replace(
        held_out[0],
        sources=dataset.domains,
        tested=(),
        unused=(),
        classes=(),
        rules=DEFAULT_RULES,
    )
    run = resolve_epochs(run, dataset)
    return FitPlan(run, held_out, estimate)


def _recipes_on_features(store: Store, dataset: DomainSet) -> list[Recipe]:
    """The recipes of a folder of photographs that were trained on its features."""
    encoder = plan_features(dataset, {})
    if not isinstance(encoder, Encoder):
        return []
    identity = feature_identity(dataset, encoder, {})
    return complete_recipes(store, replace(dataset, fingerprint=identity))


def _name_better_adaptation(store: Store, dataset: DomainSet, best: Recipe) -> None:
    """Log the adapted recipe that is better than the best one; a model adapts when it predicts."""
    adapted = complete_recipes(store, dataset, adapted=True)
    if not adapted:
        return
    better = choose_recipe(adapted, dataset.domains)
    means = [fmean(each.accuracy(name) for name in dataset.domains) for each in (best, better)]
    run, *_ = (record.run for name in dataset.domains for record in better.left_out(name))
    if means[1] > means[0]:
        log.warning(
            "%s with --adapt %s reached %.1f %% on unseen domains, above %.1f %%; try "
            "`afield predict --adapt %s`",
            run.method,
            run.adaptation,
            100 * means[1],
            100 * means[0],
            run.adaptation,
        )
