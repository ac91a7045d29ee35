"""Features of a frozen network as a dataset, on which every method trains in minutes.

The ``.npz`` file has the arrays X (features), y and domain (names), `names` (of the files), `test`
(if the dataset has official lists) and `provenance` (JSON: how the features were made).
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
    """Write the features of all samples to an ``.npz`` file, which is a dataset; return its path.

    Parameters
    ----------
    dataset
        Name of a dataset, or path of your own data.
    out
        The file to write; ``.npz`` is added if it is missing.
    backbone, weights, size
        The network, its weights, and the side in pixels of the images that it sees. Default: the
        dataset's network if it is pretrained, or else timm's resnet18 with weights from the hub.
    device, threads
        Where to compute.
    skip_broken
        Whether to leave out files that cannot be read.
    """
    path = _check_out(Path(out).expanduser())
    if threads is not None and not 1 <= threads <= (os.cpu_count() or 1):
        raise SpecError(f"threads={threads}: this machine has {os.cpu_count()} cores")
    domain_set = find_dataset(dataset)
    if domain_set.origin == str(path.resolve()):
        raise SpecError(f"{path}: is the dataset itself; give another --out")
    default = domain_set.training.backbone
    if find_backbone(default).input_form() is None:
        default = DEFAULT_BACKBONE
    given = {"backbone": backbone or default, "size": size}
    chosen = validate_values(
        Training, {name: value for name, value in given.items() if value is not None}, owner=""
    )
    chosen["weights"] = weights or domain_set.training.weights
    settings = resolve_settings({**vars(domain_set.training), **chosen}, domain_set)
    side = domain_set.modality.stored_side(settings["size"])
    domains = domain_set.load(ReadOptions(data_root(), side=side, skip_broken=skip_broken))
    with preserve_torch_state(threads, cuda=False):
        x = _features(domain_set, domains, settings, torch.device(device or default_device()))
    _write(path, x, domain_set, domains, settings)
    return path


def _check_out(out: Path) -> Path:
    """The file to write; raise before any work if it cannot be written."""
    path = out if out.suffix == ".npz" else out.with_name(f"{out.name}.npz")
    if not path.parent.is_dir():
        raise SpecError(f"{path}: no folder {path.parent}; create it first")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise SpecError(f"{path}: cannot be written; give another --out")
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
    features = []
    with torch.inference_mode(), progress(f"embedding {dataset.name}", len(rows)) as advance:
        for chunk in rows.chunks(CHUNK):
            features.append(net.features(prepare(chunk)).float().cpu().numpy())
            advance(sum(len(part) for part in features))
    return np.concatenate(features)


def _network(settings: Mapping[str, Any], shape: tuple[int, ...]) -> Classifier:
    """The network; random weights come from a fixed seed."""
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
    """Write the file atomically."""
    labels = torch.cat([domain.y for domain in domains.values()])
    if any(domain.validation is not None for domain in domains.values()):
        raise SpecError(
            f"{dataset.name} has three lists per domain, and a file of arrays can have two; remove "
            "the lists _val.txt"
        )
    tests = [domain.test for domain in domains.values() if domain.test is not None]
    files = [name for domain in domains.values() for name in domain.names]
    network_settings = {name: settings[name] for name in ("backbone", "weights", "start", "size")}
    packages = {name: version(name) for name in ("afield", "timm", "torch")}
    origin = {"dataset": Path(dataset.spec).name, "data": dataset.fingerprint}
    provenance = {**origin, **network_settings, **packages}
    arrays = {
        "X": x,
        "y": np.array(dataset.classes)[labels.numpy()],
        "domain": np.repeat(list(domains), [len(domain.y) for domain in domains.values()]),
        "provenance": np.array(json.dumps(provenance)),
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
