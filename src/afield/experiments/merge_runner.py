"""Merged models as runs: they start from the weights of finished runs and have a record too.

    every merge of merges/   base + scale · merged delta of the experts
    base                     the model that all experts start from; for a CLIP, zero-shot
    best_expert              the expert with the best accuracy on the other sources' probe splits
    logit_ensemble           the mean of the experts' raw logits, which needs all networks
    target_expert            fine-tuned on the target itself, as an upper bound. It is scored on
                             the target's probe split, because it was trained on the main split;
                             if the dataset has official lists, on the test list, as all others

Only the last one uses data of the target.
"""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afield import registry
from afield.compute import default_device, deterministic, track_peak_memory
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError, UnknownNameError
from afield.experiments.record import Record, Run
from afield.experiments.run_setup import Machine, TrainingState, load_domains, set_up
from afield.experiments.runner import versions
from afield.experiments.store import Store, read_record, read_run_weights
from afield.hyperparameters import with_neutral
from afield.merging.scopes import expert_count, needs_statistics
from afield.merging.state_dicts import merge
from afield.training.evaluation import Checkpoint, Scores

__all__ = ["MERGE_BASELINES", "Ensemble", "check_merge", "execute_merge"]

# Rows that every table of merges has beside the merges.
MERGE_BASELINES = ("base", "best_expert", "logit_ensemble", "target_expert")

State = Mapping[str, Tensor]


class Ensemble(nn.Module):
    """Outputs the mean of the raw logits of several networks."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Samples × classes."""
        return torch.stack([network(x) for network in self.networks]).mean(dim=0)


def check_merge(name: str, experts: int) -> None:
    """Refuse a merge that a benchmark with this many experts cannot include."""
    if name in MERGE_BASELINES:
        raise UnknownNameError(f"{name} is compared with every merge anyway; leave it out")
    merge = registry.find("merges", name)
    required = expert_count(merge)
    if required is not None and required != experts:
        raise SpecError(
            f"{name} merges {required} experts, but there are {experts}: use a dataset of "
            f"{required + 1} domains, or {required} methods"
        )
    if needs_statistics(merge):
        raise SpecError(
            f"{name} needs statistics of every expert, which a benchmark does not compute; use "
            f"`afield merge {name} … --statistics FILE`, or leave it out"
        )


def execute_merge(
    run: Run,
    store: Store,
    *,
    root: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    wait: bool = True,
    **training: Any,
) -> Record:
    """Build and evaluate the model of a merged run, or return its record if it is finished.

    Parameters
    ----------
    run, store
        The run, and the store of its experts and of its record.
    root, device, threads, wait
        As in `execute`.
    training
        Other options of `execute`, which are ignored.
    """
    del training
    machine = Machine(
        torch.device(device or default_device()), threads, root or data_root(), store.root
    )
    with store.claim(run, wait=wait):
        stored = store.get(run)
        if stored is not None:
            return stored
        run = store.with_stored_rules(run)
        store.fetch(*filter(None, [run.base]), *run.experts)
        with deterministic(threads), track_peak_memory(machine.device) as peak:
            started = time.monotonic()
            work = set_up(run, machine)
            model = _build_model(run, work, store)
            checkpoint = _evaluate(run, work, model)
        record = Record(
            run=run,
            checkpoints=(checkpoint,),
            seconds=time.monotonic() - started,
            versions=versions(run),
            device=machine.description,
            dropped=work.dropped,
            memory=peak(),
        )
        store.put(record, model.state_dict(), inputs=work.inputs)
        return record


def _weights(store: Store, key: str) -> State:
    try:
        return read_run_weights(store.root / key)
    except DataError:
        raise DataError(
            f"{key}: this expert has no weights in {store.root}; its own run failed"
        ) from None


def _build_model(run: Run, work: TrainingState, store: Store) -> nn.Module:
    """The model of a merged run; the network of `work` has the weights of the base."""
    network = work.learner.model
    if run.method == "base":
        return network.eval()
    experts = [_weights(store, key) for key in run.experts]
    _check_alike(run, network, experts)
    special: dict[str, Callable[[], nn.Module]] = {
        "best_expert": lambda: _best_expert(run, work, experts),
        "logit_ensemble": lambda: Ensemble([_copy_with(network, each) for each in experts]),
        "target_expert": lambda: _copy_with(network, experts[0]),
    }
    if run.method in special:
        return special[run.method]().eval()
    base = {name: value.clone() for name, value in network.state_dict().items()}
    here = [{name: value.to(work.machine.device) for name, value in e.items()} for e in experts]
    params = with_neutral(registry.find("merges", run.method), run.params)
    return _copy_with(network, merge(run.method, base, here, **params)).eval()


def _copy_with(network: nn.Module, weights: State) -> nn.Module:
    """A copy of a network with other weights."""
    other = copy.deepcopy(network)
    other.load_state_dict(weights)
    return other


def _check_alike(run: Run, network: nn.Module, experts: Sequence[State]) -> None:
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    for key, expert in zip(run.experts, experts, strict=True):
        if {name: value.shape for name, value in expert.items()} != shapes:
            raise SpecError(
                f"{key.rpartition('-')[0]} changes the network of the base, so its experts cannot "
                "be merged; use an --expert-method that keeps the network, such as erm"
            )


def _best_expert(run: Run, work: TrainingState, experts: Sequence[State]) -> nn.Module:
    """The expert with the best accuracy on sources it was not trained on, if there are any."""
    networks = [_copy_with(work.learner.model, each) for each in experts]
    values = []
    for key, network in zip(run.experts, networks, strict=True):
        seen = read_record(work.machine.store / key).run.sources
        scores = work.evaluations.evaluate(network)
        others = [name for name in run.sources if name not in seen] or list(run.sources)
        values.append(sum(_accuracy(scores[name]) for name in others) / len(others))
    return networks[values.index(max(values))]


def _accuracy(scores: Scores) -> float:
    return scores.probe.accuracy if scores.probe else 0.0


def _evaluate(run: Run, work: TrainingState, model: nn.Module) -> Checkpoint:
    """The only checkpoint of a merged run, with the scores that every rule reads."""
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
    split = [n for n in scores if n not in run.sources and domains[n].test is None]
    unseen = {name: replace(scores[name], main=scores[name].probe) for name in split}
    return replace(checkpoint, scores={**scores, **unseen})
