"""Models made from finished runs: merges of experts, and ensembles of trainings.

    every merge of merges/   base + scale · merged delta of the experts
    greedy_soup              the same for the experts that the sources' probe splits admit
    base                     the model that all experts start from; for a CLIP, zero-shot
    best_expert              the expert with the best accuracy on the other sources' probe splits
    logit_ensemble           the mean of the experts' raw logits, which needs all networks
    target_expert            fine-tuned on the target itself, as an upper bound. It is scored on
                             the target's probe split, because it was trained on the main split;
                             if the dataset has official lists, on the test list, as all others

Only the last one uses data of the target.

The members of an ensemble are trainings that differ in their seed. Their probabilities are averaged
(`afield.networks.ensemble`).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from afield import registry
from afield.errors import DataError, SpecError, UnknownNameError
from afield.hyperparameters import with_neutral
from afield.merging.job import merge
from afield.merging.scopes import expert_count, needs_statistics, needs_validation
from afield.networks.ensemble import make_ensemble
from afield.runs.row import MERGE_BASELINES
from afield.runs.run import Run
from afield.runs.run_files import read_record, read_run_weights
from afield.runs.run_setup import TrainingState
from afield.runs.store import Store
from afield.training.metrics import selection_score
from afield.training.scores import Scores

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
            f"{required + 1} domains, {required} methods or --expert-draws {required}"
        )
    if needs_statistics(merge):
        raise SpecError(
            f"{name} needs statistics of every expert, which a benchmark does not compute; use "
            f"`afield merge {name} … --statistics FILE`, or leave it out"
        )


def _weights(store: Store, key: str) -> State:
    try:
        return read_run_weights(store.root / key)
    except DataError:
        raise DataError(
            f"{key}: this expert has no weights in {store.root}; its own run failed"
        ) from None


def build_merged(
    run: Run, work: TrainingState, store: Store
) -> tuple[nn.Module, Mapping[str, float]]:
    """The model of a merged run, and what to log about it.

    The network of `work` has the weights of the base.
    """
    network = work.learner.model
    if run.method == "base":
        return network.eval(), {}
    experts = [_weights(store, key) for key in run.experts]
    _check_alike(run, network, experts)
    special: dict[str, Callable[[], nn.Module]] = {
        "best_expert": lambda: _best_expert(run, work, experts),
        "logit_ensemble": lambda: Ensemble([_copy_with(network, each) for each in experts]),
        "target_expert": lambda: _copy_with(network, experts[0]),
    }
    if run.method in special:
        return special[run.method]().eval(), {}
    base = {name: value.clone() for name, value in network.state_dict().items()}
    here = [{name: value.to(work.machine.device) for name, value in e.items()} for e in experts]
    kind = registry.find("merges", run.method)
    params = with_neutral(kind, run.params)

    def merged(chosen: Sequence[State]) -> nn.Module:
        return _copy_with(network, merge(run.method, base, chosen, **params)).eval()

    return _greedy(run, work, here, merged) if needs_validation(kind) else (merged(here), {})


def build_ensemble(run: Run, network: nn.Module, store: Path) -> nn.Module:
    """The model of an ensemble: copies of the network with the weights of the members."""
    weights = [read_run_weights(store / key) for key in run.members]
    return make_ensemble([_copy_with(network, each) for each in weights]).eval()


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
        values.append(sum(_value(scores[name], run) for name in others) / len(others))
    return networks[values.index(max(values))]


def _greedy(
    run: Run,
    work: TrainingState,
    experts: Sequence[State],
    merged: Callable[[Sequence[State]], nn.Module],
) -> tuple[nn.Module, Mapping[str, float]]:
    """The merge of experts, best first, each kept if the sources' validation does not fall.

    The number of those that are kept is logged.
    """
    alone = [_source_value(run, work, _copy_with(work.learner.model, each)) for each in experts]
    order = sorted(range(len(experts)), key=lambda number: -alone[number])
    kept, model = [experts[order[0]]], merged([experts[order[0]]])
    best = _source_value(run, work, model)
    for number in order[1:]:
        candidate = merged([*kept, experts[number]])
        value = _source_value(run, work, candidate)
        if value >= best:
            kept, best, model = [*kept, experts[number]], value, candidate
    return model, {"kept experts": float(len(kept))}


def _source_value(run: Run, work: TrainingState, network: nn.Module) -> float:
    scores = work.evaluations.evaluate(network)
    return sum(_value(scores[name], run) for name in run.sources) / len(run.sources)


def _value(scores: Scores, run: Run) -> float:
    value = selection_score(scores.probe, run.metric) if scores.probe else None
    return 0.0 if value is None else value
