"""Methods and networks that are passed to `afield.bench` as Python objects."""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from afield import own_code, registry
from afield.errors import SpecError
from afield.experiments.own.samples import dataset_spec
from afield.hyperparameters import defaults
from afield.networks.own_network import own_backbone, weights_digest
from afield.training.method import Method

__all__ = ["accept_objects"]


def accept_objects(words: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The words of a benchmark with names in place of objects, which are registered.

    Data in memory are written into the folder. Files and modules of code are loaded: who calls
    this passes them in Python.
    """
    accepted = own_code.accept(words)
    settings = dict(accepted.get("settings") or {})
    dataset = accepted.get("dataset")
    if isinstance(dataset, list) or (isinstance(dataset, tuple) and _are_names(dataset)):
        accepted["dataset"] = [dataset_spec(each, folder) for each in dataset]
    elif dataset is not None:
        accepted["dataset"] = dataset_spec(dataset, folder)
    methods = accepted.get("methods")
    if methods is not None and not isinstance(methods, str):
        several = methods if isinstance(methods, list | tuple) else [methods]
        accepted["methods"] = [_method_name(each, settings) for each in several]
    for place in (accepted, settings):
        if place.get("backbone") is not None:
            place["backbone"] = _backbone_name(place["backbone"])
    return {**accepted, "settings": settings} if settings else accepted


def _are_names(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str | Path) for value in values)


def _method_name(method: Any, settings: dict[str, Any]) -> str:
    """The name of a method; the fields of an object become settings."""
    if isinstance(method, str):
        return method
    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, Method):
        raise SpecError(f"methods: {kind.__name__} is no Method; extend afield.training.Method")
    name = _registered_name(kind)
    if isinstance(method, Method) and is_dataclass(method):
        usual = defaults(kind)
        for each in fields(method):
            value = getattr(method, each.name)
            if each.name in usual and value != usual[each.name]:
                settings[f"{name}.{each.name}"] = value
    return name


def _registered_name(kind: type[Method]) -> str:
    for name in registry.builtin_names("methods"):
        if kind.__module__.rpartition(".")[2] == name and registry.find("methods", name) is kind:
            return name
    return own_code.register("methods", kind.__name__, kind, source=_source(kind))


def _backbone_name(network: Any) -> str:
    """The name of a network: its own, with digests of its source and, of a module, its weights.

    A function has no weights before a run: they follow from its source, the shape of the data and
    the run's seed, which is derived from the run's key and hence from this name. The record has
    their digest, so that a function whose result depends on anything else can be noticed.
    """
    if isinstance(network, str):
        return network
    if not callable(network):
        raise SpecError(
            f"backbone: {type(network).__name__} is no network; give a name, an nn.Module or a "
            "function of (shape, classes)"
        )
    source = _source(type(network) if isinstance(network, nn.Module) else network)
    if isinstance(network, nn.Module):
        source += weights_digest(network)
    kind = own_backbone(network)
    named = type(network) if isinstance(network, nn.Module) else network
    name = f"{named.__name__}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    return own_code.register("backbones", name, kind, source=source, payload=network)


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        name = getattr(value, "__name__", value)
        raise SpecError(
            f"{name}: its source cannot be found, so records could not name its version; define "
            "it in a file"
        ) from None
