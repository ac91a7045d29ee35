"""Adapters as results: several adapters merged into one, and an adapter of a fine-tuned model.

The result is a LoRA of one rank in the layout of PEFT. The best approximation of a merged change by
a product of this rank is kept, and the share of the norm that it keeps is reported.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from afield import registry
from afield.compute import preserve_torch_state
from afield.errors import MergeError
from afield.files import atomic_write, file_digest, read_json_object
from afield.merging.adapters import (
    CONFIG_FILE,
    NAME_PREFIX,
    WEIGHTS_FILE,
    AdaptedBase,
    Adapter,
    NoBase,
    mean_of_full_tensors,
)
from afield.merging.checks import TensorChange
from afield.merging.core_space import factorize, truncate
from afield.merging.files import DIGEST_DIGITS, equalize_norms, write_readme
from afield.merging.job import (
    MergeJob,
    Space,
    log_merge_warnings,
    merge_pieces,
    plan_merge,
    weight_factors,
)
from afield.merging.scopes import LowRankDelta, needs_statistics, needs_validation
from afield.merging.tensor_files import TensorFiles
from afield.progress import track

# Modules whose weights are embeddings, which have factors of other names.
EMBEDDING = re.compile(r"(^|[._])(embed|embeddings?|emb|wte|wpe|\w+_embeddings?|embed_\w+)$")


@dataclass(frozen=True)
class Kept:
    """What an adapter keeps of the changes that it approximates."""

    rank: int
    share: float
    worst: tuple[str, float]
    job: MergeJob | None = None
    left_out: tuple[str, ...] = ()


@dataclass
class _Factors:
    """The factors of an adapter under construction, and the squares of norms."""

    rank: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    kept: float = 0.0
    whole: float = 0.0
    shares: dict[str, float] = field(default_factory=dict)

    def count(self, name: str, kept: float, whole: float) -> None:
        """Add the squared norms of a change and of its approximation."""
        self.kept, self.whole = self.kept + kept, self.whole + whole
        self.shares[name] = math.sqrt(kept / whole) if whole else 1.0

    def summary(self, **facts: Any) -> Kept:
        """The share of the norm that is kept, in total and for the tensor that keeps least."""
        share = math.sqrt(self.kept / self.whole) if self.whole else 1.0
        worst = min(self.shares.items(), key=lambda item: item[1], default=("", 1.0))
        return Kept(self.rank, min(share, 1.0), (worst[0], min(worst[1], 1.0)), **facts)


@dataclass(frozen=True)
class AdapterMerge:
    """Which adapters to merge into one adapter, and how."""

    how: str
    experts: tuple[Path, ...]
    rank: int | None = None
    base: Path | None = None
    scale: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    expert_weights: tuple[float, ...] = ()
    equalize: str = ""
    space: Space = "auto"
    device: str = "cpu"

    def write(self, out: Path, *, overwrite: bool = False) -> Kept:
        """Merge adapters into the folder of an adapter, which appears only once it is complete."""
        out = out.expanduser()
        check_new_folder(out, overwrite=overwrite)
        with preserve_torch_state(threads=1, cuda=False):
            adapters, job = self.open_job()
            rank = self.rank or max(max(adapter.ranks().values()) for adapter in adapters)
            check_rank(rank)
            factors, changes = _Factors(rank), list[TensorChange]()
            if self.equalize:
                equalize_norms(job)
            for name in track(job.actions, self.how, len(job.actions)):
                _merge_tensor(job, name, factors, changes)
            if self.base is None:
                means = mean_of_full_tensors(adapters)
                factors.tensors |= {_stored_name(adapters, name): means[name] for name in means}
        log_merge_warnings(job, changes, has_base=self.base is not None)
        kept = factors.summary(job=job)
        config = _merged_config(adapters, rank)
        made = self._provenance(job, adapters, kept)
        _write_folder(out, factors.tensors, config, made, overwrite=overwrite)
        return kept

    def open_job(self) -> tuple[list[Adapter], MergeJob]:
        """Open the adapters and decide what happens to each tensor."""
        merge = registry.find("merges", self.how)
        if needs_validation(merge) or needs_statistics(merge):
            raise MergeError(
                f"{self.how} needs data, which adapters do not have; use another merge"
            )
        adapters = [Adapter(path) for path in self.experts]
        base = NoBase(adapters) if self.base is None else TensorFiles(self.base)
        experts = [AdaptedBase(adapter, base) for adapter in adapters]
        names = {name for name in base.specs if any(e.own_name(name) is not None for e in experts)}
        job = plan_merge(
            *(self.how, base, experts),
            scale=self.scale,
            params=self.params,
            device=self.device,
            weights=weight_factors(self.expert_weights, len(experts)),
            space=self.space,
            names=names,
        )
        return adapters, job

    def _provenance(self, job: MergeJob, adapters: Sequence[Adapter], kept: Kept) -> dict[str, Any]:
        base = {} if self.base is None else {self.base.name: ""}
        choices = {
            "weights": list(self.expert_weights),
            "equalize": self.equalize,
            "space": "core" if job.in_core_space else "",
        }
        return {
            "merge": self.how,
            "params": job.params,
            "scale": self.scale,
            "rank": kept.rank,
            "share of the norm": round(kept.share, 4),
            "tensors": {"merged": len(job.actions)},
            "base": base,
            "experts": [
                {adapter.path.name: file_digest(adapter.path / WEIGHTS_FILE)[:DIGEST_DIGITS]}
                for adapter in adapters
            ],
            **{name: value for name, value in choices.items() if value},
            "version": version("afield"),
        }


def check_rank(rank: int) -> None:
    """Raise an error unless a rank is possible."""
    if not 1 <= rank <= MAX_RANK:
        raise MergeError(f"rank={rank}: give a rank from 1 to {MAX_RANK}")


# A rank above this is larger than nearly every matrix.
MAX_RANK = 65536


def check_new_folder(out: Path, *, overwrite: bool) -> None:
    """Raise an error if something other than an adapter would be replaced."""
    if not out.exists():
        return
    if not overwrite:
        raise MergeError(f"{out}: exists already; give another name, or --force to replace it")
    if not (out / CONFIG_FILE).is_file():
        raise MergeError(f"{out}: exists and is no adapter; give another name")


def _merge_tensor(job: MergeJob, name: str, factors: _Factors, changes: list[TensorChange]) -> None:
    """Merge one tensor and add its factors, or its entries if it is stored in full."""
    sources = [expert for expert in job.experts if isinstance(expert, AdaptedBase)]
    owner = next(source for source in sources if source.own_name(name) is not None)
    own, shape = str(owner.own_name(name)), job.base.specs[name].shape
    adapter = owner.adapter
    if own in adapter.full:
        pieces = torch.cat(list(merge_pieces(job, name, changes.append)))
        factors.tensors[adapter.full[own]] = pieces.view(shape).contiguous()
        return
    if (cores := job.cores(name)) is not None:
        merged = job.merge_cores(name, cores)
        scaled = LowRankDelta(merged.left * job.scale, merged.right)
        delta, kept, whole = truncate(scaled, factors.rank)
        norms = cores.cores.double().flatten(1).norm(dim=1).tolist()
        changes.append(TensorChange(name, 0.0, tuple(norms)))
    else:
        if len(sources) != sum(source.low_rank(name) is not None for source in sources):
            raise MergeError(f"{name}: one adapter has factors for it, another stores it in full")
        pieces = torch.cat(list(merge_pieces(job, name, changes.append)))
        whole_change = pieces.float() - job.base.read(name).to(pieces.device).float()
        delta, kept, whole = factorize(whole_change.view(shape[0], -1), factors.rank)
    factors.count(name, kept, whole)
    factors.tensors |= adapter.factors(own, shape, _padded(delta, factors.rank))


def _padded(delta: LowRankDelta, rank: int) -> LowRankDelta:
    """The same change with factors of this rank."""
    missing = rank - delta.rank
    pad = torch.nn.functional.pad
    return LowRankDelta(pad(delta.left, (0, missing)), pad(delta.right, (0, 0, 0, missing)))


def _stored_name(adapters: Sequence[Adapter], name: str) -> str:
    return next(adapter.full[name] for adapter in adapters if name in adapter.full)


def _merged_config(adapters: Sequence[Adapter], rank: int) -> dict[str, Any]:
    """The config of a merged adapter: what all have in common, with one rank and the scale 1."""
    first = adapters[0].config
    modules = {name.removesuffix(".weight") for adapter in adapters for name in adapter.pairs}
    saved = {
        str(name) for adapter in adapters for name in adapter.config.get("modules_to_save") or ()
    }
    config = _config(rank, sorted(modules), sorted(saved))
    for key in ("base_model_name_or_path", "task_type", "bias", "fan_in_fan_out"):
        if key in first:
            config[key] = first[key]
    return config


def _config(rank: int, modules: Sequence[str], saved: Sequence[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "target_modules": list(modules),
        "modules_to_save": list(saved) or None,
    }


def _write_folder(
    out: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    made: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    check_new_folder(out, overwrite=overwrite)
    with atomic_write(out, durable=True, folder=True) as temporary:
        metadata = {"format": "pt", "afield": json.dumps(made)}
        save_file(dict(sorted(tensors.items())), temporary / WEIGHTS_FILE, metadata=metadata)
        text = json.dumps(config, indent=2, sort_keys=True)
        (temporary / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        write_readme(temporary, out.name, made)


def extract_adapter(
    base: str | Path, tuned: str | Path, out: str | Path, *, rank: int, overwrite: bool = False
) -> Kept:
    """Write the adapter that changes a base into nearly a fine-tuned model.

    Parameters
    ----------
    base, tuned
        Models of one architecture: safetensors files, folders of Hugging Face, or checkpoints.
    out
        The folder to write, in the layout of PEFT.
    rank
        The rank of the adapter. Matrices and convolutions get factors of this rank; modules that
        have only other tensors, such as normalizations, are stored in full if they changed.
    overwrite
        Whether another adapter may be replaced.
    """
    path = Path(out).expanduser()
    check_new_folder(path, overwrite=overwrite)
    check_rank(rank)
    first = TensorFiles(base)
    second = TensorFiles(tuned, like=first.specs)
    with preserve_torch_state(threads=1, cuda=False):
        job = plan_merge("average", first, [second])
        factors, saved, left_out = _Factors(rank), dict[str, list[str]](), list[str]()
        changed = [name for name in job.actions if job.acts_on(name) and _differs(job, name)]
        if not changed:
            raise MergeError(f"{tuned}: has the same weights as {base}; there is no change")
        adapted = {name.removesuffix(".weight") for name in changed if _has_factors(job, name)}
        for name in track(changed, "factors", len(changed)):
            module = name.rpartition(".")[0]
            if _has_factors(job, name):
                _add_factors(job, name, factors)
            elif module in adapted or not module:
                left_out.append(name)
            else:
                saved.setdefault(module, [])
        for module in saved:
            for name in (name for name in job.actions if name.rpartition(".")[0] == module):
                entries = second.read(name).view(second.specs[name].shape)
                factors.tensors[NAME_PREFIX + name] = entries.contiguous()
    if not factors.shares:
        raise MergeError(f"{tuned}: no matrix differs from {base}; an adapter cannot hold that")
    config = _config(rank, sorted(adapted), sorted(saved))
    config["fan_in_fan_out"] = _is_transposed_model(first.path)
    kept = factors.summary(left_out=tuple(left_out))
    made = {
        "merge": "extract",
        "params": {},
        "scale": 1.0,
        "rank": rank,
        "share of the norm": round(kept.share, 4),
        "tensors": {"factors": len(factors.shares), "in full": len(saved)},
        "base": {file.name: file_digest(file)[:DIGEST_DIGITS] for file in first.shards},
        "experts": [{file.name: file_digest(file)[:DIGEST_DIGITS] for file in second.shards}],
        "version": version("afield"),
    }
    _write_folder(path, factors.tensors, config, made, overwrite=overwrite)
    return kept


def _differs(job: MergeJob, name: str) -> bool:
    return not torch.equal(job.base.read(name), job.experts[0].read(name))


def _has_factors(job: MergeJob, name: str) -> bool:
    return len(job.base.specs[name].shape) >= 2 and name.endswith(".weight")


def _add_factors(job: MergeJob, name: str, factors: _Factors) -> None:
    """Add the factors of the change of a matrix or convolution."""
    shape, dtype = job.base.specs[name].shape, job.base.specs[name].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    change = job.experts[0].read(name).to(wide) - job.base.read(name).to(wide)
    if not change.isfinite().all():
        raise MergeError(f"{job.experts[0].label}: NaN or infinity in {name}; give finite weights")
    delta, kept, whole = factorize(change.view(shape[0], -1), factors.rank)
    factors.count(name, kept, whole)
    module, delta = name.removesuffix(".weight"), _padded(delta, factors.rank)
    start, rank = NAME_PREFIX + module, factors.rank
    if len(shape) == 2 and EMBEDDING.search(module):
        pair = {"lora_embedding_A": delta.left.mT, "lora_embedding_B": delta.right.mT}
    elif len(shape) == 2 and _is_transposed_model(Path(job.base.label)):
        pair = {"lora_A.weight": delta.left.mT, "lora_B.weight": delta.right.mT}
    else:
        ones = [1] * (len(shape) - 2)
        pair = {
            "lora_A.weight": delta.right.reshape(rank, *shape[1:]),
            "lora_B.weight": delta.left.reshape(-1, rank, *ones),
        }
    factors.tensors |= {f"{start}.{end}": tensor.contiguous() for end, tensor in pair.items()}


def _is_transposed_model(path: Path) -> bool:
    """Whether a folder of Hugging Face has a GPT-2, whose linear layers are transposed."""
    file = path.expanduser() / "config.json"
    kinds = ("gpt2", "openai-gpt")
    return file.is_file() and read_json_object(file).get("model_type") in kinds
