"""From data to a model folder: train on all domains, estimate and calibrate on held-out domains.

The model is trained on every domain, so no domain is left to measure it on. What can be measured is
its recipe: the same training with one domain left out, for each domain in turn (with many domains,
with a share of them held out at once). These are ordinary runs: runs of a benchmark in the store
are reused, and missing ones are done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afield import own_code
from afield.compute import deterministic
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.data.sources.table_columns import split_spec
from afield.data.sources.table_scaling import TableScaling
from afield.deployment.encoding import build_encoder, put_encoder_in_front
from afield.deployment.estimates import calibrate, estimate_accuracy, fit_distances
from afield.deployment.fit_plan import FitRequest, plan_fit
from afield.deployment.inputs import Inputs
from afield.deployment.model import Model, load
from afield.deployment.model_card import render_card
from afield.deployment.model_folder import (
    Architecture,
    Description,
    check_output_folder,
    write_model,
)
from afield.errors import DataError
from afield.experiments.derived.execution import execute_derived
from afield.experiments.finished import FinishedRun, reopen
from afield.experiments.pools import Local, Pool
from afield.experiments.record import Failure, Record, Run
from afield.experiments.run_setup import load_domains, versions
from afield.experiments.runner import execute
from afield.experiments.store import Store, open_store, read_run_inputs
from afield.experiments.sweep import complete
from afield.networks.backbone import Classifier, find_backbone
from afield.progress import progress, track

__all__ = ["describe_model", "fit"]


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
    settings: Mapping[str, Any] | None = None,
    estimate: bool = True,
    trials: int = 1,
    hold_out: float = 0.0,
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
        As in `leave_one_out`.
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
    estimate
        Whether to hold out domains, to estimate the accuracy on unseen domains and to calibrate
        confidences for them.
    trials
        How often to hold out each domain; further trials in the store are used as well.
    hold_out
        The share of the domains to hold out at once. 0 means each domain in turn, or a quarter of
        the domains if there are more than twelve.
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
    words = {"dataset": str(dataset), "method": method, "average": average}
    dataset, method, average = own_code.accept(words).values()
    opened = open_store(store)
    request = FitRequest(
        str(dataset),
        method,
        average,
        dict(settings or {}),
        estimate,
        trials,
        hold_out,
        classes,
        finetune,
        start,
        adapt,
    )
    plan = plan_fit(request, opened)
    options: dict[str, Any] = {"threads": threads, "device": device}
    # Before anything is trained: its weights may be missing.
    encoder = build_encoder(find_dataset(plan.run.dataset))
    pool = pool or Local()
    records = _do_held_out(plan.held_out, opened, pool, options) if estimate else []
    adapted = _do_held_out(plan.adapted, opened, pool, options) if estimate else []
    _do_needed(plan.needed, opened, pool, options)
    if plan.run.experts:
        execute_derived(plan.run, opened, **options)
    else:
        _train(plan.run, opened, options)
    opened.fetch(plan.run.key, *(record.run.key for record in records))
    with deterministic(threads):
        # The data may be in another folder here than where a run was done.
        here: dict[str, Any] = {"dataset": plan.run.dataset, "device": device}
        finished = reopen(opened.folder(plan.run), **here)
        distances = fit_distances(finished)
        folders = [opened.folder(record.run) for record in records]
        calibration = calibrate(folders, **here) if folders else None
    described, network = describe_model(finished, opened.folder(plan.run)), finished.model
    if encoder is not None:
        origin = str(find_dataset(plan.run.dataset).provenance.get("dataset", ""))
        described, network = put_encoder_in_front(described, network, *encoder, dataset=origin)
    adaptation = plan.adaptation
    about = replace(
        described,
        adaptation=adaptation.adaptation if adaptation else "",
        adaptation_params=dict(adaptation.adaptation_params) if adaptation else {},
        command=request.command(path, opened.where()),
        license=license,
        estimate=(plan.estimate or estimate_accuracy(adapted or records)) if records else None,
        calibration=calibration,
    )
    weights = network.state_dict()
    write_model(path, about, weights, distances, render_card(about), overwrite=overwrite)
    return load(path, device=device)


def describe_model(finished: FinishedRun, folder: Path) -> Description:
    """Describe the model of a finished run, without an estimate of its accuracy."""
    run = finished.record.run
    dataset = find_dataset(run.dataset)
    wrapped = type(finished.model) is not Classifier
    run_inputs = read_run_inputs(folder)
    average = f"-{run.average}" if run.average != "last" else ""
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
    return Inputs(
        kind=dataset.modality.name,
        dtype=dtype,
        stored=tuple(x.shape[1:]),
        mean=tuple(run_inputs["mean"]),
        std=tuple(run_inputs["std"]),
        size=run.size,
        table=TableScaling.from_dict(run_inputs).columns if "table" in run_inputs else (),
        **settings,
    )


def _do_held_out(
    runs: Sequence[Run], store: Store, pool: Pool, options: Mapping[str, Any]
) -> list[Record]:
    """Complete the held-out runs and return their records in order; raise if one fails.

    Runs that only fit the head from which others start have no record in the result.
    """
    outcomes = complete(runs, store, pool=pool, **options)
    records = []
    for outcome in track(outcomes, "holding domains out", len(runs)):
        if isinstance(outcome, Failure):
            raise DataError(
                f"{outcome.run.key}: this run with held-out domains failed ({outcome.error}); fix "
                "the cause, or use --no-estimate"
            )
        if outcome.run.role != "base":
            records.append(outcome)
    order = {run.key: number for number, run in enumerate(runs)}
    return sorted(records, key=lambda record: order[record.run.key])


def _do_needed(runs: Sequence[Run], store: Store, pool: Pool, options: Mapping[str, Any]) -> None:
    """Train what the model is made from, on all domains: parts of a merge, or a head to start."""
    outcomes = complete(runs, store, pool=pool, **options) if runs else ()
    for outcome in track(outcomes, "its parts on all domains", len(runs)):
        if isinstance(outcome, Failure):
            raise DataError(f"{outcome.run.key}: this part of the model failed ({outcome.error})")


def _train(run: Run, store: Store, options: Mapping[str, Any]) -> None:
    with progress(f"{run.method} on all domains", run.steps) as advance:
        execute(run, store, watch=lambda _, checkpoint: advance(checkpoint.step), **options)
