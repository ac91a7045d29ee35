"""Model folders that hold an adapter of a base instead of complete weights.

The folder has the factors of LoRA in the format of PEFT, in full all other tensors that differ from
the base (the head, for example), and in model.json the name of the base and a digest of its
weights. When the model is loaded, the base is looked for, its digest is checked, and the products
of the factors are added: what is used has plain weights.

The base is a download from its hub, or a file (for an encoder of texts, a folder) of the same name
in the folder of weights, AFIELD_WEIGHTS or AFIELD_DATA/weights; `base` of `afield.load` names
another path.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afield.compute import preserve_torch_state
from afield.data.domains import data_root
from afield.deployment.model_files import ADAPTER_FILES
from afield.deployment.model_folder import Base, Description
from afield.errors import DataError, SpecError
from afield.networks.backbone import HUB, Classifier, network
from afield.networks.lora import INNER, OUTER, PEFT_PREFIX, low_rank_change
from afield.networks.pretrained import state_digest
from afield.networks.tuning import Lora
from afield.runs.run import Run, name_without_path
from afield.runs.store import ADAPTER_FILE
from afield.tensors import read_weights

ENCODER = "hf:"
INNER_END, OUTER_END = f".{INNER}.weight", f".{OUTER}.weight"
# Greatest difference between weights from an adapter and those of the trained network.
TOLERANCE = 1e-6


def check_adapter_only(run: Run) -> None:
    """Raise `SpecError` before training unless the model of a run can be an adapter of a base."""
    if not Lora.of(run.tune or ""):
        raise SpecError("--adapter-only: only with --tune lora:rank=4,alpha=8; leave it out")
    if run.is_derived:
        raise SpecError("--adapter-only: only for one trained network; leave it out")
    if not run.weights:
        raise SpecError(
            "--adapter-only: the network starts from random weights, which nobody else has; give "
            "--weights, or leave it out"
        )


def base_of(run: Run) -> Path | None:
    """The path of the weights that a run starts from; None if they are a download."""
    if run.backbone.startswith(ENCODER) and run.weights == HUB:
        folder = Path(run.backbone.removeprefix(ENCODER).partition("?")[0])
        return folder if folder.is_absolute() else None
    return None if run.weights == HUB else Path(run.weights)


def without_base(
    about: Description, module: nn.Module, folder: Path, run: Run
) -> tuple[Description, dict[str, Tensor], dict[str, Any]]:
    """The description, tensors and configuration of a model as an adapter.

    `module` is the trained network, and `folder` has the run.
    """
    lora = Lora.of(run.tune or "")
    features = _features(about, run.backbone, run.weights)
    adapter = read_weights(str(folder / ADAPTER_FILE))
    factors = {n: value for n, value in adapter.items() if n.endswith((INNER_END, OUTER_END))}
    restored = _restored(module, features.state_dict(), factors, lora)
    changed = set(_changes(factors, lora, restored))
    for name, value in module.state_dict().items():
        other = restored.get(name)
        is_same = other is not None and other.shape == value.shape
        if name in changed and not (is_same and _is_close(value, restored[name])):
            raise SpecError(
                f"--adapter-only: {name} did not start from the weights of {about.name}'s network; "
                "leave it out"
            )
        if name not in changed and not (is_same and torch.equal(value.cpu(), restored[name])):
            factors[PEFT_PREFIX + name] = value
    weights = run.weights if run.weights == HUB else Path(run.weights).name
    base = Base(name_without_path(run.backbone), weights, state_digest(features))
    return replace(about, base=base), factors, _config(base, lora, factors)


def complete_weights(
    about: Description,
    module: nn.Module,
    adapter: Mapping[str, Tensor],
    folder: Path,
    base: str | Path | None,
) -> dict[str, Tensor]:
    """The weights of a network that was read as an adapter; `base` is the path of its base."""
    assert about.base is not None
    lora = Lora.of((about.run.tune if about.run else "") or "")
    if lora is None:
        raise DataError(f"{folder}: model.json does not say how the adapter was made (tune)")
    features = _features(about, *_find_base(about.base, folder, base))
    if state_digest(features) != about.base.digest:
        raise DataError(
            f"{folder}: an adapter of {about.base.backbone}, but the weights found for it have "
            "another digest; give those that it was trained on, as base of afield.load"
        )
    try:
        return _restored(module, features.state_dict(), adapter, lora)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise DataError(
            f"{folder / ADAPTER_FILES[1]}: does not fit the network ({reason}); get it again"
        ) from None


def _find_base(base: Base, folder: Path, given: str | Path | None) -> tuple[str, str]:
    """The backbone and the weights of a base on this machine."""
    is_encoder = base.backbone.startswith(ENCODER)
    name, _, options = base.backbone.removeprefix(ENCODER).partition("?")
    if given is None and (base.weights == HUB and not (is_encoder and "/" not in name)):
        return base.backbone, HUB
    at_hand = Path(os.environ.get("AFIELD_WEIGHTS") or data_root() / "weights").expanduser()
    use_folder = is_encoder and base.weights == HUB
    path = Path(given or at_hand / (name if use_folder else base.weights)).expanduser()
    if not path.exists():
        raise DataError(
            f"{folder}: an adapter of {base.backbone}, but there is no {path}; put its weights "
            "there, or give their path as base of afield.load"
        )
    if use_folder:
        return f"{ENCODER}{path.absolute()}?{options}", HUB
    return base.backbone, str(path)


def _features(about: Description, backbone: str, weights: str) -> nn.Module:
    with preserve_torch_state(cuda=False):
        return network(backbone, tuple(about.inputs.shape), 1, weights=weights).features


def _restored(
    module: nn.Module,
    features: Mapping[str, Tensor],
    adapter: Mapping[str, Tensor],
    lora: Lora | None,
) -> dict[str, Tensor]:
    """The state of a network with the features of a base and an adapter, and nothing else."""
    inner = next(name for name, each in module.named_modules() if isinstance(each, Classifier))
    prefix = f"{inner}.features." if inner else "features."
    state = {prefix + name: value for name, value in features.items()}
    changes = _changes(adapter, lora, state)
    state |= {name: state[name] + change for name, change in changes.items()}
    for name, value in adapter.items():
        if not name.endswith((INNER_END, OUTER_END)):
            state[name.removeprefix(PEFT_PREFIX)] = value
    return state


def _is_close(value: Tensor, other: Tensor) -> bool:
    return torch.allclose(value.cpu(), other, rtol=0, atol=TOLERANCE)


def _changes(
    adapter: Mapping[str, Tensor], lora: Lora | None, state: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The changes of weights by factors, under the names of the network."""
    changes = {}
    scale = lora.alpha / lora.rank if lora else 1.0
    for name, inner in adapter.items():
        if not name.endswith(INNER_END):
            continue
        layer = name.removeprefix(PEFT_PREFIX).removesuffix(INNER_END).replace(".base_layer", "")
        target = f"{layer}.weight"
        if target not in state:
            target = f"{layer}.in_proj_weight"
        outer = adapter[name.removesuffix(INNER_END) + OUTER_END]
        changes[target] = low_rank_change(inner, outer, scale).view(state[target].shape)
    return changes


def _config(base: Base, lora: Lora | None, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The configuration of an adapter as PEFT reads it."""
    assert lora is not None
    names = [name.removeprefix(PEFT_PREFIX) for name in tensors]
    layers = {n.removesuffix(INNER_END) for n in names if n.endswith(INNER_END)}
    full = {n.rpartition(".")[0] for n in names if not n.endswith((INNER_END, OUTER_END))}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base.backbone,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(layer for layer in layers if ".base_layer" not in layer),
        "modules_to_save": sorted(full) or None,
    }
