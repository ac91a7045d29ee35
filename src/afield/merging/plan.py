"""A merge as a file: which models are merged and how, in TOML, or in the YAML of mergekit.

    merge = "ties"
    base = "base"                      # left out if all experts are adapters
    scale = 1.0                        # left out: the usual scale of the merge
    settings = {density = 0.3}

    [[experts]]
    path = "a"
    weight = 2.0

    [[overrides]]
    tensors = "*.mlp.*"                # a pattern, as in a shell
    merge = "average"                  # or "base", which leaves the tensors as they are

Paths are relative to the file. The same plan gives the same bytes.
"""

import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml

from afield import registry
from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output, parse_size, read_text
from afield.merging.adapter_files import AdapterMerge
from afield.merging.adapters import is_adapter
from afield.merging.files import LEAVE, FileMerge, Override
from afield.merging.job import Space
from afield.merging.scopes import scale_of

MAX_PLAN_BYTES = 1 << 20
KEYS = (
    *("merge", "base", "experts", "scale", "settings", "overrides", "equalize", "dtype"),
    *("shards", "rank", "space", "statistics", "device"),
)
EXPERT_KEYS = ("path", "weight")
OVERRIDE_KEYS = ("tensors", "merge", "scale", "settings")


@dataclass(frozen=True)
class MergePlan:
    """All choices of one merge of files."""

    merge: str
    experts: tuple[Path, ...]
    base: Path | None = None
    scale: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    overrides: tuple[Override, ...] = ()
    equalize: str = ""
    dtype: str = ""
    shards: str = ""
    rank: int | None = None
    space: Space = "auto"
    statistics: tuple[Path, ...] = ()
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.space not in get_args(Space):
            raise SpecError(f"space={self.space}: give one of {', '.join(get_args(Space))}")

    @property
    def makes_adapter(self) -> bool:
        """Whether the result is an adapter: if a rank is given, or if there is no base."""
        return self.rank is not None or self.base is None

    def usual_scale(self) -> float:
        """The given scale, or the usual one of the merge."""
        merge = registry.find("merges", self.merge)
        return scale_of(merge) if self.scale is None else self.scale

    def file_merge(self) -> FileMerge:
        """The merge into whole weights."""
        if self.base is None:
            raise SpecError("no base; give the model that was fine-tuned")
        return FileMerge(
            self.merge,
            self.base,
            self.experts,
            self.usual_scale(),
            self.statistics,
            self.settings,
            self.device,
            expert_weights=self.weights,
            equalize=self.equalize,
            overrides=self.overrides,
            dtype=self.dtype,
            shard_bytes=parse_size(self.shards, option="shards") if self.shards else 0,
            space=self.space,
        )

    def adapter_merge(self) -> AdapterMerge:
        """The merge into an adapter."""
        refused = {
            "overrides": self.overrides,
            "dtype": self.dtype,
            "shards": self.shards,
            "statistics": self.statistics,
        }
        for name, value in refused.items():
            if value:
                raise SpecError(f"{name}: not for an adapter as the result; leave it out")
        plain = next((path for path in self.experts if not is_adapter(path)), None)
        if plain is not None:
            raise SpecError(
                f"{plain}: not an adapter of PEFT, but the result is to be one; give a base, and "
                "make an adapter of the result with `afield merge-extract`"
            )
        return AdapterMerge(
            self.merge,
            self.experts,
            rank=self.rank,
            base=self.base,
            scale=self.usual_scale(),
            params=self.settings,
            expert_weights=self.weights,
            equalize=self.equalize,
            space=self.space,
            device=self.device,
        )


def read_plan(path: str | Path) -> MergePlan:
    """Read a plan in TOML, or a merge of mergekit in YAML."""
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_PLAN_BYTES:
            raise DataError(f"{file}: larger than 1 MB; a plan is a short text")
        text = read_text(file)
        if file.suffix in (".yaml", ".yml"):
            return read_mergekit(yaml.safe_load(text), file)
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: not readable; give a plan in TOML or YAML") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise SpecError(f"{file}: not valid ({reason})") from None
    return _from_toml(content, file)


