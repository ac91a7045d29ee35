"""Features of a frozen network: computed once, kept on disk, and used as a dataset.

The ``.npz`` file has the arrays X (features), y and domain (names), `names` (of the files), `test`
and `validation` (if the dataset has official lists), `text_lengths` (if it has texts: their numbers
of tokens) and `provenance` (JSON: how the features were made, and how many texts were cut). Files
without labels give X and names only, for `afield predict`.

Folders of photographs are embedded by default. A network that is trained from scratch on a few
thousand photographs stays far behind the features of any network that has seen ImageNet. The
files' sizes do not matter for the default: looking at them would let the target decide how to
train.

A network computes the features of a sample once, whatever folder it is in; see
`afield.studies.feature_cache`.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from afield.compute import default_device, preserve_torch_state, usable_cores
from afield.data.cache import cache_root
from afield.data.domains import Domain, DomainSet, ReadOptions, data_root
from afield.data.lookup import find_dataset
from afield.data.modality import FileModality
from afield.data.samples import Prepare, Rows
from afield.data.samples import identity as identity_function
from afield.data.sources.arrays import array_dataset
from afield.data.sources.folders import find_files, unlabelled_files
from afield.data.training_settings import Training
from afield.errors import SpecError
from afield.files import atomic_write, check_output
from afield.hyperparameters import validate_values
from afield.networks.backbone import find_backbone
from afield.networks.cost import Cost, network_cost
from afield.networks.facts import network_facts
from afield.networks.pretrained import (
    Encoder,
    Pretrained,
    download_command,
    find_pretrained,
    one_network,
    searches,
    state_digest,
)
from afield.runs.run import FEATURE_CHOICES, Run, name_without_path
from afield.runs.thumbnails import write_strips
from afield.studies.feature_cache import FeatureCache, Features, compute_features
from afield.studies.settings import resolve_settings

log = logging.getLogger(__name__)

DEFAULT_BACKBONE = "timm:resnet18"
# Samples that go through the network at once, on a CPU and on a GPU.
CHUNK, CHUNK_GPU = 16, 128


def embed(
    dataset: str | Path,
    out: str | Path,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    tokens: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    skip_broken: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the features of all samples to an ``.npz`` file, which is a dataset; return its path.

    If it is interrupted, the same call continues where it stopped.

    Parameters
    ----------
    dataset
        Name of a dataset, or path of your own data. An image or a text, or a folder with images or
        texts that are not in folders of domains and classes, has no labels: its features are for
        `predict`.
    out
        The file to write; ``.npz`` is added if it is missing.
    backbone, weights, size
        The network, its weights, and the side in pixels of the images that it sees. Default: the
        dataset's network if it is pretrained, or else the one whose weights are at hand, or else
        timm's resnet18 with weights from the hub. Texts need an encoder such as ``hf:FOLDER``.
    tokens
        The number of tokens at which texts are cut; by default 128, or fewer if the encoder cannot
        take as many.
    device, threads
        Where to compute; by default on all cores.
    skip_broken
        Whether to leave out files that cannot be read.
    overwrite
        Whether an existing file may be replaced.
    """
    path = _check_out(Path(out).expanduser(), overwrite=overwrite)
    if threads is not None and not 1 <= threads <= (os.cpu_count() or 1):
        raise SpecError(f"threads={threads}: this machine has {os.cpu_count()} cores")
    domain_set = unlabelled_files(Path(dataset)) or find_dataset(dataset)
    if domain_set.origin == str(path.resolve()):
        raise SpecError(f"{path}: is the dataset itself; give another --out")
    encoder = plan_encoder(domain_set, backbone=backbone, weights=weights, size=size, tokens=tokens)
    write_features(
        path, domain_set, encoder, device=device, threads=threads, skip_broken=skip_broken
    )
    return path


