"""Merged models as runs: from the weights of a base and of experts to a record like any other.

    every merge of merges/   base + scale · merged delta of the experts
    base                     what they all started from; of a CLIP: zero-shot
    best_expert              the one that does best on the other sources' probe parts
    logit_ensemble           the mean of the experts' raw logits: not one network, but all of them
    target_expert            fine-tuned on the target itself: no method, but a yardstick. Its
                             score is of the target's probe part, as it has seen the main part;
                             where a dataset has official lists, of the test list, as all others'.

Only the last knows anything of the target.
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

# What stands beside the merges in every table of them.
MERGE_BASELINES = ("base", "best_expert", "logit_ensemble", "target_expert")

State = Mapping[str, Tensor]


class Ensemble(nn.Module):
    """The mean of several networks' raw logits."""

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
    """Make the model of a merged run and score it, or return its record if it is done.

    Parameters
    ----------
    run, store
        What to merge, and where its experts and its own record are kept.
    root, device, threads, wait
        As in `execute`.
    training
        What else `execute` takes: there is nothing to train.
    """
    del training
    place = Machine(
        torch.device(device or default_device()), threads, root or data_root(), store.root
    )
    with store.claim(run, wait=wait):
        known = store.get(run)
        if known is not None:
            return known
        run = store.with_stored_rules(run)
        store.fetch(*filter(None, [run.base]), *run.experts)
        with deterministic(threads), track_peak_memory(place.device) as peak:
            started = time.monotonic()
            work = set_up(run, place)
            model = _made(run, work, store)
            checkpoint = _scored(run, work, model)
        record = Record(
            run=run,
            checkpoints=(checkpoint,),
            seconds=time.monotonic() - started,
            versions=versions(run),
            device=place.told,
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
            f"{key}: this expert has no weights in {store.root}; see its failure"
        ) from None


def _made(run: Run, work: TrainingState, store: Store) -> nn.Module:
    """The model that the run asks for; the network at hand has the base's weights."""
    network = work.learner.model
    if run.method == "base":
        return network.eval()
    experts = [_weights(store, key) for key in run.experts]
    _check_alike(run, network, experts)
    special: dict[str, Callable[[], nn.Module]] = {
        "best_expert": lambda: _best(run, work, experts),
        "logit_ensemble": lambda: Ensemble([_with(network, each) for each in experts]),
        "target_expert": lambda: _with(network, experts[0]),
    }
    if run.method in special:
        return special[run.method]().eval()
    base = {name: value.clone() for name, value in network.state_dict().items()}
    here = [{name: value.to(work.place.device) for name, value in e.items()} for e in experts]
    params = with_neutral(registry.find("merges", run.method), run.params)
    return _with(network, merge(run.method, base, here, **params)).eval()


def _with(network: nn.Module, weights: State) -> nn.Module:
    """A network like this one with other weights."""
    found = copy.deepcopy(network)
    found.load_state_dict(weights)
    return found


def _check_alike(run: Run, network: nn.Module, experts: Sequence[State]) -> None:
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    for key, expert in zip(run.experts, experts, strict=True):
        if {name: value.shape for name, value in expert.items()} != shapes:
            raise SpecError(
                f"{key.rpartition('-')[0]} changes the network of the base, so its experts cannot "
                "be merged; use an --expert-method that keeps the network, such as erm"
            )


def _best(run: Run, work: TrainingState, experts: Sequence[State]) -> nn.Module:
    """The expert that does best on sources that it was not trained on, where there are any."""
    networks = [_with(work.learner.model, each) for each in experts]
    values = []
    for key, network in zip(run.experts, networks, strict=True):
        seen = read_record(work.place.store / key).run.sources
        scores = work.evaluations.evaluate(network)
        others = [name for name in run.sources if name not in seen] or list(run.sources)
        values.append(sum(_accuracy(scores[name]) for name in others) / len(others))
    return networks[values.index(max(values))]


def _accuracy(scores: Scores) -> float:
    return scores.probe.accuracy if scores.probe else 0.0


def _scored(run: Run, work: TrainingState, model: nn.Module) -> Checkpoint:
    """One checkpoint: what every rule reads, and nothing of the target decided it."""
    exams = work.evaluations
    found = Checkpoint(run.steps, exams.evaluate(model), {})
    found = exams.completed(found, model, exams.last)
    # Both mostly read the same of the target; it is one model.
    if not set(exams.best.keys) <= set(exams.last.keys):
        found = exams.completed(found, model, exams.best)
    if run.method != "target_expert":
        return found
    domains = load_domains(find_dataset(run.dataset, work.place.root), run, work.place.root)
    # By official lists it has learned the train list, and the main part of an unseen domain is the
    # test list.
    cut = [n for n in found.scores if n not in run.sources and domains[n].test is None]
    unseen = {name: replace(found.scores[name], main=found.scores[name].probe) for name in cut}
    return replace(found, scores={**found.scores, **unseen})
