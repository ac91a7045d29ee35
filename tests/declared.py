"""What the package declares: defaults and limits of settings, facts of datasets, small networks.

``python -m tests.declared`` writes what it finds to ``golden/declared.json``, after a change that
is meant. A changed default is a changed result: it belongs in the changelog.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from afield import registry
from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.data.training_settings import Training
from afield.errors import AfieldError
from afield.hyperparameters import defaults
from afield.merging.job import merge
from afield.networks.backbone import network
from afield.networks.backbones.small import BUILDERS
from tests.files import GOLDEN
from tests.merging.families import family

PATH = GOLDEN / "declared.json"
KINDS = ("methods", "averages", "adaptations", "diagnostics", "merges", "datasets", "networks")
NOWHERE = Path("/nowhere")
PROBES = (-1, 0, 1, 2, 3)
FRACTIONS = (-0.5, 0.0, 0.5, 1.0, 1.5)
SHAPES = {"image": (3, 32, 32), "gray": (1, 28, 28), "array": (5,)}
# Longer lists are kept as a digest.
LONGEST = 12


def declared(kind: str) -> dict[str, Any]:
    """What is declared of one kind, as JSON has it."""
    if kind == "networks":
        result: dict[str, Any] = _networks()
    elif kind == "datasets":
        result = {name: _dataset(find_dataset(name, NOWHERE)) for name in registry.names(kind)}
    else:
        result = {name: _settings(kind, name) for name in registry.names(kind)}
    return json.loads(json.dumps(result, default=str))


def _settings(kind: str, name: str) -> dict[str, Any]:
    """The defaults, and which values of every number are accepted."""
    member = registry.find(kind, name)
    usual = defaults(member)
    if kind == "merges":
        base, experts = family(2)
        return _limits(lambda **values: merge(name, base, experts, **values), usual)
    return _limits(member, usual)


def _limits(make: Callable[..., Any], usual: dict[str, Any]) -> dict[str, Any]:
    accepted = {}
    for name, value in usual.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        probes = FRACTIONS if isinstance(value, float) else PROBES
        accepted[name] = [probe for probe in probes if _accepts(make, name, probe)]
    return {"defaults": usual, "accepted": accepted}


def _accepts(make: Callable[..., Any], name: str, value: float) -> bool:
    try:
        make(**{name: value})
    except (AfieldError, ValueError, ZeroDivisionError):
        return False
    return True


def _dataset(dataset: DomainSet) -> dict[str, Any]:
    facts = {
        each.name: getattr(dataset, each.name) for each in fields(dataset) if each.name != "reader"
    }
    usual = asdict(Training())
    settings = asdict(dataset.training)
    facts["training"] = {name: v for name, v in settings.items() if v != usual[name]}
    facts["download"] = asdict(dataset.download)
    facts["modality"] = dataset.modality.name
    return {name: _short(value) for name, value in facts.items()}


def _short(value: Any) -> Any:
    text = json.dumps(value, default=str, sort_keys=True)
    if isinstance(value, tuple | dict) and len(value) > LONGEST:
        return f"{len(value)}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return json.loads(text)


def _networks() -> dict[str, list[float]]:
    """Logits of every small network with fixed weights, for inputs that it takes."""
    result = {}
    for name in sorted(BUILDERS):
        for kind, shape in SHAPES.items():
            try:
                model = network(f"small:{name}", shape, 3)
                result[f"{name} {kind}"] = _logits(model, shape)
            except (AfieldError, RuntimeError):
                continue
    return result


def _logits(model: torch.nn.Module, shape: tuple[int, ...]) -> list[float]:
    with torch.no_grad():
        for number, tensor in enumerate(model.state_dict().values()):
            if tensor.is_floating_point():
                waves = torch.arange(tensor.numel(), dtype=torch.float64).mul(0.37 + number).sin()
                tensor.copy_((0.1 * waves + 0.05).view_as(tensor).abs())
        size = torch.Size(shape).numel()
        x = torch.arange(2 * size, dtype=torch.float32).mul(0.11).cos().view(2, *shape)
        return [float(f"{value:.5g}") for value in model.eval()(x).flatten().tolist()]


if __name__ == "__main__":
    everything = {kind: declared(kind) for kind in KINDS}
    PATH.write_text(json.dumps(everything, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