def plan_encoder(
    dataset: DomainSet,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    tokens: int | None = None,
) -> Encoder:
    """The network that computes the features of a dataset, before any file is decoded."""
    default = dataset.training.backbone
    chosen_network = one_network({"backbone": backbone, "weights": weights})
    backbone, weights = chosen_network["backbone"], chosen_network["weights"]
    if dataset.modality.has_tokens:
        _check_text_encoder(dataset, backbone)
    elif backbone is None and find_backbone(default).input_form() is None:
        at_hand = find_pretrained(weights) if weights != "none" else None
        default = at_hand.backbone if at_hand else DEFAULT_BACKBONE
        weights = at_hand.weights if at_hand else weights
    given = {"backbone": backbone or default, "size": size, "tokens": tokens}
    chosen = validate_values(
        Training, {name: value for name, value in given.items() if value is not None}, owner=""
    )
    chosen["weights"] = weights or dataset.training.weights
    settings = resolve_settings({**vars(dataset.training), **chosen}, dataset)
    names = ("backbone", "weights", "start", "size", "tokens")
    return Encoder(**{name: settings[name] for name in names}, kind=dataset.modality.name)


def write_features(
    path: Path,
    dataset: DomainSet,
    encoder: Encoder,
    *,
    device: str | None = None,
    threads: int | None = None,
    skip_broken: bool = False,
    identity: str = "",
) -> None:
    """Compute the features of a dataset and write its file, which is complete or absent."""
    where = torch.device(device or default_device())
    with preserve_torch_state(threads or max(torch.get_num_threads(), usable_cores()), cuda=False):
        if dataset.modality.decodes_files:
            # The weights are checked before any file is decoded.
            encoder = replace(encoder, stored=_stored_shape(dataset, encoder))
            network = encoder.build()
        domains = dataset.load(_read_options(dataset, encoder, skip_broken=skip_broken))
        _warn_of_cut_texts(domains, encoder)
        rows = Rows([domain.x for domain in domains.values()], device=where)
        if not encoder.stored:
            if not rows.is_pixels:
                raise _not_images(dataset, encoder)
            encoder = replace(encoder, stored=tuple(rows.shape))
            network = encoder.build()
        encoder = replace(encoder, digest=state_digest(network))
        forward = partial(_forward, network.to(where), _prepare(encoder, where))
        chunk = CHUNK_GPU if where.type == "cuda" else CHUNK
        cache = FeatureCache([*_sample_identity(encoder), where.type, chunk])
        x = compute_features(forward, rows, cache, chunk=chunk, of=dataset.name)
        cost = network_cost(network, torch.ones(1, *encoder.shape, device=where))
    _write(path, x, dataset, domains, encoder, {"identity": identity} if identity else {}, cost)


def _sample_identity(encoder: Encoder) -> list[object]:
    """What determines the features of a sample, beside its values and the device."""
    form = None if encoder.tokens else encoder.form
    network = [name_without_path(encoder.backbone), encoder.digest, torch.__version__]
    inputs = [encoder.kind, encoder.stored, encoder.size, encoder.tokens]
    return [VERSION, *network, *inputs, *([form.mean, form.std] if form else [])]


def _prepare(encoder: Encoder, device: torch.device) -> Prepare:
    """As the encoder says, but texts keep their padding, which depends on their own length only."""
    return identity_function if encoder.tokens else encoder.prepare(device)


def _forward(network: Any, prepare: Any, x: torch.Tensor) -> NDArray[np.float32]:
    return network(prepare(x)).float().cpu().numpy()


def _stored_shape(dataset: DomainSet, encoder: Encoder) -> tuple[int, ...]:
    """The shape of a decoded sample; raises if the network cannot compute its features."""
    if dataset.modality.has_tokens:
        return (encoder.tokens,)
    form = find_backbone(encoder.backbone).input_form()
    if form is None or not dataset.modality.resizable:
        raise _not_images(dataset, encoder)
    side = dataset.modality.stored_side(encoder.size)
    return (3, side, side)


