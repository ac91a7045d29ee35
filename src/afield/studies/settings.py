"""Settings of a run: the dataset's defaults, then the hyperparameter sample, then your own."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from afield import own_code, registry
from afield.data.domains import DomainSet
from afield.data.groups import canonical_group
from afield.data.prompts import Prompts, dataset_prompts
from afield.data.training_settings import WHOLE_DOMAINS, Training
from afield.errors import IncompatibleMethodError, SpecError, UnknownNameError
from afield.hyperparameters import build, defaults, draw_values, split_ranges, without_neutral
from afield.networks.backbone import HUB, Backbone, WholeNetwork, find_backbone
from afield.networks.precision import resolve_precision
from afield.networks.pretrained import registered_weights
from afield.networks.tuning import PARTS, Lora
from afield.registry import hint
from afield.runs.run import CLASSICAL_ROLE, Run
from afield.runs.run_setup import steps_per_epoch
from afield.runs.selection import DEFAULT_RULES, RULES
from afield.training.classical_method import ClassicalMethod
from afield.training.method import Method
from afield.training.metrics import DEFAULT_METRIC, check_classes, find_metric
from afield.training.optimizers import canonical_optimizer, canonical_schedule

# Fewer tokens hold hardly more than the special ones.
MIN_TOKENS = 4


def with_pooling(backbone: Backbone, pooling: str) -> Backbone:
    """The backbone with a pooling that was chosen by hand, which is a part of its name."""
    if not pooling:
        return backbone
    if not backbone.name.startswith("hf:"):
        raise SpecError(f"pooling={pooling}: only for an encoder such as hf:FOLDER; leave it out")
    return find_backbone(f"{backbone.name.partition('?')[0]}?pooling={pooling}")


def token_count(chosen: int | None, backbone: Backbone, dataset: DomainSet) -> int:
    """The number of tokens at which texts are cut; 0 for other samples.

    Raises `SpecError` if the network takes no texts, or nothing else.
    """
    is_text = dataset.modality.has_tokens
    # A network of the user's own may take anything.
    if is_text != backbone.takes_text and not isinstance(backbone, WholeNetwork):
        samples = "texts" if is_text else "no texts"
        instead = "bag:, or an encoder such as hf:FOLDER" if is_text else "another network"
        raise SpecError(f"{backbone.name}: {dataset.name} has {samples}; use {instead}")
    if not is_text:
        if chosen:
            raise SpecError(f"tokens={chosen}: {dataset.name} has no texts; leave it out")
        return 0
    if chosen is not None and chosen < MIN_TOKENS:
        raise SpecError(f"tokens={chosen}: texts need at least {MIN_TOKENS}")
    return chosen or backbone.usual_tokens


# By default, there is a checkpoint every 2 % of the steps.
CHECKPOINTS_PER_RUN = 50
# Side of images for backbones without a size of their own.
DEFAULT_SIZE = 64
MIN_SIZE = 8
# From this side on, images count as photographs, which may be flipped and recolored.
PHOTOGRAPH_SIZE = 96
# The usual learning rate of fine-tuning, if the dataset's own is meant for a small network.
FINE_TUNING_LR = 5e-5
# Settings that may be None, which means that the dataset and the network decide.
OPTIONAL_SETTINGS = ["every", "weights", "freeze_bn", "size", "augment", "optimizer"]
OPTIONAL_SETTINGS += ["lr_schedule", "metric", "tokens"]
Settings = Mapping[str, Any]
# What `tune` stands for, beside after:N, frozen and LoRA.
TUNES: dict[str, dict[str, Any]] = {
    "full": {},
    "body": {"freeze_head": True},
    **{part: {"tune": part} for part in PARTS},
}
# The only settings of training that a classical method has: what is read, split and selected by.
CLASSICAL_SETTINGS = ["size", "tokens", "columns", "limit", "split", "report", "skip_broken"]
CLASSICAL_SETTINGS += ["metric", "group"]
# What gives a classical method its inputs: those of arrays, images and sounds, and those of texts.
CLASSICAL_BACKBONES = {False: "linear", True: "bag:"}
# Fields of a run, and what the provenance of features calls them.
ORIGIN_FIELDS = {"folder": "dataset", "encoder": "backbone", "images": "data"}


def resolve_run(
    dataset: DomainSet,
    method: str,
    sources: tuple[str, ...],
    *,
    trial: int = 0,
    draw: int = 0,
    rules: tuple[str, ...] = DEFAULT_RULES,
    average: str = "last",
    settings: Settings | None = None,
    tested: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
) -> Run:
    """A run with all its settings: the dataset's defaults, the draw, and `settings`.

    Parameters
    ----------
    dataset, method, sources
        The dataset, the name of the method, and the domains to train on.
    trial, draw
        Numbers of the repetition (splits and seed) and of the hyperparameter sample.
    rules, average, settings
        As in `method_runs`.
    tested
        The domains to test on, if the remaining ones are for validation.
    classes
        The classes that the network has outputs for; empty means all classes of the dataset. A
        network whose head is built from the names of the classes always has all.
    """
    is_classical = registry.is_classical(method)
    if is_classical:
        dataset, settings = _classical_settings(dataset, method, settings or {})
        average = "last"
    owners = {"": Training, method: registry.find("methods", method)}
    owners[average] = registry.find("averages", average)
    grouped = _by_owner(settings or {}, owners, [method, average])
    chosen, own_ranges = {}, {}
    for owner, values in grouped.items():
        chosen[owner], own_ranges[owner] = split_ranges(owners[owner], values, owner)
    start = {"": _start(dataset, chosen[""], owners[method]), method: {}, average: {}}
    own = {**dataset.methods.get(method, {}), **dataset.averages.get(average, {})}
    for name, value in own.items():
        owner, _, short = name.rpartition(".")
        start[owner][short] = value
    usual = {owner: defaults(kind) | start.get(owner, {}) for owner, kind in owners.items()}
    drawn = {
        owner: draw_values(
            kind,
            # A draw of a learning rate or a batch says nothing about a classical method.
            draw=draw if owner or not is_classical else 0,
            trial=trial,
            start=start.get(owner),
            own=own_ranges[owner],
        )
        | chosen[owner]
        for owner, kind in owners.items()
    }
    _check_duration(chosen[""])
    if drawn[""]["epochs"] and "every" not in chosen[""]:
        drawn[""]["every"] = None
    if drawn[""]["batch_total"]:
        drawn[""]["batch"], drawn[""]["domains_per_step"] = usual[""]["batch"], 0
    training = resolve_settings(drawn[""], dataset)
    per_step = min(max(0, training["domains_per_step"]), len(sources)) or len(sources)
    built = build(owners[method], drawn[method])
    if training["batch_total"]:
        _check_pooled(built, method, training["batch_total"])
    try:
        built.check_modality(dataset.modality)
        built.check_compilation(dataset.modality, compiled=training["compile"])
        built.check(per_step)
        built.check_batch(training["batch"] or sys.maxsize)
    except SpecError as error:
        suffix = f" (to be trained on {', '.join(sources)})" if len(sources) < 9 else ""
        raise IncompatibleMethodError(f"{error}{suffix}", method) from None
    build(owners[average], drawn[average])
    # A setting that equals the automatic choice does not label the row.
    automatic = {
        name
        for name in OPTIONAL_SETTINGS
        if name in chosen[""]
        and resolve_settings({**drawn[""], name: usual[""][name]}, dataset)[name] == training[name]
    }
    run = Run(
        dataset=dataset.spec,
        data=dataset.fingerprint,
        **_origin(dataset),
        method=method,
        sources=sources,
        trial=trial,
        draw=draw,
        params=without_neutral(owners[method], drawn[method]),
        average=average,
        average_params=without_neutral(owners[average], drawn[average]),
        tested=tested,
        code=_code(method, average, training["backbone"], dataset.name),
        classes=() if find_backbone(training["backbone"]).zero_shot else classes,
        # Whole domains leave no samples for a rule that reads the target.
        rules=tuple(r for r in rules if not (training["report"] and RULES[r].is_oracle)),
        given=_label(chosen, usual, automatic) | _range_labels(grouped, own_ranges),
        role=CLASSICAL_ROLE if is_classical else "",
        **training,
    )
    return resolve_epochs(run, dataset)


def _classical_settings(
    dataset: DomainSet, method: str, settings: Settings
) -> tuple[DomainSet, Settings]:
    """Dataset and settings of a classical method: those of training in steps are left out.

    They have the same values whatever the dataset and the user chose, so that no key depends on
    them. Texts become bags of words; a number of tokens for another network is not theirs.
    """
    backbone = CLASSICAL_BACKBONES[dataset.modality.has_tokens]
    kept = {
        name: value
        for name, value in settings.items()
        if name in CLASSICAL_SETTINGS or name.startswith(f"{method}.")
    }
    usual = {name: getattr(dataset.training, name) for name in CLASSICAL_SETTINGS}
    if settings.get("backbone", dataset.training.backbone) != backbone:
        kept.pop("tokens", None)
        usual["tokens"] = None
    training = Training(**usual, steps=1, every=1, backbone=backbone, augment="none")
    return replace(dataset, training=training, averages={}), kept


def _by_owner(
    settings: Settings, owners: Collection[str], known: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings by their owners, under their short names."""
    grouped: dict[str, dict[str, Any]] = {owner: {} for owner in owners}
    for name, value in reduce_tune(settings).items():
        owner, _, short = name.rpartition(".")
        if owner not in grouped:
            raise UnknownNameError(f"{name}: {owner!r} is not in this run; {hint(owner, known)}")
        grouped[owner][short] = value
    return grouped