def _from_toml(content: Mapping[str, Any], file: Path) -> MergePlan:
    _check_keys(content, KEYS, file)
    experts = _tables(content.get("experts"), "experts", EXPERT_KEYS, file)
    overrides = _tables(content.get("overrides", []), "overrides", OVERRIDE_KEYS, file)
    if not experts:
        raise SpecError(f"{file}: no experts; add [[experts]] with a path for each model")
    given = [expert.get("weight") for expert in experts]
    weights = [1.0 if weight is None else _number(weight, "weight", file) for weight in given]
    has_weights = any(weight is not None for weight in given)
    rank = content.get("rank")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int)):
        raise SpecError(f"{file}: rank is not a whole number")
    scale = content.get("scale")
    return MergePlan(
        _text(content.get("merge"), "merge", file),
        tuple(_path(expert.get("path"), file) for expert in experts),
        base=_path(content["base"], file) if "base" in content else None,
        scale=None if scale is None else _number(scale, "scale", file),
        settings=_table(content.get("settings", {}), "settings", file),
        weights=tuple(weights) if has_weights else (),
        overrides=tuple(_override(override, file) for override in overrides),
        equalize=_text(content.get("equalize", ""), "equalize", file),
        dtype=_text(content.get("dtype", ""), "dtype", file),
        shards=_text(content.get("shards", ""), "shards", file),
        rank=rank,
        space=content.get("space", "auto"),
        statistics=tuple(_path(each, file) for each in content.get("statistics", ())),
        device=_text(content.get("device", "cpu"), "device", file),
    )


def _override(content: Mapping[str, Any], file: Path) -> Override:
    scale = content.get("scale")
    return Override(
        _text(content.get("tensors"), "tensors", file),
        _text(content.get("merge", ""), "merge", file),
        None if scale is None else _number(scale, "scale", file),
        _table(content.get("settings", {}), "settings", file),
    )


def _check_keys(content: object, known: Sequence[str], file: Path) -> None:
    for key in _table(content, "the file", file):
        if key not in known:
            raise SpecError(f"{file}: no setting {key!r}; {registry.hint(key, list(known))}")


def _tables(value: object, name: str, known: Sequence[str], file: Path) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise SpecError(f"{file}: {name} is not a list; write [[{name}]] for each")
    for each in value:
        _check_keys(each, known, file)
    return value


