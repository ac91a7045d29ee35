"""Checks of a benchmark of merges: its merges, expert methods and settings."""

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from afield import registry
from afield.compute import preserve_torch_state
from afield.data.domains import DomainSet
from afield.data.samples import Rows
from afield.errors import MergeError, SpecError
from afield.experiments.merged.runner import check_merge
from afield.experiments.settings import Settings, check_settings
from afield.hyperparameters import build
from afield.merging.state_dicts import merge as merge_by
from afield.networks.backbone import network
from afield.networks.inference import compute_outputs
from afield.training.method import Task
from afield.training.optimizers import optimizer_factory

__all__ = ["check_merging", "check_scale", "check_values", "short_names"]

# Input shape of the small network on which expert methods are tried out.
TINY_SHAPE = (4,)


def short_names(settings: Settings, owner: str) -> dict[str, Any]:
    """The settings of one method or merge, by their short names."""
    return {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{owner}.")}


def check_scale(name: str, value: Any) -> float:
    """The factor of a merged delta as a number; refuse what is not finite."""
    with suppress(TypeError, ValueError):
        if math.isfinite(scale := float(value)):
            return scale
    raise SpecError(f"{name}.scale={value}: not a finite number")


def check_values(name: str, chosen: dict[str, Any]) -> None:
    """Refuse values that the merge would refuse only after all experts are trained."""
    if chosen:
        base = torch.full((4, 4), 100.0)
        experts = [{"w": base + torch.eye(4)}, {"w": base + torch.eye(4).cumsum(0)}]
        try:
            merge_by(name, {"w": base}, experts, **chosen)
        except MergeError as error:
            raise SpecError(f"{name}.{str(error).removeprefix('w: ')}") from None


def check_merging(
    dataset: DomainSet,
    merges: Sequence[str],
    methods: Sequence[str],
    draws: int,
    settings: Settings,
    average: str,
    *,
    sources: int,
) -> None:
    """Refuse merges, expert methods and settings that cannot work, before anything is trained."""
    if len(dataset.domains) < 3:
        count = len(dataset.domains)
        raise SpecError(f"{dataset.name} has {count} domains: merging needs three or more")
    if sources < 2:
        raise SpecError(f"{dataset.name}: merging needs two or more sources; name fewer targets")
    if not methods:
        raise SpecError("no method trains the experts; leave --expert-method out for erm")
    if draws and len(methods) > 1:
        raise SpecError("--expert-draws are of one method; give one --expert-method")
    per_domain = len(methods) == 1 and not draws
    for name in merges:
        check_merge(name, sources if per_domain else draws or len(methods))
    check_settings(settings, [*merges, *methods, average, "linear_probe"])
    for method in methods:
        _check_plain(method, settings, domains=1 if per_domain else 2)


def _check_plain(method: str, settings: Settings, *, domains: int) -> None:
    """Refuse a method that changes the network of the base, before anything is trained."""
    instance = build(registry.find("methods", method), short_names(settings, method))
    with preserve_torch_state(cuda=False):
        make = partial(network, "small:mlp", TINY_SHAPE)
        optimizer = optimizer_factory("", lr=1e-3, weight_decay=0.0)
        model = make(2)
        before = {name: value.shape for name, value in model.state_dict().items()}
        x = torch.ones(1, *TINY_SHAPE)
        expected = compute_outputs(model, Rows([x]))
        try:
            names = tuple(str(i) for i in range(domains))
            task = Task(names, ("a", "b"), 1, make, optimizer, shape=TINY_SHAPE)
            learner = instance.setup(model, task)
        except SpecError:
            # The real network may have what this small one lacks.
            return
    after = {name: value.shape for name, value in learner.model.state_dict().items()}
    if after != before or not torch.allclose(compute_outputs(learner.model, Rows([x])), expected):
        raise SpecError(
            f"{method} changes the network of the base, so its experts cannot be merged; use an "
            "--expert-method that keeps the network, such as erm"
        )
