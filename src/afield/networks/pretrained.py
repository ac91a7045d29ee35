"""Pretrained networks: which one is at hand for photographs, and a frozen one for features.

If no network is given, one is looked for in this order:

    1. the file of ``--weights``, if it has a known name
    2. a file of a known name in the folder of weights: AFIELD_WEIGHTS, or AFIELD_DATA/weights
    3. the local cache of the Hugging Face hub
    4. the hub itself, if it answers within five seconds

``AFIELD_WEIGHTS=none`` turns the search off. An `Encoder` is a network without its head, with the
way in which its inputs are prepared.
"""

import hashlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afield.compute import preserve_torch_state
from afield.data.augmentation import Resize
from afield.data.domains import data_root
from afield.data.samples import Prepare, trim_padding
from afield.data.scaling import Scaling
from afield.errors import DataError, SpecError
from afield.files import file_digest
from afield.networks.backbone import HUB, Form, find_backbone, network
from afield.progress import progress
from afield.seeds import derive_seed

# Small networks that a laptop can run, best first; the name of the file is that of the model.
HUB_NETWORK = "timm:tf_efficientnet_lite0"
KNOWN_NETWORKS = (HUB_NETWORK, "torchvision:mobilenet_v2")
# The repository of the first one, and the file with its weights.
HUB_REPOSITORY, HUB_FILE = "timm/tf_efficientnet_lite0.in1k", "model.safetensors"
PROBE_SECONDS = 5.0
SUFFIXES = (".safetensors", ".pth", ".pt")


@dataclass(frozen=True)
class Pretrained:
    """A network and the file of its weights."""

    backbone: str
    weights: str

    @property
    def digest(self) -> str:
        """Digest of the file."""
        return file_digest(self.weights)


def searches() -> bool:
    """Whether pretrained weights are looked for at all."""
    return os.environ.get("AFIELD_WEIGHTS") != "none"


def find_pretrained(weights: str | None = None) -> Pretrained | None:
    """The network to use for photographs; None if no weights are at hand.

    A given file must have a known name, because the name says which network it belongs to.
    """
    if weights is not None and weights != "hub":
        return _of_file(weights)
    if not searches():
        return None
    return (None if weights else _in_folder()) or _in_hub()


def download_command() -> str:
    """The command that fetches weights, on a machine that reaches the hub."""
    model = HUB_NETWORK.partition(":")[2]
    return f"python -c \"import timm; timm.create_model('{model}', pretrained=True)\""


def _of_file(weights: str) -> Pretrained:
    path = Path(weights).expanduser()
    for backbone in KNOWN_NETWORKS:
        if path.stem == backbone.partition(":")[2]:
            return Pretrained(backbone, str(path.resolve()))
    known = " or ".join(f"{name.partition(':')[2]}{SUFFIXES[0]}" for name in KNOWN_NETWORKS)
    raise SpecError(
        f"--weights {weights}: the name does not say which network it is for; add --backbone, or "
        f"give {known}"
    )


def _in_folder() -> Pretrained | None:
    folder = Path(os.environ.get("AFIELD_WEIGHTS") or data_root() / "weights").expanduser()
    for backbone in KNOWN_NETWORKS:
        for suffix in SUFFIXES:
            path = folder / f"{backbone.partition(':')[2]}{suffix}"
            if path.is_file():
                return Pretrained(backbone, str(path.resolve()))
    return None


def _in_hub() -> Pretrained | None:
    """The first network, from the cache of the hub or downloaded."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(HUB_REPOSITORY, HUB_FILE)
    if isinstance(cached, str):
        return Pretrained(HUB_NETWORK, cached)
    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        return None
    try:
        with progress(f"weights of {HUB_NETWORK}"):
            path = hf_hub_download(HUB_REPOSITORY, HUB_FILE)
    except Exception:  # noqa: BLE001  the hub raises many kinds of errors; none of them is final
        return None
    return Pretrained(HUB_NETWORK, path)


def _answers(address: str) -> bool:
    """Whether a server answers in time; a thread, because looking up its name has no time limit."""
    answered = threading.Event()

    def probe() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=PROBE_SECONDS):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except (OSError, ValueError):
            return

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answered.is_set()


@dataclass(frozen=True)
class Encoder:
    """A network without its head.

    Attributes
    ----------
    backbone, weights, start
        The network, where its weights come from, and the digest of their file.
    size
        The side in pixels of the images that it sees; 0 means their own.
    kind, stored
        The kind of the samples (see `Modality`) and their shape as decoded.
    digest
        The digest of all its tensors; empty before it is built.
    tokens
        The number of tokens at which texts are cut; 0 for images.
    """

    backbone: str
    weights: str = ""
    start: str = ""
    size: int = 0
    kind: str = ""
    stored: tuple[int, ...] = ()
    digest: str = ""
    tokens: int = 0

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, Any]) -> "Encoder | None":
        """The network that computed the features of a file; None if the file does not say."""
        if not provenance.get("digest") or not provenance.get("stored"):
            return None
        try:
            # Features of earlier versions are those of images, and do not mention tokens.
            values = {name: {"tokens": 0, **provenance}[name] for name in asdict(cls(""))}
            return cls(**{**values, "stored": tuple(int(n) for n in values["stored"])})
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def form(self) -> Form:
        """The images that the network expects; raises if it is not a pretrained one for images."""
        form = find_backbone(self.backbone).input_form()
        if form is None:
            raise SpecError(
                f"{self.backbone}: features are computed from images by a pretrained network; "
                "use, e.g., --backbone timm:resnet18"
            )
        return form

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a sample as the network sees it."""
        if self.tokens:
            return (self.tokens,)
        channels, side = self.stored[0], self.size or self.stored[-1]
        return channels, side, side

    def scaling(self, device: torch.device | None = None) -> Scaling:
        """Mean and spread of the pixels, which are from 0 to 255."""
        form = self.form
        return Scaling.for_images(
            form.mean, form.std, channels=self.stored[0], device=device or torch.device("cpu")
        )

    def prepare(self, device: torch.device) -> Prepare:
        """The function from samples as stored to the network's inputs; images in channels_last."""
        if self.tokens:
            return trim_padding
        return Resize(self.shape[-1], self.scaling(device))

    def build(self) -> nn.Module:
        """The network in evaluation mode; random weights come from a fixed seed."""
        weights = self.weights
        if self.start and find_backbone(self.backbone).start_digest(weights) != self.start:
            source = weights if weights not in ("", HUB) else self.backbone
            raise DataError(
                f"{source}: not the weights that computed the features; get that file again"
            )
        with progress(f"weights of {self.backbone}"), preserve_torch_state(cuda=False):
            torch.manual_seed(derive_seed("embedding", self.backbone))
            features = network(self.backbone, self.shape, 1, weights=weights).features
        if self.digest and state_digest(features) != self.digest:
            source = "the hub" if weights == HUB else Path(weights).name or "random numbers"
            raise DataError(
                f"{self.backbone}: the weights from {source} are not those that computed the "
                "features; run `afield embed` again"
            )
        return features.eval()


def state_digest(module: nn.Module) -> str:
    """Digest of the names and values of all tensors of a network."""
    digest = hashlib.sha256()
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
