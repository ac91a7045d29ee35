"""From data to a model folder: train on all domains, estimate and calibrate on held-out domains.

The model is trained on every domain, so no domain is left to measure it on. What can be measured is
its recipe: the same training with one domain left out, for each domain in turn (with many domains,
with a share of them held out at once). These are ordinary runs: runs of a benchmark in the store
are reused, and missing ones are done.

A method is trained on features, as in `afield embed` or on photographs. The model folder then holds
the frozen network too, so that prediction and export start from images or texts.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from afield import own_code
from afield.compute import deterministic
from afield.data.bag_of_words import restore_vocabulary
from afield.data.domains import DomainSet
from afield.data.frames import split_spec
from afield.data.inputs import Inputs
from afield.data.lookup import find_dataset
from afield.data.scaling import TableScaling
from afield.deployment.adapter_folder import base_of, check_adapter_only, without_base
from afield.deployment.distances import MAHALANOBIS
from afield.deployment.estimates import calibrate, estimate_accuracy, fit_strangeness
from afield.deployment.front_encoder import build_encoder, put_encoder_in_front
from afield.deployment.input_statistics import measure_training_data
from afield.deployment.model import Model, load
from afield.deployment.model_card import render_card
from afield.deployment.model_folder import (
    Architecture,
    Description,
    Estimate,
    check_output_folder,
    write_model,
)
from afield.deployment.recipes import (
    choose_recipe,
    complete_recipes,
    estimate_choice,
    plan_whole,
    recipes_on_features,
)
from afield.errors import DataError, SpecError
from afield.networks.backbone import Classifier, find_backbone
from afield.networks.ensemble import EnsembleNetwork
from afield.progress import progress, track
from afield.runs.finished import FinishedRun, reopen
from afield.runs.pool import Pool, default_pool
from afield.runs.record import Failure, Record
from afield.runs.run import Run, name_without_path
from afield.runs.run_files import read_record, read_run_inputs
from afield.runs.run_setup import load_domains, versions
from afield.runs.runner import execute
from afield.runs.store import Store, open_store
from afield.runs.sweep import complete
from afield.studies.benchmark import OPTIONS
from afield.studies.checks import check_unseen_classes, possible_runs, read_classes
from afield.studies.commands import write_command
from afield.studies.features import use_features
from afield.studies.planning import adapted_runs, method_runs, training_runs
from afield.studies.protocol import Protocol
from afield.studies.settings import check_settings, settings_of
from afield.training.own_classifier import check_stored

log = logging.getLogger(__name__)

# Settings whose values may be paths, which a command does not show.
WITH_PATHS = ("backbone", "weights")
# The name that stands for the best recipe of a benchmark in the store.
BEST = "best"
# The word for a model that does not adapt to the files that it predicts.
NO_ADAPTATION = "none"
# Datasets with more domains than this hold out a share of them at once.
LEAVE_ONE_OUT_LIMIT = 12
# Each domain is left out once.
ONE_TRIAL = Protocol(trials=1)
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True)
class FitRequest:
    """The arguments of `fit` that determine which runs it needs."""

    dataset: str
    method: str
    average: str = "last"
    settings: Mapping[str, Any] | None = None
    estimate: bool = True
    protocol: Protocol = ONE_TRIAL
    classes: str | None = None
    finetune: bool | None = None
    start: str = ""
    adapt: str = ""
    ensemble: int | None = None
    adapter_only: bool = False

    def __post_init__(self) -> None:
        OPTIONS["ensemble"].check("ensemble", self.ensemble)
        if self.ensemble and self.adapt not in ("", NO_ADAPTATION):
            raise SpecError("--adapt changes one network; remove --adapt or --ensemble")

    @property
    def parts(self) -> list[str]:
        """The names whose settings training takes: method, average and start."""
        return [self.method, self.average, *filter(None, [self.start])]

    @property
    def choices(self) -> list[str]:
        """The options that were given and that the records of a benchmark decide for `best`.

        Broken files are skipped if they were skipped in the benchmark.
        """
        given = {
            "--average": self.average != "last",
            "--classes": self.classes,
            "--ensemble": self.ensemble,
            "--finetune": self.finetune,
            "--no-finetune": self.finetune is False,
            "--start": self.start,
            f"--adapt {self.adapt}": self.adapt not in ("", NO_ADAPTATION),
        }
        settings = [f"{k}={v}" for k, v in (self.settings or {}).items() if k != "skip_broken"]
        return [*(name for name, is_given in given.items() if is_given), *settings]

    def command(self, out: Path, store: str) -> str:
        """The command that makes the same model again."""
        # The model card may be published: paths, user names and passwords do not belong in it.
        options: list[tuple[str, Any]] = [
            ("out", out.name),
            ("store", Path(store).name if self.method == BEST else ""),
            ("average", "" if self.average == "last" else self.average),
            ("classes", self.classes),
            ("start", self.start),
            ("ensemble", self.ensemble),
            ("adapt", self.adapt),
            ("finetune", self.finetune),
            ("adapter_only", self.adapter_only or None),
        ]
        for name, setting in (self.settings or {}).items():
            shown = name_without_path(setting) if name in WITH_PATHS else setting
            options.append(("set", f"{name}={shown}"))
        if not self.estimate:
            options.append(("estimate", False))
        elif self.protocol.trials != 1:
            options.append(("trials", self.protocol.trials))
        if self.protocol.hold_out:
            options.append(("hold_out", f"{self.protocol.hold_out:g}"))
        return write_command("fit", Path(self.dataset).name, self.method, options=options)


@dataclass(frozen=True)
class FitPlan:
    """The run to deploy, and the same training with domains held out.

    `needed` are the runs that it is made from: the base and the experts of a merge, the members of
    an ensemble, or the run that fits the head to start from; `held_out` has those of its runs as
    well. If the model is to adapt to the files that it predicts,
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
    *needed, run = training_runs(
        dataset,
        request.method,
        Protocol(left_out=(), trials=1),
        average=request.average,
        start=request.start,
        settings=request.settings or {},
        ensemble=request.ensemble,
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
    protocol = request.protocol
    if not protocol.hold_out and len(dataset.domains) > LEAVE_ONE_OUT_LIMIT:
        protocol = replace(protocol, hold_out=HELD_OUT_SHARE)
    if protocol.hold_out:
        protocol = replace(protocol, validate=0.0)
    known_classes = read_classes(dataset, request.settings, request.classes)

    def plan(protocol: Protocol) -> list[Run]:
        runs = method_runs(
            dataset,
            [request.method],
            protocol,
            average=request.average,
            start=request.start,
            ensemble=request.ensemble,
            settings=request.settings,
            known_classes=known_classes,
        )
        return [_as_stored(run, store) for run in runs]

    held_out = plan(protocol)
    check_unseen_classes(dataset, held_out)
    further = replace(protocol, trials=1, first_trial=protocol.trials)
    while _has_more(store, request.method, held_out):
        runs = plan(further)
        if not all(store.get(run) for run in runs):
            break
        held_out += runs
        further = replace(further, first_trial=further.first_trial + 1)
    return held_out


def _has_more(store: Store, method: str, planned: Sequence[Run]) -> bool:
    """Whether the store has other runs of a method than these, which may be further trials."""
    known = {run.key for run in planned}
    return any(key.rpartition("-")[0] == method for key in store.done() - known)


def _as_stored(run: Run, store: Store) -> Run:
    """The run, or the same run with fewer rules if that is what the store has."""
    fewer = replace(run, rules=("sources",))
    return fewer if store.get(run) is None and store.get(fewer) is not None else run


def _plan_best(request: FitRequest, store: Store) -> FitPlan:
    """Plan the recipe in the store with the best mean accuracy on unseen domains."""
    if given := request.choices:
        raise SpecError(
            f"{BEST!r} takes method and settings from the store; remove {', '.join(given)}"
        )
    dataset = find_dataset(request.dataset)
    dataset.check_available()
    on_features = recipes_on_features(store, dataset)
    recipes = [*complete_recipes(store, dataset), *(recipe for recipe, _ in on_features)]
    if request.adapt == NO_ADAPTATION:
        recipes = [recipe for recipe in recipes if not recipe.run.adaptation]
    if not recipes:
        raise DataError(
            f"{store.where()}: no benchmark of {dataset.name} there that has left out each domain; "
            f"run `afield bench {request.dataset} --store {store.where()}` first, or name a method"
        )
    best = choose_recipe(recipes, dataset.domains)
    choices = next((made for recipe, made in on_features if recipe is best), None)
    if choices is not None:
        dataset, _ = use_features(dataset, choices[0], finetune=choices[1])
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


def fit(
    dataset: str | Path,
    method: str,
    out: str | Path,
    *,
    store: str | Path | Store = "runs",
    average: str = "last",
    classes: str | None = None,
    finetune: bool | None = None,
    start: str = "",
    adapt: str = "",
    ensemble: int | None = None,
    settings: Mapping[str, Any] | None = None,
    adapter_only: bool = False,
    estimate: bool = True,
    trials: int = 1,
    hold_out: float = 0.0,
    held_out: bool = True,
    license: str = "",  # noqa: A002  the word of the command line and of the hub
    overwrite: bool = False,
    pool: Pool | None = None,
    threads: int = 1,
    device: str | None = None,
) -> Model:
    """Train on all domains, and write a folder with everything that is needed to use the model.

    Parameters
    ----------
    dataset
        The name of a dataset, or the path of your own data.
    method
        The name of a method, or ``best`` for the recipe with the best accuracy on unseen domains in
        the benchmark that the store holds.
    out
        The folder to write.
    store
        The folder of the records, or its address.
    average, settings
        As in `method_runs`.
    classes
        Which classes the models of the estimate know: ``sources`` or ``all``, as in a benchmark.
        The model itself knows the classes of all domains.
    finetune
        Whether to train a pretrained network itself, or a small one on its features; as in a
        benchmark. A model on features takes images all the same.
    start
        As in a benchmark: ``linear_probe`` starts from a head fitted on frozen features.
    adapt
        The test-time adaptation that the model is meant for; the estimate is then that of adapted
        models, and ``afield predict`` adapts. With ``best``, ``none`` leaves adapted models out.
    ensemble
        The number of trainings, with other seeds, whose mean prediction is the model.
    adapter_only
        Whether the folder has what LoRA has changed (with the setting `tune`), and of the network
        that it started from the name and the digest, instead of all weights.
    estimate
        Whether to hold out domains, to estimate the accuracy and calibrate confidences.
    trials
        How often to hold out each domain; further trials in the store are used as well.
    hold_out
        The share of the domains to hold out at once. 0 means each domain in turn, or a quarter of
        the domains if there are more than twelve.
    held_out
        Whether to keep logits, labels and distances of held-out domains, which `estimate` needs.
    license
        The license of the model, for its card.
    overwrite
        Whether the folder of another model may be replaced.
    pool, threads, device
        As in `complete` and `execute`.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = {"store": f"{folder}/runs", "settings": {"steps": 100}}
    ...     model = afield.fit("spirals", "erm", f"{folder}/model", **options)
    >>> sorted(model.about.estimate.domains)
    ['turn0', 'turn10', 'turn20', 'turn30']
    """
    path = Path(out).expanduser()
    check_output_folder(path, overwrite=overwrite)
    check_stored(method)
    words = {"dataset": str(dataset), "method": method, "average": average}
    dataset, method, average = own_code.accept(words).values()
    opened = open_store(store)
    request = FitRequest(
        str(dataset),
        method,
        average,
        dict(settings or {}),
        estimate,
        Protocol(trials=trials, hold_out=hold_out),
        classes,
        finetune,
        start,
        adapt,
        ensemble,
        adapter_only,
    )
    plan = plan_fit(request, opened)
    check_stored(plan.run.method)
    options: dict[str, Any] = {"threads": threads, "device": device}
    # Before anything is trained: its weights may be missing.
    encoder = build_encoder(find_dataset(plan.run.dataset))
    if adapter_only:
        check_adapter_only(plan.run)
    pool = pool or default_pool()
    records = _do_held_out(plan.held_out, opened, pool, options) if estimate else []
    adapted = _do_held_out(plan.adapted, opened, pool, options) if estimate else []
    _do_needed(plan.needed, opened, pool, options)
    _do_whole(plan.run, opened, options)
    for run in (plan.run, *(record.run for record in records)):
        opened.fetch(run.key, *run.members)
    with deterministic(threads):
        # The data may be in another folder here than where a run was done.
        here: dict[str, Any] = {"dataset": plan.run.dataset, "device": device}
        finished = reopen(opened.folder(plan.run), **here)
        strangeness = fit_strangeness(finished)
        folders = [opened.folder(record.run) for record in records]
        classes = read_run_inputs(opened.folder(plan.run))["classes"]
        here |= {"classes": classes, "keep_samples": held_out}
        calibration, outputs = calibrate(folders, **here) if folders else (None, [])
        score = calibration.score if calibration else MAHALANOBIS
        strangeness = strangeness.choose(score)
    described, network = describe_model(finished, opened.folder(plan.run)), finished.model
    if encoder is not None:
        origin = str(find_dataset(plan.run.dataset).provenance.get("dataset", ""))
        described, network = put_encoder_in_front(described, network, *encoder, dataset=origin)
    adaptation = plan.adaptation
    statistics = measure_training_data(described.inputs, plan.run, encoder and encoder[0])
    about = replace(
        described,
        adaptation=adaptation.adaptation if adaptation else "",
        adaptation_params=dict(adaptation.adaptation_params) if adaptation else {},
        command=request.command(path, opened.where()),
        license=license,
        estimate=(plan.estimate or estimate_accuracy(adapted or records)) if records else None,
        calibration=calibration,
        statistics=statistics if held_out else {},
    )
    weights, config = network.state_dict(), None
    if adapter_only:
        about, weights, config = without_base(about, network, opened.folder(plan.run), plan.run)
    write_model(
        path,
        about,
        weights,
        strangeness,
        render_card(about),
        held_out=outputs if held_out else (),
        overwrite=overwrite,
        config=config,
    )
    return load(path, device=device, base=base_of(plan.run) if adapter_only else None)


def describe_model(finished: FinishedRun, folder: Path) -> Description:
    """Describe the model of a finished run, without an estimate of its accuracy."""
    run = finished.record.run
    dataset = find_dataset(run.dataset)
    model = finished.model
    first = model.members[0] if isinstance(model, EnsembleNetwork) else model
    wrapped = type(first) is not Classifier
    run_inputs = read_run_inputs(folder)
    average = f"-{run.average}" if run.average != "last" else ""
    average += f"-x{len(run.members)}" if run.members else ""
    return Description(
        name=f"{dataset.name}-{run.method}{average}",
        classes=tuple(run_inputs["classes"]),
        sources=run.sources,
        inputs=_describe_inputs(dataset, run, run_inputs),
        architecture=Architecture(
            backbone=run.backbone,
            freeze_bn=run.freeze_bn,
            wrapper=run.method if wrapped else "",
            params=dict(run.params) if wrapped else {},
            members=len(run.members),
        ),
        versions=versions(run),
        command="",
        # Paths on this machine are private: keep names only.
        run=replace(
            run,
            dataset=dataset.name,
            weights=Path(run.weights).name,
            given={name: value for name, value in run.given.items() if name != "weights"},
        ),
    )


def _describe_inputs(dataset: DomainSet, run: Run, run_inputs: Mapping[str, Any]) -> Inputs:
    x = load_domains(dataset, run)[run.sources[0]].x
    settings: dict[str, Any] = dict(dataset.modality.settings)
    if run.tokens:
        column = split_spec(run.dataset)[1].text
        settings = {"tokenizer": find_backbone(run.backbone).tokenizer, "column": column}
    dtype: Any = str(x.dtype).removeprefix("torch.")
    table = TableScaling.from_dict(run_inputs).columns if "table" in run_inputs else ()
    return Inputs(
        kind=dataset.modality.name,
        dtype=dtype,
        # A model is given the columns that it uses, which those that name the rows are not.
        stored=(len(table),) if table else tuple(x.shape[1:]),
        mean=tuple(run_inputs["mean"]),
        std=tuple(run_inputs["std"]),
        size=run.size,
        table=table,
        vocabulary=restore_vocabulary(run_inputs) if "vocabulary" in run_inputs else None,
        **settings,
    )


def _do_held_out(
    runs: Sequence[Run], store: Store, pool: Pool, options: Mapping[str, Any]
) -> list[Record]:
    """Complete the held-out runs and return their records in order; raise if one fails.

    Runs from which others are made have no record in the result.
    """
    outcomes = complete(runs, store, pool=pool, **options)
    members = {key for run in runs for key in run.members}
    records = []
    for outcome in track(outcomes, "holding domains out", len(runs)):
        if isinstance(outcome, Failure):
            raise DataError(
                f"{outcome.run.key}: this run with held-out domains failed ({outcome.error}); fix "
                "the cause, or use --no-estimate"
            )
        if not outcome.run.is_auxiliary and outcome.run.key not in members:
            records.append(outcome)
    order = {run.key: number for number, run in enumerate(runs)}
    return sorted(records, key=lambda record: order[record.run.key])


def _do_needed(runs: Sequence[Run], store: Store, pool: Pool, options: Mapping[str, Any]) -> None:
    """Train what the model is made from, on all domains: parts of a merge, or a head to start."""
    outcomes = complete(runs, store, pool=pool, **options) if runs else ()
    for outcome in track(outcomes, "its parts on all domains", len(runs)):
        if isinstance(outcome, Failure):
            raise DataError(f"{outcome.run.key}: this part of the model failed ({outcome.error})")


def _do_whole(run: Run, store: Store, options: Mapping[str, Any]) -> None:
    name = f"ensemble of {run.method}" if run.members else run.method
    with progress(f"{name} on all domains", run.steps) as advance:
        execute(run, store, watch=lambda _, checkpoint: advance(checkpoint.step), **options)
