"""Which runs `fit` needs: the training to deploy, and the held-out runs that estimate it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from afield.data.class_lists import ClassesByDomain
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.deployment.merged_recipes import plan_whole
from afield.deployment.model_folder import Estimate
from afield.deployment.recipes import Recipe, choose_recipe, complete_recipes, estimate_choice
from afield.errors import DataError, SpecError
from afield.experiments.derived.combinations import adapted_runs, possible_runs
from afield.experiments.frozen.encoder import Encoder
from afield.experiments.frozen.photographs import feature_identity, plan_features, use_features
from afield.experiments.known_classes import check_unseen_classes, read_classes
from afield.experiments.planning import plan_training
from afield.experiments.protocol import hold_out, leave_one_out
from afield.experiments.record import Run
from afield.experiments.run import name_without_path
from afield.experiments.settings import check_settings, settings_of
from afield.experiments.store import Store, read_record

__all__ = ["BEST", "NO_ADAPTATION", "FitPlan", "FitRequest", "plan_fit"]

# The name that stands for the best recipe of a benchmark in the store.
BEST = "best"
# The word for a model that does not adapt to the files that it predicts.
NO_ADAPTATION = "none"
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
    start: str = ""
    adapt: str = ""

    @property
    def parts(self) -> list[str]:
        """The names whose settings training takes: method, average and start."""
        return [self.method, self.average, *filter(None, [self.start])]

    def command(self, out: Path, store: str) -> str:
        """The command that makes the same model again."""
        # The model card may be published: paths, user names and passwords do not belong in it.
        words = ["afield", "fit", Path(self.dataset).name, self.method, "--out", out.name]
        options = {
            "--store": Path(store).name if self.method == BEST else "",
            "--average": self.average if self.average != "last" else "",
            "--classes": self.classes,
            "--start": self.start,
            "--adapt": self.adapt,
        }
        for option, value in options.items():
            words += [option, value] if value else []
        words += {None: [], True: ["--finetune"], False: ["--no-finetune"]}[self.finetune]
        for name, setting in (self.settings or {}).items():
            shown = name_without_path(setting) if name == "backbone" else setting
            words += ["--set", f"{name}={shown}"]
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

    `needed` are the runs that it is made from: the base and the experts of a merge, or the run that
    fits the head to start from. If the model is to adapt to the files that it predicts,
    `adaptation` is an adapted run, and `adapted` are the held-out runs once more, adapted.
    `estimate` is set if the recipe was chosen among several: then the held-out runs of this recipe
    alone would promise too much.
    """

    run: Run
    held_out: tuple[Run, ...]
    estimate: Estimate | None = None
    needed: tuple[Run, ...] = ()
    adaptation: Run | None = None
    adapted: tuple[Run, ...] = ()


def plan_fit(request: FitRequest, store: Store) -> FitPlan:
    """Plan the runs of `fit`; runs that the store has already are planned as it has them."""
    if request.method == BEST:
        return _plan_best(request, store)
    found = find_dataset(request.dataset)
    found.check_available()
    dataset, settings = use_features(found, request.settings or {}, finetune=request.finetune)
    adapting = [] if request.adapt in ("", NO_ADAPTATION) else [request.adapt]
    check_settings(settings, [*request.parts, *adapting])
    request = replace(request, settings=settings_of(settings, *request.parts))
    *needed, run = plan_training(
        dataset.spec,
        request.method,
        average=request.average,
        start=request.start,
        settings=request.settings,
    )
    adapted = adapted_runs([run], adapting, settings)
    possible_runs(dataset, adapted, every=False)
    plan = FitPlan(run, (), needed=tuple(needed), adaptation=next(iter(adapted), None))
    if not request.estimate:
        return plan
    held_out = _plan_held_out(request, dataset, store)
    return replace(
        plan,
        held_out=tuple(held_out),
        adapted=tuple(adapted_runs(held_out, adapting, settings)),
    )


def _plan_held_out(request: FitRequest, dataset: DomainSet, store: Store) -> list[Run]:
    """The runs with domains held out: the trials that are asked for, and more if they are done."""
    if request.trials < 1:
        raise SpecError(f"trials={request.trials}: must be at least 1; or use --no-estimate")
    known_classes = read_classes(dataset, request.settings, request.classes)
    held_out: list[Run] = []
    for trial in range(MAX_TRIALS):
        planned = _plan_trial(request, dataset, trial, known_classes)
        if not trial:
            check_unseen_classes(dataset, planned)
        runs = [_as_stored(run, store) for run in planned]
        if trial >= request.trials and not all(store.get(run) for run in runs):
            break
        held_out += runs
    return held_out


def _plan_trial(
    request: FitRequest, dataset: DomainSet, trial: int, known_classes: ClassesByDomain | None
) -> list[Run]:
    """The runs of one trial: each domain left out in turn, or a share of the domains held out."""
    share = request.hold_out
    if not share and len(dataset.domains) > LEAVE_ONE_OUT_LIMIT:
        share = HELD_OUT_SHARE
    options: dict[str, Any] = {
        "average": request.average,
        "start": request.start,
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
    given = request.settings or request.classes or request.start or request.average != "last"
    if given or request.finetune is not None or request.adapt not in ("", NO_ADAPTATION):
        raise SpecError(
            f"{BEST!r} takes method and settings from the store; remove --average, --classes, "
            f"--finetune, --start, --adapt (unless it is {NO_ADAPTATION}) and all settings"
        )
    dataset = find_dataset(request.dataset)
    dataset.check_available()
    on_features = _recipes_on_features(store, dataset)
    recipes = [*complete_recipes(store, dataset), *on_features]
    if request.adapt == NO_ADAPTATION:
        recipes = [recipe for recipe in recipes if not recipe.run.adaptation]
    if not recipes:
        raise DataError(
            f"{store.where()}: no benchmark of {dataset.name} there that has left out each domain; "
            f"run `afield bench {request.dataset} --store {store.where()}` first, or name a method"
        )
    best = choose_recipe(recipes, dataset.domains)
    if best in on_features:
        dataset, _ = use_features(dataset, {})
    runs = [record.run for name in dataset.domains for record in best.left_out(name)]
    runs.sort(key=lambda run: run.trial)
    trained = _without_adaptation(runs, store)
    needed, run = plan_whole(trained[0], store, dataset)
    # The data may be in another folder now.
    here: dict[str, Any] = {"dataset": dataset.spec}
    return FitPlan(
        run,
        tuple(replace(each, **here) for each in trained),
        estimate_choice(recipes, dataset.domains),
        tuple(needed),
        runs[0] if best.run.adaptation else None,
        tuple(replace(each, **here) for each in runs if each.adaptation),
    )


def _without_adaptation(runs: Sequence[Run], store: Store) -> list[Run]:
    """The runs themselves, or those whose models they adapt."""
    store.fetch(*(run.base for run in runs if run.adaptation))
    return [read_record(store.root / run.base).run if run.adaptation else run for run in runs]


def _recipes_on_features(store: Store, dataset: DomainSet) -> list[Recipe]:
    """The recipes of a folder of photographs that were trained on its features."""
    encoder = plan_features(dataset, {})
    if not isinstance(encoder, Encoder):
        return []
    identity = feature_identity(dataset, encoder, {})
    return complete_recipes(store, replace(dataset, fingerprint=identity))