def _table(value: object, name: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(f"{file}: {name} is not a table")
    return value


def _text(value: object, name: str, file: Path) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{file}: {name} is missing or not a text")
    return value


def _number(value: object, name: str, file: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"{file}: {name} is not a finite number")
    return float(value)


def _path(value: object, file: Path) -> Path:
    """A path in a plan, which is relative to the folder of the plan."""
    return file.parent / Path(_text(value, "path", file)).expanduser()


def save_plan(plan: MergePlan, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a plan in TOML, with paths relative to its folder."""
    file = Path(path).expanduser()
    if file.suffix != ".toml":
        raise SpecError(f"{file}: a plan is a TOML file; name it {file.stem}.toml")
    check_output(file, overwrite=overwrite)
    with atomic_write(file) as temporary:
        temporary.write_text(_to_toml(plan, file.parent), encoding="utf-8")


def _to_toml(plan: MergePlan, folder: Path) -> str:
    def relative(path: Path) -> str:
        return os.path.relpath(path.expanduser().absolute(), folder.absolute())

    values = {
        "merge": plan.merge,
        "base": relative(plan.base) if plan.base else None,
        "scale": plan.usual_scale(),
        "settings": dict(plan.settings) or None,
        "equalize": plan.equalize or None,
        "dtype": plan.dtype or None,
        "shards": plan.shards or None,
        "rank": plan.rank,
        "space": None if plan.space == "auto" else plan.space,
        "statistics": [relative(each) for each in plan.statistics] or None,
        "device": None if plan.device == "cpu" else plan.device,
    }
    lines = _lines(values)
    weights = plan.weights or (None,) * len(plan.experts)
    for expert, weight in zip(plan.experts, weights, strict=True):
        lines += ["", "[[experts]]", *_lines({"path": relative(expert), "weight": weight})]
    for override in plan.overrides:
        content = {
            "tensors": override.tensors,
            "merge": override.how or None,
            "scale": override.scale,
            "settings": dict(override.params) or None,
        }
        lines += ["", "[[overrides]]", *_lines(content)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


# mergekit's methods: our merge, whether it divides by the sum of the weights, the usual density.
MERGEKIT_METHODS = {
    "linear": ("average", True),
    "task_arithmetic": ("task_arithmetic", False),
    "ties": ("ties", True),
    "dare_linear": ("dare", False),
    "breadcrumbs": ("breadcrumbs", False),
    "model_stock": ("model_stock", True),
    "slerp": ("slerp", True),
}
MERGEKIT_KEYS = (
    *("merge_method", "models", "slices", "base_model", "parameters", "dtype", "out_dtype"),
    *("tokenizer_source", "name"),
)
MERGEKIT_PARAMETERS = (
    *("weight", "density", "gamma", "lambda", "normalize", "rescale", "int8_mask", "t"),
    "filter_wise",
)


def read_mergekit(content: object, file: Path) -> MergePlan:
    """A merge of mergekit as a plan; what has no equal here is refused by name.

    Differs from mergekit: `ties` trims over the whole model, as its authors' code does, and not in
    every tensor; `dare` draws other entries.
    """
    config = _table(content, "the file", file)
    _check_keys(config, MERGEKIT_KEYS, file)
    method = config.get("merge_method")
    if method not in MERGEKIT_METHODS:
        known = ", ".join(MERGEKIT_METHODS)
        raise SpecError(f"{file}: merge_method {str(method)[:40]} is not read; known: {known}")
    if config.get("tokenizer_source", "base") not in ("base", config.get("base_model")):
        raise SpecError(f"{file}: only the tokenizer of the base is kept; leave it out")
    common = _parameters(config, file)
    base = _model(config["base_model"], file) if "base_model" in config else None
    entries = [
        (_model(entry.get("model"), file), _parameters(entry, file))
        for entry in _models(config, file)
    ]
    merge, divides = MERGEKIT_METHODS[method]
    if merge == "slerp":
        return _slerp_plan(config, base, entries, common, file)
    if merge == "average":
        base = base or entries[0][0]
    else:
        entries = [(model, own) for model, own in entries if model != base]
    if base is None:
        raise SpecError(f"{file}: {method} needs base_model")
    return _delta_plan(config, merge, base, entries, common, divides=divides, file=file)


def _delta_plan(
    config: Mapping[str, Any],
    merge: str,
    base: Path,
    entries: Sequence[tuple[Path, Mapping[str, Any]]],
    common: Mapping[str, Any],
    *,
    divides: bool,
    file: Path,
) -> MergePlan:
    """A plan of the methods that combine changes to a base."""
    if not entries:
        raise SpecError(f"{file}: no models to merge")
    merged = [{**common, **own} for _, own in entries]
    default = 1.0 if merge in ("average", "model_stock") else None
    weights = tuple(_number(each.get("weight", default), "weight", file) for each in merged)
    normalize = bool(common.get("normalize", divides))
    if merge == "ties" and (not normalize or len(set(weights)) > 1):
        raise SpecError(f"{file}: ties is read with equal weights and normalize: true only")
    if merge == "dare" and common.get("rescale", True) is not True:
        raise SpecError(f"{file}: dare is read with rescale: true only")
    mean = sum(weights) / len(weights)
    if mean <= 0:
        raise SpecError(f"{file}: the weights must be at least 0, and not all 0")
    # Our merges sum or average the changes times their weights over the mean weight.
    scale = _number(common.get("lambda", 1.0), "lambda", file)
    if merge in ("task_arithmetic", "dare", "breadcrumbs"):
        scale *= 1 / len(weights) if normalize else mean
    elif not normalize:
        scale *= sum(weights)
    return MergePlan(
        merge,
        tuple(model for model, _ in entries),
        base=base,
        scale=scale,
        settings=_density_settings(merge, merged, file),
        weights=weights if len(set(weights)) > 1 else (),
        dtype=_dtype(config, file),
    )


def _density_settings(
    merge: str, merged: Sequence[Mapping[str, Any]], file: Path
) -> dict[str, Any]:
    densities = {_number(each.get("density", 1.0), "density", file) for each in merged}
    gammas = {_number(each.get("gamma", 0.01), "gamma", file) for each in merged}
    if len(densities) > 1 or len(gammas) > 1:
        raise SpecError(f"{file}: density and gamma must be equal for all models")
    density, gamma = densities.pop(), gammas.pop()
    settings = {
        "ties": {"density": density},
        "dare": {"drop": round(1 - density, 12)},
        "breadcrumbs": {"low": round(1 - density - gamma, 12), "high": gamma},
    }
    return settings.get(merge, {})


def _slerp_plan(
    config: Mapping[str, Any],
    base: Path | None,
    entries: Sequence[tuple[Path, Mapping[str, Any]]],
    common: Mapping[str, Any],
    file: Path,
) -> MergePlan:
    others = [model for model, _ in entries if model != base]
    if base is None or len(others) != 1:
        raise SpecError(f"{file}: slerp needs base_model and one other model")
    t = _number(common.get("t"), "t", file)
    experts = (base, others[0])
    settings = {"t": t}
    return MergePlan(
        "slerp", experts, base=base, scale=1.0, settings=settings, dtype=_dtype(config, file)
    )


def _dtype(config: Mapping[str, Any], file: Path) -> str:
    value = config.get("out_dtype", config.get("dtype"))
    return "" if value is None else _text(value, "dtype", file)


def _parameters(content: object, file: Path) -> dict[str, Any]:
    parameters = _table(content, "a model", file).get("parameters") or {}
    _check_keys(parameters, MERGEKIT_PARAMETERS, file)
    for name, value in parameters.items():
        if isinstance(value, list | dict):
            raise SpecError(f"{file}: {name} differs between layers, which is not read")
    if parameters.get("filter_wise"):
        raise SpecError(f"{file}: filter_wise is not read; leave it out")
    return dict(parameters)


def _models(config: Mapping[str, Any], file: Path) -> list[dict[str, Any]]:
    """The models of a merge; of slices, only one that has whole models."""
    models = config.get("models")
    if models is None:
        slices = config.get("slices")
        if not isinstance(slices, list) or len(slices) != 1 or not isinstance(slices[0], dict):
            raise SpecError(f"{file}: give models, or one slice with all layers")
        models = slices[0].get("sources")
    if not isinstance(models, list) or not models:
        raise SpecError(f"{file}: give models, each with a path under model")
    ranges = [_table(entry, "a model", file).get("layer_range") or [0] for entry in models]
    if ranges[0][:1] != [0] or any(each != ranges[0] for each in ranges):
        raise SpecError(f"{file}: slices of layers are not read; give all layers of all models")
    return models


def _model(value: object, file: Path) -> Path:
    """The path of a model; of BASE+ADAPTER, the adapter."""
    text = _text(value, "model", file)
    path = _path(text, file)
    if path.exists():
        return path
    adapter = _path(text.rpartition("+")[2], file)
    if "+" in text and is_adapter(adapter):
        return adapter
    raise DataError(
        f"{file}: {text} is not there; download the model, and give its folder as the path"
    )


def leave_overrides(patterns: Sequence[str]) -> tuple[Override, ...]:
    """Overrides that leave the tensors of these patterns as in the base."""
    return tuple(Override(pattern, LEAVE) for pattern in patterns)
