"""What tests of diagnostics that look at moved inputs share: small runs, and their whole state."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from afield.runs.finished import FinishedRun
from afield.studies.benchmarking import train


def spiral_runs(store: Path, methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """The folders of short runs on spirals by name; ``guided`` is a form of crossgrad."""
    found = {}
    for name, settings in methods.items():
        method = "crossgrad" if name == "guided" else name
        chosen = {"steps": 30, **settings}
        record = train("spirals", method, target="turn30", store=store, settings=chosen)
        found[name] = store / record.run.key
    return found


def trained(data: Path, method: str, *, target: str | list[str] = (), **settings: Any) -> Path:
    """The folder of a run of two steps on own data."""
    store = data.parent / "runs"
    record = train(data, method, target=target, store=store, settings={"steps": 2, **settings})
    return store / record.run.key


def everything(subject: FinishedRun) -> list[object]:
    """All weights, gradients and modes of a subject."""
    nets = [subject.model, subject.trained.model, subject.trained.parts]
    nets += [subject.learner.model, subject.learner.parts]
    found: list[object] = [subject.stream.drawn]
    for net in nets:
        found += [copy.deepcopy(value).tolist() for value in net.state_dict().values()]
        found += [parameter.grad for parameter in net.parameters()]
        found += [module.training for module in net.modules()]
    return found


def merged(subject, *deltas, **more):
    """A merged run whose experts have changed the matrix `w` of a base by these deltas."""
    base = {"w": torch.zeros_like(deltas[0]), "bias": torch.zeros(3)}
    experts = {f"expert{i}": {**base, "w": delta} for i, delta in enumerate(deltas)}
    for name, values in more.items():
        base[name] = torch.zeros_like(values[0])
        for own, value in zip(experts.values(), values, strict=True):
            own[name] = value
    return replace(subject, base=base, experts=experts)