def _read_options(dataset: DomainSet, encoder: Encoder, *, skip_broken: bool) -> ReadOptions:
    return ReadOptions(
        data_root(),
        side=dataset.modality.stored_side(encoder.size),
        skip_broken=skip_broken,
        tokenizer=find_backbone(encoder.backbone).tokenizer if encoder.tokens else "",
        tokens=encoder.tokens,
    )


def _check_text_encoder(dataset: DomainSet, backbone: str | None) -> None:
    """Refuse to compute features of texts without a pretrained encoder."""
    if not backbone or not find_backbone(backbone).has_pretrained_weights():
        raise SpecError(
            f"{dataset.name}{f' with {backbone}' if backbone else ''}: features of texts are "
            "computed by a pretrained encoder; give, e.g., --backbone hf:FOLDER"
        )


def _warn_of_cut_texts(domains: Mapping[str, Domain], encoder: Encoder) -> None:
    cut = _count_cut(domains)
    total = sum(len(domain.y) for domain in domains.values())
    if cut:
        counts = f"{cut} of {total} texts are cut at {encoder.tokens} tokens"
        log.warning("%s; --tokens N changes that", counts)


def _count_cut(domains: Mapping[str, Domain]) -> int:
    return sum(domain.truncated for domain in domains.values())


def _not_images(dataset: DomainSet, encoder: Encoder) -> SpecError:
    return SpecError(
        f"{dataset.name} with {encoder.backbone}: features are computed from images by a "
        "pretrained network; give a dataset of images and, e.g., --backbone timm:resnet18"
    )


def _check_out(out: Path, *, overwrite: bool) -> Path:
    """The file to write; raise before any work if it cannot be written."""
    if out.name in ("", ".."):
        raise SpecError(f"{out}: not the name of a file; give a file to write")
    path = out if out.suffix == ".npz" else out.with_name(f"{out.name}.npz")
    if not path.parent.is_dir():
        raise SpecError(f"{path}: no folder {path.parent}; create it first")
    check_output(path, overwrite=overwrite)
    return path


def _write(
    path: Path,
    x: Features,
    dataset: DomainSet,
    domains: Mapping[str, Domain],
    encoder: Encoder,
    identity: Mapping[str, str],
    cost: Cost,
) -> None:
    """Write the file atomically."""
    files = [name for domain in domains.values() for name in domain.names]
    library = "transformers" if dataset.modality.has_tokens else "timm"
    packages = {name: version(name) for name in ("afield", library, "torch")}
    origin = {"dataset": Path(dataset.spec).name, "data": dataset.fingerprint}
    provenance = {**origin, **asdict(encoder), **asdict(cost), **packages, **identity}
    provenance |= {"truncated": _count_cut(domains)} if dataset.modality.has_tokens else {}
    arrays: dict[str, Any] = {"X": x, "provenance": np.array(json.dumps(provenance))}
    if dataset.classes:
        arrays |= _labels(dataset, domains)
    if len(files) == len(x):
        arrays["names"] = np.array(files)
    try:
        with atomic_write(path, durable=True) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise SpecError(
            f"{path}: cannot be written ({error.strerror}); give another --out"
        ) from None


def _labels(dataset: DomainSet, domains: Mapping[str, Domain]) -> dict[str, NDArray[Any]]:
    """Classes, domains and official lists of the samples."""
    labels = torch.cat([domain.y for domain in domains.values()])
    arrays = {
        "y": np.array(dataset.classes)[labels.numpy()],
        "domain": np.repeat(list(domains), [len(domain.y) for domain in domains.values()]),
    }
    for key in ("test", "validation"):
        marks = [getattr(domain, key) for domain in domains.values()]
        if all(mark is not None for mark in marks):
            arrays[key] = torch.cat(marks).numpy()
    if dataset.modality.has_tokens:
        arrays["text_lengths"] = Rows([domain.x for domain in domains.values()]).lengths.numpy()
    return arrays


