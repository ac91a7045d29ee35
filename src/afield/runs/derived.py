"""Runs that are made from finished runs, without training: merged and adapted models.

    merged     a network from the weights of a base and of experts (`merged.runner`)
    adapted    the model of a finished run, predicting with a test-time adaptation: it sees the
               samples of every domain in batches, without labels

Such a run has one checkpoint, which every rule reads. It uses the weights that its base kept: those
of the checkpoint that is best on the sources' validation splits, or on the validation domains.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from afield import registry
from afield.compute import deterministic, find_device, track_peak_memory
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.hyperparameters import build, with_neutral
from afield.runs.merged import build_merged
from afield.runs.record import Record, Run
from afield.runs.run_setup import Machine, TrainingState, load_domains, set_up
from afield.runs.store import Store
from afield.training.adaptation import Adaptation
from afield.training.scores import Checkpoint

__all__ = ["execute_derived", "run_adaptation"]


def execute_derived(
    run: Run,
    store: Store,
    *,
    root: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    wait: bool = True,
    **training: Any,
) -> Record:
    """Make the model of a derived run and score it, or return its record if it is done.

    Parameters
    ----------
    run, store
        What to merge or adapt, and where the runs that it needs and its own record are kept.
    root, device, threads, wait
        As in `execute`.
    training
        What else `execute` takes: there is nothing to train.
    """
    del training
    machine = Machine(find_device(device), threads, root or data_root(), store.root)
    with store.claim(run, wait=wait):
        known = store.get(run)
        if known is not None:
            return known
        run = store.with_stored_rules(run)
        store.fetch(*filter(None, [run.base]), *run.experts)
        with deterministic(threads, inexact=run.inexact), track_peak_memory(machine.device) as peak:
            started = time.monotonic()
            work = set_up(run, machine)
            model, logs = (
                (_adapted(run, work), {}) if run.adaptation else build_merged(run, work, store)
            )
            checkpoint = replace(_evaluate(run, work, model), logs=logs)
        record = Record(
            run=run,
            checkpoints=(checkpoint,),
            seconds=time.monotonic() - started,
            versions=work.versions,
            device=machine.description,
            dropped=work.dropped,
            **asdict(work.text_lengths),
            memory=peak(),
            class_names=work.class_names,
        )
        # An adapted run has the weights of its base; what it learns about a domain is not kept.
        weights = {} if run.adaptation else model.state_dict()
        store.put(record, weights, inputs=work.inputs)
        return record


def run_adaptation(run: Run) -> Adaptation:
    """The adaptation of an adapted run, with its settings."""
    kind = registry.find("adaptations", run.adaptation)
    adaptation: Adaptation = build(kind, with_neutral(kind, run.adaptation_params))
    return adaptation


def _adapted(run: Run, work: TrainingState) -> nn.Module:
    """The model of the base, which adapts to the samples of each domain."""
    return run_adaptation(run).predictor(work.learner.model.eval())


def _evaluate(run: Run, work: TrainingState, model: nn.Module) -> Checkpoint:
    """The only checkpoint of a derived run, with the scores that every rule reads."""
    evaluations = work.evaluations
    checkpoint = Checkpoint(run.steps, evaluations.evaluate(model), {})
    checkpoint = evaluations.add_scores(checkpoint, model, evaluations.last)
    # The best checkpoint is also the last one, so most of its scores are there already.
    if not set(evaluations.best.keys) <= set(evaluations.last.keys):
        checkpoint = evaluations.add_scores(checkpoint, model, evaluations.best)
    if run.method != "target_expert":
        return checkpoint
    domains = load_domains(find_dataset(run.dataset, work.machine.root), run, work.machine.root)
    scores = checkpoint.scores
    # With official lists, the main split of an unseen domain is its test list, which is not
    # trained on.
    listed = [n for n in domains if domains[n].test is not None and run.split != "random"]
    unseen_names = run.tested or [n for n in scores if n not in run.sources]
    split = [n for n in unseen_names if n not in listed]
    unseen = {name: replace(scores[name], main=scores[name].probe) for name in split}
    return replace(checkpoint, scores={**scores, **unseen})
