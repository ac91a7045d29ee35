"""The keywords of `afield.bench`, which editors complete and type checkers know.

They are the fields of `Benchmark` and the settings of `Training`; a test compares them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_type_hints

Names = str | Sequence[str]


class BenchOptions(TypedDict, total=False):
    """Options of a benchmark, as those of ``afield bench``, and settings of its runs."""

    trials: int
    draws: int
    rules: Names
    targets: Names
    sources: Names
    validate_on: Names
    single_source: bool
    hold_out: float
    validate: float | None
    train_on: int | str | Sequence[int | str]
    merges: Names
    expert_method: Names
    base_steps: int | None
    expert_draws: int | None
    start: str
    average: str
    ensemble: int | None
    classes: str | None
    adapt: Names
    label: str
    domain: str
    text: str
    column_types: str
    drop: str
    finetune: bool | None
    settings: Mapping[str, Any]
    on: str
    workers: int | None
    device: str
    threads: int
    cpus: float | None
    gpus: float
    retries: int
    # Settings of the runs, which every method shares.
    steps: int
    every: int | None
    epochs: float
    batch: int | str
    lr: float
    weight_decay: float
    batch_total: int
    optimizer: str
    lr_schedule: str
    clip_norm: float
    backbone: Any
    weights: str | None
    freeze_bn: bool | None
    size: int | None
    augment: Literal["none", "light", "full"] | None
    tokens: int | None
    pooling: Literal["", "mean", "first"]
    tune: str
    freeze_blocks: int
    freeze_head: bool
    layer_decay: float
    head_lr: float
    columns: Literal["", "table"]
    domains_per_step: int
    balance: bool
    limit: int
    split: Literal["lists", "random"]
    report: Literal["test", "whole"]
    skip_broken: bool
    metric: str
    group: str
    precision: Literal["fp32", "bf16", "fp16", "auto"]
    inexact: bool
    compile: bool
    class_names: str
    templates: str


def explicit_signature(function: Callable[..., Any], options: type) -> inspect.Signature:
    """The signature of a function with a keyword for each option in place of ``**options``."""
    declared = inspect.signature(function)
    kept = [p for p in declared.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(options).items()
    ]
    return declared.replace(parameters=[*kept, *added])