Settings = Mapping[str, Any]
# Settings of the images that features are computed from; the features themselves have none.
IMAGE_SETTINGS = ("backbone", "weights", "size", "skip_broken")
# Settings that need the images in every step.
NEEDS_IMAGES = ("augment", "freeze_bn", "class_names", "templates")
# Raise it when the same images and weights would give other features.
VERSION = 2


def use_features(
    dataset: DomainSet, settings: Settings, *, finetune: bool | None = None, compute: bool = True
) -> tuple[DomainSet, dict[str, Any]]:
    """The dataset to train on and the settings for it: features of photographs, unless not wanted.

    Parameters
    ----------
    dataset
        Any dataset. Only a folder of images of your own has another default.
    settings
        Settings of the runs; a ``backbone`` among them is trained itself.
    finetune
        True trains the network itself, False computes its features once. None decides by the
        settings.
    compute
        Whether to compute features that are not in the cache. Otherwise the dataset has their
        labels and identity, but no values: it is for planning.
    """
    settings, finetune = spell_finetune(one_network(settings), finetune=finetune)
    encoder = plan_features(dataset, settings, finetune=finetune)
    if isinstance(encoder, Encoder):
        return _features(dataset, encoder, settings, compute=compute)
    return dataset, {**settings, **encoder}


def image_labels(dataset: DomainSet, settings: Settings, *, finetune: bool | None) -> Settings:
    """Choices about the images behind features, which records keep; see `recorded_choices`."""
    if "identity" not in dataset.provenance:
        return {}
    labels = {name: settings[name] for name in FEATURE_CHOICES if settings.get(name)}
    return {**labels, "finetune": False} if finetune is False else labels


def recorded_choices(run: Run) -> tuple[dict[str, Any], bool | None]:
    """The settings of the images and ``finetune`` with which the features of a run were made."""
    settings = {name: run.given[name] for name in FEATURE_CHOICES if name in run.given}
    if run.given.get("finetune") is not False:
        return settings, None
    return {**settings, "backbone": run.encoder}, False


def spell_finetune(
    settings: Settings, *, finetune: bool | None = None
) -> tuple[Settings, bool | None]:
    """The settings without ``tune=frozen``, and whether the network itself is trained.

    ``tune`` says it too: every value but ``frozen`` trains a part of the network.
    """
    tune = settings.get("tune")
    if not tune:
        return settings, finetune
    if finetune is not None and finetune == (tune == "frozen"):
        flag = "--finetune" if finetune else "--no-finetune"
        raise SpecError(f"tune={tune} and {flag}: give only one of them")
    if tune != "frozen":
        return settings, True
    return {name: value for name, value in settings.items() if name != "tune"}, False


def plan_features(
    dataset: DomainSet, settings: Settings, *, finetune: bool | None = None
) -> Encoder | dict[str, Any]:
    """The frozen network to compute features with, or the settings to add where there is none."""
    images = dataset.modality.resizable
    if finetune is False and not images:
        raise SpecError(f"{dataset.name}: --no-finetune needs images")
    if settings.get("backbone"):
        return _encoder(dataset, settings) if finetune is False else {}
    own_folder = images and bool(dataset.origin) and Path(dataset.origin).is_dir()
    if not own_folder or settings.get("weights") == "none":
        return _encoder(dataset, settings) if finetune is False else {}
    at_hand = find_pretrained(settings.get("weights"))
    if at_hand is None:
        _warn(dataset, finetune=finetune)
        return {}
    log.warning("%s", _describe(dataset, at_hand, finetune=bool(finetune)))
    chosen = {"backbone": at_hand.backbone, "weights": at_hand.weights}
    return chosen if finetune else _encoder(dataset, {**settings, **chosen})


