"""Small families of models to merge: a base, experts, and statistics."""

import json

import torch
from safetensors.torch import save_file

from afield import registry
from afield.merging.job import merge
from afield.merging.scopes import expert_count, needs_statistics, scope_of

NAMES = registry.names("merges")
SHAPES = {
    "a.weight": (12, 8),
    "b.weight": (8, 12),
    "square.weight": (9, 9),
    "conv.weight": (4, 3, 2, 2),
    "a.bias": (12,),
    "logit_scale": (),
    "text_projection": (6, 6),
}


def state(seed, *, spread=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    result = {n: spread * torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}
    return {name: tensor.to(dtype) for name, tensor in result.items()}


def family(count, *, dtype=torch.float32, spread=0.05):
    """A base, and experts not far from it that have something in common."""
    base, common = state(0), state(99, spread=spread)
    experts = []
    for seed in range(1, count + 1):
        own = state(seed, spread=spread)
        experts.append({n: (base[n] + own[n] + common[n]).to(dtype) for n in base})
    return {name: tensor.to(dtype) for name, tensor in base.items()}, experts


def count_for(name):
    return expert_count(registry.find("merges", name)) or 3


def statistics_for(name, experts):
    """What fisher and regmean need, made up."""
    if not needs_statistics(registry.find("merges", name)):
        return None
    result = []
    for expert in experts:
        wide = {key: tensor.double() for key, tensor in expert.items()}
        if scope_of(registry.find("merges", name)) == "entry":
            result.append({key: tensor.square() for key, tensor in wide.items()})
        else:
            result.append({k: t.mT @ t for k, t in wide.items() if t.ndim == 2})
    return result


def merged(name, base, experts, **settings):
    return merge(name, base, experts, statistics=statistics_for(name, experts), **settings)


def assert_close(result, expected, **tolerance):
    assert list(result) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(result[name], tensor, **tolerance, msg=lambda m, n=name: n + m)


def distance(first, second):
    return sum(float((first[name].double() - second[name].double()).norm()) for name in first)


TENSORS = {
    "a.weight": torch.arange(12.0).view(3, 4),
    "a.bias": torch.arange(3).bfloat16(),
    "conv": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "ids": torch.arange(5),
    "one": torch.tensor(2.5),
}


def plain(tensors):
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def sharded(folder, tensors=TENSORS, *, shards=2):
    """A folder as Hugging Face keeps a large model."""
    folder.mkdir()
    names, index = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = plain({name: tensors[name] for name in names[i::shards]})
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def written(folder, count=3, **options):
    """A base and experts as safetensors files."""
    base, experts = family(count, **options)
    base["ids"] = torch.arange(4)
    experts = [expert | {"ids": torch.arange(4)} for expert in experts]
    paths = []
    for name, state in [("base", base), *((f"e{i}", e) for i, e in enumerate(experts))]:
        save_file(state, folder / f"{name}.safetensors", metadata={"format": "pt"})
        paths.append(folder / f"{name}.safetensors")
    return base, experts, paths
