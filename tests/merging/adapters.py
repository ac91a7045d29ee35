"""Small adapters on disk, written by hand, and the models that they make of a base."""

import json

import torch
from safetensors.torch import save_file

SHAPES = {"enc.q.weight": (24, 16), "enc.v.weight": (16, 24), "enc.v.bias": (16,), "norm": (16,)}
MODULES = ("enc.q", "enc.v")
PREFIX = "base_model.model."


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def base_state():
    return {name: normal(i, *shape) for i, (name, shape) in enumerate(SHAPES.items())}


def config(rank, **changes):
    usual = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    return usual | {"target_modules": list(MODULES)} | changes


def factors(seed, rank, modules=MODULES):
    """Factors that have something in common with those of other seeds."""
    found = {}
    for i, module in enumerate(modules):
        rows, columns = SHAPES[f"{module}.weight"]
        inner = normal(100 * seed + i, rank, columns) + normal(900 + i, 8, columns)[:rank]
        outer = normal(100 * seed + i + 50, rows, rank) + normal(950 + i, rows, 8)[:, :rank]
        found[f"{PREFIX}{module}.lora_A.weight"] = 0.1 * inner
        found[f"{PREFIX}{module}.lora_B.weight"] = outer
    return found


def write_adapter(folder, tensors, settings):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def adapted(base, tensors, scale=2.0):
    """The base with an adapter, multiplied out."""
    state = dict(base)
    for name, inner in tensors.items():
        if name.endswith(".lora_A.weight"):
            outer = tensors[name.replace("lora_A", "lora_B")]
            target = name.removeprefix(PREFIX).replace(".lora_A", "")
            state[target] = state[target] + scale * (outer @ inner)
    return state


def family(folder, ranks=(2, 4, 3), **options):
    """A base file, adapter folders of these ranks, and the files of the whole models."""
    base = base_state()
    save_file(base, folder / "base.safetensors")
    adapters, models = [], []
    for i, rank in enumerate(ranks, start=1):
        tensors = factors(i, rank, **options)
        adapters.append(write_adapter(folder / f"lora{i}", tensors, config(rank)))
        save_file(adapted(base, tensors), folder / f"model{i}.safetensors")
        models.append(folder / f"model{i}.safetensors")
    return folder / "base.safetensors", adapters, models