def _label(
    chosen: Mapping[str, Settings], usual: Mapping[str, Settings], automatic: Collection[str]
) -> dict[str, Any]:
    """The settings that label a row: those chosen by hand that differ from what would be chosen."""
    return {
        f"{owner}.{name}".lstrip("."): value
        for owner, values in chosen.items()
        for name, value in values.items()
        if value != usual[owner][name] and name not in automatic and name != "group"
    }


def _range_labels(
    grouped: Mapping[str, Settings], own_ranges: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The ranges that label a row, as they were given."""
    return {
        f"{owner}.{name}".lstrip("."): grouped[owner][name]
        for owner, names in own_ranges.items()
        for name in names
    }


def reduce_tune(settings: Settings) -> dict[str, Any]:
    """The settings with `tune` in the fields that it stands for; parts of a network stay.

    >>> [reduce_tune({"tune": tune}) for tune in ("after:3", "body", "full")]
    [{'freeze_blocks': 3}, {'freeze_head': True}, {}]
    >>> reduce_tune({"tune": "lora:rank=2"})
    {'tune': 'lora:rank=2,alpha=4'}
    """
    reduced = dict(settings)
    tune = str(reduced.pop("tune", "") or "")
    given = [name for name in ("freeze_blocks", "freeze_head") if settings.get(name)]
    if tune and given:
        raise SpecError(f"tune={tune} and {given[0]}={settings[given[0]]}: give only one of them")
    kind, _, count = tune.partition(":")
    if kind == "after" and count.isdecimal() and int(count):
        return {**reduced, "freeze_blocks": int(count)}
    if tune == "frozen":
        raise SpecError("tune=frozen: features are computed once, for images only; use tune=head")
    lora = Lora.of(tune)
    if lora is not None:
        return {**reduced, "tune": str(lora)}
    if tune not in ("", *TUNES):
        raise SpecError(
            f"tune={tune}: give frozen, head, body, after:N (such as after:3), norms, attention, "
            "lora:rank=4,alpha=8 or full"
        )
    return {**reduced, **TUNES.get(tune, {})}


def _origin(dataset: DomainSet) -> dict[str, Any]:
    """The folder and the frozen network of features that stand for a folder of images."""
    provenance = dataset.provenance
    # Features that `afield embed` has written are a dataset of their own.
    if "identity" not in provenance:
        return {}
    return {name: str(provenance.get(key, "")) for name, key in ORIGIN_FIELDS.items()}


def _code(method: str, average: str, backbone: str, dataset: str) -> dict[str, str]:
    """Digests of those parts of a run that are the user's own code."""
    kinds = ("methods", "averages", "backbones", "datasets")
    names = (method, average, backbone.partition(":")[0], dataset)
    return own_code.digests(*zip(kinds, names, strict=True))


def resolve_epochs(run: Run, dataset: DomainSet) -> Run:
    """The run with as many steps as its epochs take on its sources."""
    if not run.epochs:
        return run
    steps = max(1, round(run.epochs * steps_per_epoch(run, dataset)))
    every = run.every
    if every == max(1, run.steps // CHECKPOINTS_PER_RUN):
        every = max(1, steps // CHECKPOINTS_PER_RUN)
    return replace(run, steps=steps, every=every)


def _check_pooled(built: Method, method: str, total: int) -> None:
    """Refuse a method that cannot use a step with samples of only one domain, or with few."""
    try:
        built.check(1)
    except SpecError:
        reason = "may have samples of one domain only, and it needs several domains in a step"
    else:
        if built.batches_per_group == 1:
            return
        reason = f"has one batch, and it takes {built.batches_per_group} of each domain in a step"
    raise IncompatibleMethodError(
        f"{method} with batch_total={total}: a pooled batch {reason}; use batch", method
    )


def _check_duration(chosen: Mapping[str, Any]) -> None:
    """Refuse two settings of which only one can hold, and a negative number of domains."""
    per_step = chosen.get("domains_per_step")
    if per_step is not None and per_step < 0:
        raise SpecError(f"domains_per_step={per_step}: must not be below 0")
    for one, other in (
        ("steps", "epochs"),
        ("batch", "batch_total"),
        ("domains_per_step", "batch_total"),
    ):
        if chosen.get(one) and chosen.get(other):
            raise SpecError(
                f"{one}={chosen[one]} and {other}={chosen[other]:g}: give only one of them"
            )
    other = next((n for n in ("batch_total", "domains_per_step", "balance") if chosen.get(n)), "")
    if other and chosen.get("batch") == WHOLE_DOMAINS:
        raise SpecError(f"batch=all: every step takes all samples of all domains; omit {other}")


def _start(dataset: DomainSet, chosen: Mapping[str, Any], method: type[Method]) -> dict[str, Any]:
    """The dataset's defaults, with a smaller learning rate for fine-tuning a pretrained network.

    On arrays, a method may have a network of its own.
    """
    usual = dict(vars(dataset.training))
    if issubclass(method, ClassicalMethod):
        return usual
    backbone = find_backbone(chosen.get("backbone", dataset.training.backbone))
    tuned = backbone.is_pretrained() and chosen.get("weights") != "none"
    if method.array_backbone and dataset.modality.raw and not tuned:
        usual["backbone"] = method.array_backbone
    if tuned and backbone.fine_tuning_settings:
        usual |= backbone.fine_tuning_settings
    elif tuned and not find_backbone(dataset.training.backbone).is_pretrained():
        usual["lr"] = FINE_TUNING_LR
    # AdamW's weight decay shrinks weights. That of other optimizers is a penalty on the loss, for
    # which the same number would be far too much.
    optimizer = canonical_optimizer(chosen.get("optimizer") or usual["optimizer"])
    if usual["optimizer"] == "adamw" and optimizer != "adamw":
        usual["weight_decay"] = 0.0
    return {**usual, **backbone.usual_settings}


def resolve_settings(training: dict[str, Any], dataset: DomainSet) -> dict[str, Any]:
    """The settings without None: what suits the network and the data is filled in."""
    resolved = dict(training)
    backbone = find_backbone(training["backbone"])
    form = backbone.input_form()
    if training["every"] is None:
        resolved["every"] = max(1, training["steps"] // CHECKPOINTS_PER_RUN)
    backbone = with_pooling(backbone, resolved.pop("pooling"))
    usual = HUB if (form or backbone.takes_text) and backbone.has_pretrained_weights() else "none"
    usual = registered_weights(backbone.name) or usual
    weights = training["weights"] if training["weights"] is not None else usual
    resolved["weights"] = "" if weights == "none" else weights
    if weights == HUB or backbone.takes_text:
        resolved["backbone"] = backbone.tagged_name()
    resolved["optimizer"] = canonical_optimizer(training["optimizer"] or "")
    resolved["lr_schedule"] = canonical_schedule(training["lr_schedule"] or "")
    resolved["start"] = backbone.start_digest(resolved["weights"])
    resolved["tokens"] = token_count(training["tokens"], backbone, dataset)
    if training["freeze_bn"] is None:
        resolved["freeze_bn"] = bool(resolved["weights"])
    if training["size"] is None:
        side = form.size if form else DEFAULT_SIZE
        resolved["size"] = side if dataset.modality.resizable else 0
    if dataset.modality.resizable and resolved["size"] < MIN_SIZE:
        raise SpecError(f"size={resolved['size']}: images need at least {MIN_SIZE} pixels a side")
    augment = training["augment"]
    if augment is None:
        augment = "full" if resolved["size"] >= PHOTOGRAPH_SIZE else "light"
        augment = augment if dataset.modality.resizable else "none"
    resolved["augment"] = "" if augment == "none" else augment
    resolved["precision"] = resolve_precision(resolved)
    resolved["prompts"] = _prompts_digest(training, dataset)
    for name in ("class_names", "templates"):
        resolved[name] = str(Path(training[name]).resolve()) if training[name] else ""
    resolved["tune"] = training["tune"] or None
    resolved["layer_decay"] = _layer_decay(training["layer_decay"])
    reads = dataset.modality.has_columns and training["columns"] != "table"
    resolved["columns"] = (training["columns"] or "robust") if reads else None
    resolved["split"] = "" if training["split"] == "lists" else training["split"]
    resolved["report"] = "" if training["report"] == "test" else training["report"]
    resolved["group"] = canonical_group(training["group"])
    resolved["metric"] = _metric(training["metric"] or "", resolved["group"], dataset)
    return resolved


def _layer_decay(decay: float) -> float:
    """The decay of the learning rate over layers; 1 is none, which is written as 0."""
    if not 0 <= decay <= 1:
        raise SpecError(f"layer_decay={decay:g}: must be above 0 and at most 1, such as 0.75")
    return 0.0 if decay == 1 else decay


def _prompts_digest(training: Mapping[str, Any], dataset: DomainSet) -> str:
    """The digest of the prompts; empty if they are the plain ones, or without a text encoder."""
    files = {name: training[name] for name in ("class_names", "templates") if training[name]}
    if not find_backbone(training["backbone"]).zero_shot:
        if files:
            raise SpecError(f"{next(iter(files))}: only for a CLIP, such as clip:ViT-B-32/openai")
        return ""
    prompts = dataset_prompts(dataset, **files)
    return "" if prompts == Prompts.of_classes(dataset.classes) else prompts.digest


def _metric(name: str, group: str, dataset: DomainSet) -> str:
    """The metric that selects; empty for accuracy, so that keys stay as they are."""
    if find_metric(name).of_groups and not group:
        raise SpecError(f"metric={name}: needs groups of samples; use --group COLUMN or FILE.csv")
    check_classes(name, len(dataset.classes), dataset.name)
    return "" if name == DEFAULT_METRIC else name


def reports_whole(settings: Settings) -> bool:
    """Whether runs with these settings report on whole domains."""
    return settings.get("report") == "whole"


def settings_of(settings: Settings, *names: str) -> Settings:
    """The settings without an owner, and those of the named methods, averages or merges."""
    owners = ("", *names)
    return {name: value for name, value in settings.items() if name.rpartition(".")[0] in owners}


def check_settings(settings: Settings, used: Sequence[str]) -> None:
    """Refuse settings of methods, averages or merges that the benchmark does not use."""
    for name in settings:
        owner = name.rpartition(".")[0]
        if owner and owner not in used:
            raise UnknownNameError(f"{name}: no {owner!r} in this benchmark; {hint(owner, used)}")


def check_counts(**counts: int | None) -> None:
    """Refuse a count below 1; None means that it was not given."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise SpecError(f"{name}={count}: at least one is needed")
