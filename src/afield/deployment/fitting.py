"""From data to a model in use: trained on all domains, estimated and calibrated on held-out ones.

The model is trained on every domain, so nothing is left to measure it on. What can be measured is
its recipe: the same training with one domain left out, for each domain in turn (of many domains, a
share of them at once). These are ordinary runs: those of a benchmark in the store are used, and
what is missing is done.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from afield.compute import deterministic
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.deployment.estimates import (
    calibrate,
    estimate_accuracy,
    fit_distances,
    unseen_accuracies,
)
from afield.deployment.inputs import Inputs
from afield.deployment.model import Model, load
from afield.deployment.model_card import render_card
from afield.deployment.model_folder import (
    Architecture,
    Description,
    check_output_folder,
    write_model,
)
from afield.errors import DataError, SpecError
from afield.experiments.benchmarking import plan_run
from afield.experiments.finished import FinishedRun, reopen
from afield.experiments.pools import Local, Pool
from afield.experiments.protocol import hold_out as held_out_runs
from afield.experiments.protocol import leave_one_out
from afield.experiments.record import DEFAULT_RULES, Failure, Record, Run
from afield.experiments.remote_store import open_store
from afield.experiments.run_setup import load_domains
from afield.experiments.runner import execute, versions
from afield.experiments.store import Store, read_run_inputs
from afield.experiments.sweep import complete
from afield.networks.backbone import Classifier
from afield.progress import progress, track

__all__ = ["BEST", "describe_model", "fit"]

# The method that a benchmark in the store has shown to be best.
BEST = "best"
# Of more domains than that, a share is held out at once.
LEAVE_ONE_OUT_LIMIT = 12
HELD_OUT_SHARE = 0.25
# Trials that are looked for in a store.
MAX_TRIALS = 100


@dataclass(frozen=True)
class _Plan:
    """The training to be deployed, the runs that say what it is worth, and how it was chosen."""

    run: Run
    held_out: tuple[Run, ...]
    recipes: int = 1


def fit(
    dataset: str | Path,
    method: str,
    out: str | Path,
    *,
    store: str | Path | Store = "runs",
    average: str = "last",
    settings: Mapping[str, Any] | None = None,
    estimate: bool = True,
    trials: int = 1,
    hold_out: float = 0.0,
    licence: str = "",
    overwrite: bool = False,
    pool: Pool | None = None,
    threads: int = 1,
    device: str | None = None,
) -> Model:
    """Train on all domains, and write a folder that holds all that is needed to use the model.

    Parameters
    ----------
    dataset, method
        A name or the path of one's own data; the name of a method, or ``best`` for the recipe that
        did best on unseen domains in the benchmark that the store holds.
    out
        The folder to write.
    store
        The folder of the records.
    average, settings
        As in `leave_one_out`.
    estimate, trials
        Whether to hold domains out, to know what is to be expected of unseen ones, and how often;
        further trials that the store holds are used as well.
    hold_out
        The share of the domains to hold out at once; 0 is each in turn, or of more than twelve
        domains a quarter.
    licence
        Of the model, for its card.
    overwrite
        Whether the folder of another model may be replaced.
    pool, threads, device
        As in `complete` and `execute`.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as place:
    ...     options = {"store": f"{place}/runs", "settings": {"steps": 100}}
    ...     model = afield.fit("spirals", "erm", f"{place}/model", **options)
    >>> sorted(model.about.estimate.domains)
    ['turn0', 'turn10', 'turn20', 'turn30']
    """
    place = Path(out).expanduser()
    check_output_folder(place, overwrite=overwrite)
    keep = open_store(store)
    asked = _Asked(str(dataset), method, average, dict(settings or {}), trials, hold_out)
    plan = _best(asked, keep) if method == BEST else _planned(asked, keep, estimate=estimate)
    options: dict[str, Any] = {"threads": threads, "device": device}
    records = _held_out(plan.held_out, keep, pool or Local(), options) if estimate else []
    _trained(plan.run, keep, options)
    keep.fetch(plan.run.key, *(record.run.key for record in records))
    with deterministic(threads):
        # Not where the data lay for whoever did a run: the same may be elsewhere here.
        here: dict[str, Any] = {"dataset": plan.run.dataset, "device": device}
        subject = reopen(keep.folder(plan.run), **here)
        distances = fit_distances(subject)
        folders = [keep.folder(record.run) for record in records]
        calibration = calibrate(folders, **here) if folders else None
    about = replace(
        describe_model(subject, keep.folder(plan.run)),
        command=asked.command(place, keep.where(), estimate=estimate),
        licence=licence,
        estimate=estimate_accuracy(records, recipes=plan.recipes) if records else None,
        calibration=calibration,
    )
    weights = subject.model.state_dict()
    write_model(place, about, weights, distances, render_card(about), overwrite=overwrite)
    return load(place, device=device)


@dataclass(frozen=True)
class _Asked:
    """What was asked for."""

    dataset: str
    method: str
    average: str
    settings: dict[str, Any]
    trials: int
    hold_out: float

    def command(self, out: Path, store: str, *, estimate: bool) -> str:
        """What to type to have it again."""
        words = ["afield", "fit", self.dataset, self.method, "--out", str(out)]
        if self.method == BEST:
            # The card may be published: a name and a password in an address stay here.
            words += ["--store", re.sub(r"//[^/]*@", "//", store)]
        if self.average != "last":
            words += ["--average", self.average]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        if not estimate:
            words.append("--no-estimate")
        elif self.trials != 1:
            words += ["--trials", str(self.trials)]
        if self.hold_out:
            words += ["--hold-out", f"{self.hold_out:g}"]
        return shlex.join(words)


def describe_model(finished: FinishedRun, folder: Path) -> Description:
    """What a finished run says of its model; nothing yet of what it is worth."""
    run = finished.record.run
    dataset = find_dataset(run.dataset)
    wrapped = type(finished.model) is not Classifier
    told = read_run_inputs(folder)
    average = f"-{run.average}" if run.average != "last" else ""
    return Description(
        name=f"{dataset.name}-{run.method}{average}",
        classes=tuple(told["classes"]),
        sources=run.sources,
        inputs=_inputs(dataset, run, told),
        architecture=Architecture(
            backbone=run.backbone,
            freeze_bn=run.freeze_bn,
            wrapper=run.method if wrapped else "",
            params=dict(run.params) if wrapped else {},
        ),
        versions=versions(run),
        command="",
        # Where things lay on this machine is nobody else's business.
        run=replace(
            run,
            dataset=dataset.name,
            weights=Path(run.weights).name,
            given={name: value for name, value in run.given.items() if name != "weights"},
        ),
    )


def _inputs(dataset: DomainSet, run: Run, told: Mapping[str, Any]) -> Inputs:
    x = load_domains(dataset, run)[run.sources[0]].x
    dtype: Any = str(x.dtype).removeprefix("torch.")
    return Inputs(
        kind=dataset.modality.name,
        dtype=dtype,
        stored=tuple(x.shape[1:]),
        mean=tuple(told["mean"]),
        std=tuple(told["std"]),
        size=run.size,
        **dataset.modality.settings,
    )


def _planned(asked: _Asked, store: Store, *, estimate: bool) -> _Plan:
    run = plan_run(
        asked.dataset, asked.method, average=asked.average, settings=dict(asked.settings)
    )
    if not estimate:
        return _Plan(run, ())
    if asked.trials < 1:
        raise SpecError(f"trials={asked.trials}: at least one is needed; or use --no-estimate")
    dataset = find_dataset(asked.dataset)
    held_out: list[Run] = []
    for trial in range(MAX_TRIALS):
        runs = [_known(each, store) for each in _of_trial(asked, dataset, trial)]
        if trial >= asked.trials and not all(store.get(each) for each in runs):
            break
        held_out += runs
    return _Plan(run, tuple(held_out))


def _of_trial(asked: _Asked, dataset: DomainSet, trial: int) -> list[Run]:
    """The runs of a trial: each domain left out, or a share of them."""
    share = asked.hold_out
    if not share and len(dataset.domains) > LEAVE_ONE_OUT_LIMIT:
        share = HELD_OUT_SHARE
    options: dict[str, Any] = {"average": asked.average, "settings": asked.settings}
    options["trials"] = trial + 1
    if share:
        runs = held_out_runs(dataset, [asked.method], test=share, validate=0.0, **options)
    else:
        runs = leave_one_out(dataset, [asked.method], **options)
    return [run for run in runs if run.trial == trial]


def _known(run: Run, store: Store) -> Run:
    """The run as the store has it, if that was read on the unseen domains where it is deployed."""
    fewer = replace(run, rules=("sources",))
    return fewer if store.get(run) is None and store.get(fewer) is not None else run


def _held_out(
    runs: Sequence[Run], store: Store, pool: Pool, options: Mapping[str, Any]
) -> list[Record]:
    """The records of all of these runs; one that fails stops it all."""
    outcomes = complete(runs, store, pool=pool, **options)
    found = []
    for outcome in track(outcomes, "holding domains out", len(runs)):
        if isinstance(outcome, Failure):
            raise DataError(
                f"{outcome.run.key}: held out, a domain could not be read ({outcome.error}); mend "
                "it, or use --no-estimate"
            )
        found.append(outcome)
    place = {run.key: number for number, run in enumerate(runs)}
    return sorted(found, key=lambda record: place[record.run.key])


def _trained(run: Run, store: Store, options: Mapping[str, Any]) -> None:
    with progress(f"{run.method} on all domains", run.steps) as advance:
        execute(run, store, watch=lambda _, checkpoint: advance(checkpoint.step), **options)


def _best(asked: _Asked, store: Store) -> _Plan:
    """The recipe with the best mean over unseen domains, of those in the store."""
    if asked.settings or asked.average != "last":
        raise SpecError("best takes a recipe as it is in the store; give no other setting")
    dataset = find_dataset(asked.dataset)
    dataset.check_available()
    recipes = _whole_trials(store, dataset)
    if not recipes:
        raise DataError(
            f"{store.where()}: no benchmark of {dataset.name} there that has left out each domain; "
            f"run `afield bench {asked.dataset} --store {store.where()}` first, or name a method"
        )
    worth = {key: estimate_accuracy(records).accuracy for key, records in recipes.items()}
    chosen = recipes[max(worth, key=lambda key: worth[key])]
    # The data may lie elsewhere now.
    held_out = tuple(replace(record.run, dataset=dataset.spec) for record in chosen)
    first = min(held_out, key=lambda run: run.trial)
    run = replace(first, sources=dataset.domains, tested=(), unused=(), rules=DEFAULT_RULES)
    return _Plan(run, held_out, len(recipes))


def _whole_trials(store: Store, dataset: DomainSet) -> dict[str, list[Record]]:
    """For every recipe the records of those trials that have left out each domain."""
    trials: dict[tuple[str, int], dict[str, Record]] = {}
    for record in store:
        run = record.run
        same = run.data == dataset.fingerprint and (run.data or run.dataset == dataset.spec)
        if same and not run.role and not run.tested and len(record.unseen) == 1 and _read(record):
            key = replace(run, trial=0).recipe, run.trial
            trials.setdefault(key, {})[record.unseen[0]] = record
    found: dict[str, list[Record]] = {}
    for (recipe, _), records in trials.items():
        if set(records) == set(dataset.domains):
            found.setdefault(recipe, []).extend(records[name] for name in dataset.domains)
    return found


def _read(record: Record) -> bool:
    try:
        return bool(unseen_accuracies(record))
    except DataError:
        return False