def feature_identity(dataset: DomainSet, encoder: Encoder, settings: Settings) -> str:
    """What features are known by: the images, the network, its weights and the preprocessing."""
    form = encoder.form
    network = [encoder.backbone, encoder.start or encoder.weights, encoder.size]
    preprocessing = [*form.mean, *form.std, encoder.kind, bool(settings.get("skip_broken"))]
    content = [VERSION, dataset.fingerprint or dataset.spec, *network, *preprocessing]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _encoder(dataset: DomainSet, settings: Settings) -> Encoder:
    unused = next((name for name in NEEDS_IMAGES if settings.get(name) is not None), None)
    if unused:
        raise SpecError(
            f"{unused}={settings[unused]}: features are computed once, from images as they are; "
            "add --finetune, or choose a --backbone"
        )
    names = ("backbone", "weights", "size")
    encoder = plan_encoder(dataset, **{name: settings.get(name) for name in names})
    encoder.form  # noqa: B018  raises for a network that is not pretrained
    return encoder


def features_file(dataset: DomainSet, encoder: Encoder, settings: Settings) -> Path:
    """Where the cache keeps the features of a dataset."""
    identity = feature_identity(dataset, encoder, settings)
    return cache_root().resolve() / "features" / identity / f"{dataset.name}.npz"


def _features(
    dataset: DomainSet, encoder: Encoder, settings: Settings, *, compute: bool
) -> tuple[DomainSet, dict[str, Any]]:
    """The features from the cache, computed first if they are not there."""
    path = features_file(dataset, encoder, settings)
    identity = path.parent.name
    kept = {name: value for name, value in settings.items() if name not in IMAGE_SETTINGS}
    if not path.is_file() and not compute:
        return _planned(dataset, encoder, path, skip=bool(settings.get("skip_broken"))), kept
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        skip = bool(settings.get("skip_broken"))
        write_features(path, dataset, encoder, skip_broken=skip, identity=identity)
        side = dataset.modality.stored_side(encoder.size)
        options = ReadOptions(data_root(), side=side, skip_broken=skip)
        write_strips(path, dataset.load(options), dataset.modality)
    with suppress(OSError):
        # For `afield cache`: when these features were last used.
        os.utime(path.parent)
    return array_dataset(path), kept


def _planned(dataset: DomainSet, encoder: Encoder, path: Path, *, skip: bool) -> DomainSet:
    """Features that are not computed yet: their labels and identity, with a zero per sample."""

    def read(_: ReadOptions) -> dict[str, Domain]:
        images = dataset.load(_read_options(dataset, encoder, skip_broken=skip))
        return {
            name: Domain(torch.zeros(len(domain.y), 1), domain.y) for name, domain in images.items()
        }

    return DomainSet(
        name=dataset.name,
        domains=dataset.domains,
        classes=dataset.classes,
        reader=read,
        training=Training(batch=32, backbone="small:mlp"),
        origin=str(path.with_suffix("")),
        fingerprint=path.parent.name,
        provenance={**asdict(encoder), "identity": path.parent.name, "planned": True},
    )


def _describe(dataset: DomainSet, at_hand: Pretrained, *, finetune: bool) -> str:
    """One line: which network, its licence, its cost for these images, and how it is used."""
    how = "fine-tuned" if finetune else "features of the frozen network, computed once"
    file, facts = Path(at_hand.weights).name, network_facts(at_hand.backbone)
    cost = f" ({facts.describe()})" if facts else ""
    images = f"for {_count_images(dataset):,} images"
    weights = f"weights {file} ({at_hand.digest})"
    return f"{dataset.name}: {at_hand.backbone}{cost} {images}, {weights}; {how}"


def _count_images(dataset: DomainSet) -> int:
    root, modality = Path(dataset.origin), cast(FileModality, dataset.modality)
    files = find_files(root, dataset.domains, dataset.classes, modality)
    return sum(map(len, files.values()))


def _warn(dataset: DomainSet, *, finetune: bool | None) -> None:
    if not searches() and finetune is None:
        return
    log.warning(
        "%s: no pretrained weights at hand, so small:cnn is trained from scratch, which is far "
        "worse on photographs; get weights with `%s`, or give --weights FILE",
        dataset.name,
        download_command(),
    )
