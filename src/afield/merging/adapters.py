"""Adapters of PEFT (LoRA): folders with adapter_config.json and adapter_model.safetensors.

    Δ = s B A,   s = alpha / r, or alpha / √r with rslora

They are read without the package peft. The change of a matrix is the product of its two factors;
the factors are never merged separately, because the product of two means is not the mean of the
products. Convolutions are products of matrices, reshaped; embeddings and layers that store their
weights transposed (GPT-2) are transposed products. Tensors that an adapter stores in full
(`modules_to_save`, biases) replace those of the base.

Other kinds of adapters are refused by name: their change is not a product of two matrices (DoRA,
IA³, LoHa, …), or not relative to the published base (PiSSA, OLoRA, …).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afield.errors import DataError, MergeError
from afield.files import read_json_object
from afield.merging.scopes import LowRankDelta, TensorSource, TensorSpec
from afield.merging.tensor_files import TensorFiles
from afield.safetensor_files import check_links

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
NAME_PREFIX = "base_model.model."
# Parts of names that PEFT inserts, and that the names of the base do not have.
INSERTED = (".base_layer", ".modules_to_save")
# The two factors of a change, by the ends of their names, the first one next to the input.
FACTOR_ENDS = (
    (".lora_A.weight", ".lora_B.weight"),
    (".lora_embedding_A", ".lora_embedding_B"),
)
EMBEDDING_END = FACTOR_ENDS[1][0]
# Options of LoRA whose change is not B A alone.
UNSUPPORTED_OPTIONS = {
    "use_dora": "DoRA",
    "lora_bias": "LoRA with biases of its own",
    "layer_replication": "layer replication",
    "target_parameters": "LoRA on parameters",
    "trainable_token_indices": "trainable tokens",
    "use_qalora": "QA-LoRA",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "use_bdlora": "block-diagonal LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
}
# Initializations that change the base, so that the adapter is no change of the published one.
CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
# A pattern of `alpha_pattern` and `rank_pattern`: names, and the few signs that occur in practice.
PATTERN = re.compile(r"\^?(?:[\w-]|\.\*|\\\.|\.|\\d\+|\[0-9\]\+?|\$$){1,200}")
MAX_WILDCARDS = 3


def is_adapter(path: str | Path) -> bool:
    """Whether a path is a folder with an adapter of PEFT."""
    return (Path(path).expanduser() / CONFIG_FILE).is_file()


@dataclass(frozen=True)
class _Pair:
    """The names of the two factors of a change, and the factor of their product."""

    inner: str
    outer: str
    scale: float


class Adapter:
    """An adapter on disk: its factors by the name of the tensor that they change."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.label = Path(path).expanduser(), str(path)
        check_links(self.path)
        self.config = read_json_object(self.path / CONFIG_FILE)
        _check_kind(self.config, self.label)
        if not (self.path / WEIGHTS_FILE).is_file():
            raise DataError(
                f"{self.label}: no {WEIGHTS_FILE} in it; save the adapter with safetensors "
                "(safe_serialization=True)"
            )
        self.files = TensorFiles(self.path / WEIGHTS_FILE)
        self.pairs: dict[str, _Pair] = {}
        self.full: dict[str, str] = {}
        self._sort_tensors()
        if not self.pairs:
            raise DataError(f"{self.label}: has no factors lora_A and lora_B; is it a LoRA?")

    @property
    def transposed(self) -> bool:
        """Whether the base stores the weights of linear layers transposed (GPT-2)."""
        return bool(self.config.get("fan_in_fan_out", False))

    def ranks(self) -> dict[str, int]:
        """The rank of every change."""
        return {name: self.files.specs[pair.inner].shape[0] for name, pair in self.pairs.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a changed tensor, as the adapter knows it."""
        if name in self.full:
            return self.files.specs[self.full[name]].shape
        pair = self.pairs[name]
        inner, outer = (self.files.specs[n].shape for n in (pair.inner, pair.outer))
        shape = (outer[0], *inner[1:])
        is_embedding = pair.inner.endswith(EMBEDDING_END)
        return shape[::-1] if is_embedding or (self.transposed and len(inner) == 2) else shape

    def delta(self, name: str, shape: tuple[int, ...]) -> LowRankDelta:
        """The change of a tensor of this shape in the base, in float32 or float64."""
        pair = self.pairs[name]
        inner, outer = (self._matrix(n) for n in (pair.inner, pair.outer))
        if self._is_transposed(name, shape):
            return LowRankDelta(inner.mT * pair.scale, outer.mT)
        return LowRankDelta(outer * pair.scale, inner)

    def factors(self, name: str, shape: tuple[int, ...], delta: LowRankDelta) -> dict[str, Tensor]:
        """Another change of a tensor as stored tensors: the inverse of `delta`, without a scale."""
        pair = self.pairs[name]
        inner, outer = (self.files.specs[n] for n in (pair.inner, pair.outer))
        first, second = delta.right, delta.left
        if self._is_transposed(name, shape):
            first, second = delta.left.mT, delta.right.mT
        rank = delta.rank
        return {
            pair.inner: first.reshape(rank, *inner.shape[1:]).to(inner.dtype).contiguous(),
            pair.outer: second.reshape(-1, rank, *outer.shape[2:]).to(outer.dtype).contiguous(),
        }

    def _matrix(self, name: str) -> Tensor:
        spec = self.files.specs[name]
        dtype = torch.float64 if spec.dtype == torch.float64 else torch.float32
        matrix = self.files.read(name).to(dtype).view(spec.shape[0], -1)
        if not matrix.isfinite().all():
            raise MergeError(f"{self.label}: NaN or infinity in {name}; give finite weights")
        return matrix

    def _is_transposed(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the base has the transposed product; its shape decides unless it is square."""
        pair = self.pairs[name]
        if pair.inner.endswith(EMBEDDING_END):
            return True
        inner, outer = (self.files.specs[n].shape for n in (pair.inner, pair.outer))
        if len(inner) != 2 or shape == (outer[0], inner[1]) != shape[::-1]:
            return False
        return shape != shape[::-1] or self.transposed

    def _sort_tensors(self) -> None:
        """Tell factors from tensors in full; every factor needs its other half."""
        halves: dict[str, dict[str, str]] = {}
        for name in self.files.specs:
            target, end = _target(name)
            if end:
                halves.setdefault(target, {})[end] = name
            elif "lora_" in name:
                raise MergeError(
                    f"{self.label}: the tensor {name} is not a factor of a LoRA; merge this "
                    "adapter into its base with peft, and give the merged models"
                )
            else:
                self.full[target] = name
        for target, found in halves.items():
            ends = next(ends for ends in FACTOR_ENDS if set(found) & set(ends))
            missing = [end for end in ends if end not in found]
            if missing or len(found) != 2:
                lost = target.removesuffix(".weight") + (missing or ends)[0]
                raise DataError(f"{self.label}: {lost} is missing; download the adapter again")
            self.pairs[target] = self._pair(target, found[ends[0]], found[ends[1]])

    def _pair(self, target: str, inner: str, outer: str) -> _Pair:
        specs = self.files.specs[inner], self.files.specs[outer]
        shapes = [list(spec.shape) for spec in specs]
        ranks = shapes[0][:1], shapes[1][1:2]
        if min(map(len, shapes)) < 2 or ranks[0] != ranks[1] or math.prod(shapes[1][2:]) != 1:
            raise DataError(
                f"{self.label}: the factors of {target} have the shapes {shapes[0]} and "
                f"{shapes[1]}, which have no product"
            )
        if not all(spec.dtype.is_floating_point and spec.size for spec in specs):
            raise DataError(f"{self.label}: the factors of {target} are not floating point")
        module, rank = target.removesuffix(".weight"), shapes[0][0]
        declared = _match(self.config.get("rank_pattern"), module, self.label)
        declared = self.config.get("r") if declared is None else declared
        if declared != rank:
            raise DataError(
                f"{self.label}: {CONFIG_FILE} says rank {str(declared)[:20]} for {module}, but "
                f"its factors have rank {rank}"
            )
        alpha = _match(self.config.get("alpha_pattern"), module, self.label)
        alpha = self.config.get("lora_alpha") if alpha is None else alpha
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise DataError(f"{self.label}: lora_alpha in {CONFIG_FILE} is not a number")
        try:
            scale = alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
        except OverflowError:
            scale = math.inf
        if not math.isfinite(scale):
            raise DataError(f"{self.label}: lora_alpha in {CONFIG_FILE} is not finite")
        return _Pair(inner, outer, float(scale))


def _target(name: str) -> tuple[str, str]:
    """The tensor of the base that a tensor of an adapter changes, and the end of a factor."""
    short = name.removeprefix(NAME_PREFIX)
    for part in INSERTED:
        short = short.replace(part, "")
    for ends in FACTOR_ENDS:
        for end in ends:
            if short.endswith(end):
                return short.removesuffix(end) + ".weight", end
    return short, ""


def _check_kind(config: Mapping[str, Any], label: str) -> None:
    """Refuse adapters whose change is not a product of two matrices on the published base."""
    kind = str(config.get("peft_type", "")).upper()
    advice = "merge it into its base with peft, and give the merged models"
    if kind != "LORA":
        shown = f"of the kind {kind[:40]}" if kind else f"without peft_type in {CONFIG_FILE}"
        raise MergeError(f"{label}: an adapter {shown}; only LORA can be merged: {advice}")
    for option, name in UNSUPPORTED_OPTIONS.items():
        if config.get(option):
            raise MergeError(f"{label}: uses {name} ({option}), which is no plain LoRA: {advice}")
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(CHANGED_BASES):
        raise MergeError(
            f"{label}: was started with {start[:20]}, which changes the base; convert it with "
            "path_initial_model_for_weight_conversion of peft"
        )


def _match(patterns: object, module: str, label: str) -> Any:
    """The value of the first pattern that matches the end of a module's name."""
    if not patterns:
        return None
    if not isinstance(patterns, Mapping):
        raise DataError(f"{label}: a pattern in {CONFIG_FILE} is not a JSON object")
    for pattern, value in patterns.items():
        if not PATTERN.fullmatch(pattern) or pattern.count("*") > MAX_WILDCARDS:
            raise DataError(
                f"{label}: the pattern {pattern[:40]!r} in {CONFIG_FILE} is not understood; use "
                "names of modules"
            )
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return None


class AdaptedBase:
    """A base with an adapter on it, as a `DeltaSource`: what a merge takes as an expert."""

    def __init__(self, adapter: Adapter, base: TensorSource) -> None:
        self.adapter, self.label, self._base = adapter, adapter.label, base
        self.specs = base.specs
        self.metadata: dict[str, str] = {}
        self.shards = adapter.files.shards
        # Without a base, tensors that are stored in full have no change.
        full = () if isinstance(base, NoBase) else adapter.full
        names = [*adapter.pairs, *full]
        rename = _prefix_rule(names, base)
        if rename is None:
            lost = next(name for name in names if name not in base.specs)
            raise MergeError(
                f"{self.label}: changes {lost}, which {base.label} does not have; give the base "
                "that the adapter was trained on"
            )
        self._names = {_renamed(name, rename): name for name in names}
        for name, own in self._names.items():
            self._check_shape(name, own)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries of a tensor of the base, changed by the adapter."""
        own = self._names.get(name)
        if own in self.adapter.full:
            return self.adapter.files.read(self.adapter.full[own], start, stop)
        entries = self._base.read(name, start, stop)
        if own is None:
            return entries
        return entries.to(torch.float32) + self.read_delta(name, start, stop)

    def read_delta(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries of the change of a tensor."""
        own, spec = self._names.get(name), self.specs[name]
        stop = spec.size if stop is None else min(stop, spec.size)
        if own is None:
            return torch.zeros(1).expand(stop - start)
        if own in self.adapter.full:
            base = self._base.read(name, start, stop)
            wide = torch.float64 if base.dtype == torch.float64 else torch.float32
            return self.read(name, start, stop).to(wide) - base.to(wide)
        return self.adapter.delta(own, spec.shape).entries(start, stop)

    def own_name(self, name: str) -> str | None:
        """The adapter's name of a tensor that it changes."""
        return self._names.get(name)

    def changes(self, name: str) -> bool:
        """Whether the adapter changes a tensor."""
        return name in self._names

    def low_rank(self, name: str) -> LowRankDelta | None:
        """The change of a tensor as a product; of rank 0 if there is none."""
        own, spec = self._names.get(name), self.specs[name]
        if own in self.adapter.full:
            return None
        if own is None:
            rows = spec.shape[0] if spec.shape else 1
            return LowRankDelta(torch.zeros(rows, 0), torch.zeros(0, spec.size // max(rows, 1)))
        return self.adapter.delta(own, spec.shape)

    def _check_shape(self, name: str, own: str) -> None:
        shape, theirs = self.specs[name].shape, self.adapter.shape(own)
        same = shape == theirs or (own in self.adapter.pairs and shape == theirs[::-1])
        if not same:
            raise MergeError(
                f"{self.label}: changes {name} with the shape {list(theirs)}, but it is "
                f"{list(shape)} in {self._base.label}"
            )


def _prefix_rule(names: Sequence[str], base: TensorSource) -> tuple[str, str] | None:
    """The prefix to remove and the one to add, so that all names are those of the base.

    Models with and without a head differ by such a prefix, e.g. "bert.".
    """
    first = {name.partition(".")[0] + "." for name in names}
    added = {name.partition(".")[0] + "." for name in base.specs}
    rules = [("", ""), *((one, "") for one in sorted(first)), *(("", one) for one in sorted(added))]
    for rule in rules:
        if all(_renamed(name, rule) in base.specs for name in names):
            return rule
    return None


def _renamed(name: str, rule: tuple[str, str]) -> str:
    removed, added = rule
    return added + name.removeprefix(removed)


class NoBase:
    """Zeros with the names and shapes of adapters: stands for a base that is not at hand."""

    label = "no base"

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.specs: dict[str, TensorSpec] = {}
        for adapter in adapters:
            for name in adapter.pairs:
                spec = TensorSpec(torch.float32, adapter.shape(name))
                if self.specs.setdefault(name, spec).shape != spec.shape:
                    raise MergeError(
                        f"{adapter.label}: changes {name} with the shape {list(spec.shape)}, but "
                        f"another adapter has {list(self.specs[name].shape)}; give adapters of "
                        "one base"
                    )

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Zeros."""
        size = self.specs[name].size
        return torch.zeros(1).expand(min(size, size if stop is None else stop) - start)


def mean_of_full_tensors(adapters: Sequence[Adapter]) -> dict[str, Tensor]:
    """Means of the tensors that adapters store in full; without a base there are no changes."""
    names = {name: None for adapter in adapters for name in adapter.full}
    means = {}
    for name in names:
        tensors = list(_full_tensors(adapters, name))
        means[name] = torch.stack(tensors).mean(0)
    return means


def _full_tensors(adapters: Sequence[Adapter], name: str) -> Iterator[Tensor]:
    shapes = {adapter.shape(name) for adapter in adapters if name in adapter.full}
    for adapter in adapters:
        if name not in adapter.full or len(shapes) > 1:
            raise MergeError(
                f"{adapter.label}: {name} is not in it, or has another shape there, but another "
                "adapter stores it in full; give the base as well"
            )
        yield adapter.files.read(adapter.full[name]).float().view(adapter.shape(name))
