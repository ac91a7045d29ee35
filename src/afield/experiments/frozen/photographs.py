"""Folders of photographs: by default, features of a pretrained network and a small network on them.

A network that is trained from scratch on a few thousand photographs stays far behind the features
of any network that has seen ImageNet. The files' sizes do not matter for the default: looking at
them would let the target decide how to train.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afield.data.cache import cache_root
from afield.data.domains import DomainSet, ReadOptions, data_root
from afield.data.modality import Image
from afield.data.sources.arrays import array_dataset
from afield.errors import SpecError
from afield.experiments.embedding import plan_encoder, write_features
from afield.experiments.frozen.encoder import Encoder
from afield.experiments.frozen.pretrained import (
    Pretrained,
    download_command,
    find_pretrained,
    searches,
)
from afield.experiments.thumbnails import write_strips

__all__ = ["feature_identity", "plan_features", "use_features"]

log = logging.getLogger(__name__)
Settings = Mapping[str, Any]
# Settings of the images that features are computed from; the features themselves have none.
IMAGE_SETTINGS = ("backbone", "weights", "size", "skip_broken")
# Settings that need the images in every step.
NEEDS_IMAGES = ("augment", "freeze_bn", "class_names", "templates")
# Raise it when the same images and weights would give other features.
VERSION = 1


def use_features(
    dataset: DomainSet, settings: Settings, *, finetune: bool | None = None
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
    """
    encoder = plan_features(dataset, settings, finetune=finetune)
    if isinstance(encoder, Encoder):
        return _features(dataset, encoder, settings)
    return dataset, {**settings, **encoder}


def plan_features(
    dataset: DomainSet, settings: Settings, *, finetune: bool | None = None
) -> Encoder | dict[str, Any]:
    """The frozen network to compute features with, or the settings to add where there is none."""
    images = isinstance(dataset.modality, Image)
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


def _features(
    dataset: DomainSet, encoder: Encoder, settings: Settings
) -> tuple[DomainSet, dict[str, Any]]:
    """The features from the cache, computed first if they are not there."""
    identity = feature_identity(dataset, encoder, settings)
    path = cache_root().resolve() / "features" / identity / f"{dataset.name}.npz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        skip = bool(settings.get("skip_broken"))
        write_features(path, dataset, encoder, skip_broken=skip, identity=identity)
        side = dataset.modality.stored_side(encoder.size)
        options = ReadOptions(data_root(), side=side, skip_broken=skip)
        write_strips(path, dataset.load(options), dataset.modality)
    kept = {name: value for name, value in settings.items() if name not in IMAGE_SETTINGS}
    return array_dataset(path), kept


def _describe(dataset: DomainSet, at_hand: Pretrained, *, finetune: bool) -> str:
    how = "fine-tuned" if finetune else "features of the frozen network, computed once"
    file = Path(at_hand.weights).name
    return f"{dataset.name}: {at_hand.backbone}, weights {file} ({at_hand.digest}); {how}"


def _warn(dataset: DomainSet, *, finetune: bool | None) -> None:
    if not searches() and finetune is None:
        return
    log.warning(
        "%s: no pretrained weights at hand, so small:cnn is trained from scratch, which is far "
        "worse on photographs; get weights with `%s`, or give --weights FILE",
        dataset.name,
        download_command(),
    )
