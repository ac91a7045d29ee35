"""Frozen features as a dataset: one pass through a network, and every method in minutes after it.

The file has X (features), y and domain (names), `names` of the files, `test` where the data have
lists, and `provenance`: with what the features were made, as JSON.
"""

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield.compute import default_device, preserve_torch_state
from afield.data.augmentation import Resize
from afield.data.domains import Domain, DomainSet, ReadOptions, Training, data_root
from afield.data.lookup import find_dataset
from afield.data.samples import Rows
from afield.data.scaling import Scaling
from afield.errors import SpecError
from afield.experiments.settings import resolve_settings
from afield.files import atomic_write
from afield.hyperparameters import validate_values
from afield.networks.backbone import Classifier, find_backbone, network
from afield.progress import progress
from afield.seeds import derive_seed

__all__ = ["embed"]

DEFAULT_BACKBONE = "timm:resnet18"
# Samples that go through the network at once.
CHUNK = 64


def embed(
    dataset: str | Path,
    out: str | Path,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    size: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    skip_broken: bool = False,
) -> Path:
    """Write the features of all samples to an ``.npz`` that every command takes; return its path.

    Parameters
    ----------
    dataset
        A name, or the path of a user's own data.
    out
        The file to write; ``.npz`` is added where it is missing.
    backbone, weights, size
        Which network, where its weights come from, and at which size it sees pictures; by default
        the dataset's network if that is a pretrained one, or else timm's resnet18, from the hub.
    device, threads
        Where to compute.
    skip_broken
        Whether to leave out files that cannot be read.
    """
    path = _writable(Path(out).expanduser())
    if threads is not None and not 1 <= threads <= (os.cpu_count() or 1):
        raise SpecError(f"threads={threads}: this machine has {os.cpu_count()} cores")
    found = find_dataset(dataset)
    if found.origin == str(path.resolve()):
        raise SpecError(f"{path}: the data themselves; give another --out")
    usual = found.training.backbone
    if find_backbone(usual).input_form() is None:
        usual = DEFAULT_BACKBONE
    given = {"backbone": backbone or usual, "size": size}
    known = validate_values(
        Training, {name: value for name, value in given.items() if value is not None}, owner=""
    )
    known["weights"] = weights or found.training.weights
    settings = resolve_settings({**vars(found.training), **known}, found)
    side = found.modality.stored_side(settings["size"])
    domains = found.load(ReadOptions(data_root(), side=side, skip_broken=skip_broken))
    with preserve_torch_state(threads, cuda=False):
        x = _features(found, domains, settings, torch.device(device or default_device()))
    _write(path, x, found, domains, settings)
    return path


def _writable(out: Path) -> Path:
    """The file to write, if it can be: nobody wants to know that after an hour."""
    path = out if out.suffix == ".npz" else out.with_name(f"{out.name}.npz")
    if not path.parent.is_dir():
        raise SpecError(f"{path}: no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise SpecError(f"{path}: a file cannot be written there; give another --out")
    return path


def _features(
    dataset: DomainSet,
    domains: Mapping[str, Domain],
    settings: Mapping[str, Any],
    device: torch.device,
) -> NDArray[np.float32]:
    rows = Rows([domain.x for domain in domains.values()], device=device)
    form = find_backbone(settings["backbone"]).input_form()
    if form is None or not rows.is_pixels:
        raise SpecError(
            f"{dataset.name} with {settings['backbone']}: features are computed from images by a "
            "pretrained network; give a dataset of images and, e.g., --backbone timm:resnet18"
        )
    channels, size = rows.shape[0], settings["size"] or rows.shape[-1]
    scaling = Scaling.for_images(form.mean, form.std, channels=channels, device=device)
    prepare = Resize(size, scaling)
    net = _network(settings, (channels, size, size)).to(device).eval()
    found = []
    with torch.inference_mode(), progress(f"embedding {dataset.name}", len(rows)) as advance:
        for chunk in rows.chunks(CHUNK):
            found.append(net.features(prepare(chunk)).float().cpu().numpy())
            advance(sum(len(part) for part in found))
    return np.concatenate(found)


def _network(settings: Mapping[str, Any], shape: tuple[int, ...]) -> Classifier:
    """The network; random weights are the same ones every time."""
    name = settings["backbone"]
    with progress(f"weights of {name}"):
        torch.manual_seed(derive_seed("embedding", name))
        return network(name, shape, 1, weights=settings["weights"])


def _write(
    path: Path,
    x: NDArray[np.float32],
    dataset: DomainSet,
    domains: Mapping[str, Domain],
    settings: Mapping[str, Any],
) -> None:
    """The file, whole or not at all."""
    labels = torch.cat([domain.y for domain in domains.values()])
    tests = [domain.test for domain in domains.values() if domain.test is not None]
    files = [name for domain in domains.values() for name in domain.names]
    told = {name: settings[name] for name in ("backbone", "weights", "start", "size")}
    packages = {name: version(name) for name in ("afield", "timm", "torch")}
    made = {"dataset": dataset.spec, "data": dataset.fingerprint, **told, **packages}
    arrays = {
        "X": x,
        "y": np.array(dataset.classes)[labels.numpy()],
        "domain": np.repeat(list(domains), [len(domain.y) for domain in domains.values()]),
        "provenance": np.array(json.dumps(made)),
    }
    if len(files) == len(x):
        arrays["names"] = np.array(files)
    if len(tests) == len(domains):
        arrays["test"] = torch.cat(tests).numpy()
    try:
        with atomic_write(path, durable=True) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        raise SpecError(
            f"{path}: cannot be written ({error.strerror}); give another --out"
        ) from None
