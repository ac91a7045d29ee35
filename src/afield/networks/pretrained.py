"""Pretrained networks: which one is at hand for photographs, and a frozen one for features.

If no network is given, one is looked for in this order:

    1. the file of ``--weights``, if it has a known name
    2. the network of the level ``fast``: a file in the folder of weights (AFIELD_WEIGHTS, or
       AFIELD_DATA/weights), the local cache of the Hugging Face hub, or the hub itself, if it
       answers within five seconds
    3. the networks of the level ``at hand``, best first: a file in the folder of weights, or the
       cache of the hub

``AFIELD_WEIGHTS=none`` turns the search off, ``HF_HUB_OFFLINE=1`` the download. An `Encoder` is a
network without its head, with the way in which its inputs are prepared.
"""

import hashlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from afield import registry
from afield.compute import preserve_torch_state
from afield.data.augmentation import Resize
from afield.data.domains import data_root
from afield.data.samples import Prepare, trim_padding
from afield.data.scaling import Scaling
from afield.errors import DataError, SpecError
from afield.files import file_digest
from afield.networks.backbone import HUB, Form, find_backbone, network
from afield.networks.facts import LEVELS, REGISTER, NetworkFacts, find_registered, networks_of_level
from afield.progress import progress
from afield.seeds import derive_seed

# The level of the default network.
DEFAULT_LEVEL = "fast"
PROBE_SECONDS = 5.0
SUFFIXES = (".safetensors", ".pth", ".pt")
# Names of files with weights in a repository of the hub.
HUB_FILES = ("model.safetensors", "open_clip_model.safetensors", "open_clip_pytorch_model.bin")


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

    A given file must have a known name, because the name says which network it belongs to. With
    ``hub``, the folder of weights is left out.
    """
    if weights is not None and weights != HUB:
        return _of_file(weights)
    if not searches():
        return None
    find = cached_weights if weights else local_weights
    (fast,) = networks_of_level(DEFAULT_LEVEL)
    at_hand = networks_of_level("at hand")
    tried = ((fast, find), (fast, _download), *((facts, find) for facts in at_hand))
    found = ((facts.name, way(facts)) for facts, way in tried)
    return next((Pretrained(name, file) for name, file in found if file), None)


def local_weights(facts: NetworkFacts) -> str | None:
    """The file with the weights of a network on this machine; None if there is none."""
    return weights_in_folder(facts) or cached_weights(facts)


def weights_in_folder(facts: NetworkFacts) -> str | None:
    """The file with the weights of a network in the folder of weights."""
    if not searches():
        return None
    folder = Path(os.environ.get("AFIELD_WEIGHTS") or data_root() / "weights").expanduser()
    paths = (folder / f"{facts.file_stem}{suffix}" for suffix in SUFFIXES)
    return next((str(path.resolve()) for path in paths if path.is_file()), None)


def cached_weights(facts: NetworkFacts) -> str | None:
    """The file with the weights of a network in the cache of the hub."""
    from huggingface_hub import try_to_load_from_cache

    files = HUB_FILES if facts.repository else ()
    cached = (try_to_load_from_cache(facts.repository, name) for name in files)
    return next((path for path in cached if isinstance(path, str)), None)


def registered_weights(name: str) -> str | None:
    """The file in the folder of weights for a network of the register; None if there is none."""
    facts = find_registered(name)
    return weights_in_folder(facts) if facts else None


def separate_networks(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings once for every network that ``backbone`` names, with names in place of levels.

    Raises `DataError` if the weights of a level cannot be had.

    >>> separate_networks({"backbone": "small:cnn,linear", "lr": 0.1})
    [{'backbone': 'small:cnn', 'lr': 0.1}, {'backbone': 'linear', 'lr': 0.1}]
    """
    asked, weights = settings.get("backbone"), settings.get("weights")
    if not asked or not isinstance(asked, str | list | tuple):
        return [dict(settings)]
    names = split_networks(asked)
    chosen = [each for name in names for each in _networks_of(name, search=not weights)]
    if len(chosen) > 1 and weights not in (None, "", HUB, "none"):
        raise SpecError(
            f"--weights {weights}: one file for {len(chosen)} networks; give one --backbone, or "
            "put files with the names of the networks into the folder AFIELD_WEIGHTS"
        )
    return [{**settings, **dict(each)} for each in dict.fromkeys(chosen)]


def one_network(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a name in place of a level; raises if there are several networks."""
    separate = separate_networks(settings)
    if len(separate) > 1:
        names = " and ".join(str(each["backbone"]) for each in separate)
        raise SpecError(f"--backbone {settings['backbone']}: stands for {names}; give one of them")
    return separate[0]


def split_networks(names: str | Sequence[str]) -> list[str]:
    """The names of networks in a text with commas; a comma may also be in the path of an encoder.

    >>> split_networks("fast,hf:texts/old,new,timm:resnet50")
    ['fast', 'hf:texts/old,new', 'timm:resnet50']
    """
    if not isinstance(names, str):
        return [each for name in names for each in split_networks(name)]
    found: list[str] = []
    for piece in names.split(","):
        family = piece.strip().partition(":")[0]
        if found and family not in (*LEVELS, *registry.names("backbones")):
            found[-1] += f",{piece}"
        else:
            found.append(piece.strip())
    return found


def _networks_of(name: str, *, search: bool) -> list[tuple[tuple[str, str], ...]]:
    """The settings of the networks of a level; any other name stands for itself."""
    if name not in LEVELS:
        return [(("backbone", name),)]
    return [
        (("backbone", facts.name), *(_weights_of_level(facts, name) if search else ()))
        for facts in networks_of_level(name)
    ]


def _weights_of_level(facts: NetworkFacts, level: str) -> tuple[tuple[str, str], ...]:
    """The file of a network's weights; empty if its family downloads them when it is built."""
    from huggingface_hub import constants

    file = local_weights(facts)
    if level == DEFAULT_LEVEL:
        # The file of the default is found in the same way, so both have the same records.
        file = file or _download(facts)
    if file is None and (constants.HF_HUB_OFFLINE or level == DEFAULT_LEVEL):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub does not answer"
        here = [each.name for each in REGISTER if local_weights(each)]
        instead = f"at hand: {', '.join(here)}" if here else f"get it with `{download_command()}`"
        raise DataError(f"--backbone {level}: {facts.name} is not at hand and {reason}; {instead}")
    chosen = file if level == DEFAULT_LEVEL else weights_in_folder(facts)
    return (("weights", chosen),) if chosen else ()


def download_command() -> str:
    """The command that fetches weights, on a machine that reaches the hub."""
    (fast,) = networks_of_level(DEFAULT_LEVEL)
    model = fast.name.partition(":")[2]
    return f"python -c \"import timm; timm.create_model('{model}', pretrained=True)\""


def _of_file(weights: str) -> Pretrained:
    path = Path(weights).expanduser()
    for facts in REGISTER:
        if path.stem == facts.file_stem:
            return Pretrained(facts.name, str(path.resolve()))
    known = ", ".join(f"{each.file_stem}{SUFFIXES[0]}" for each in networks_of_level("at hand"))
    raise SpecError(
        f"--weights {weights}: the name does not say which network it is for; add --backbone, or "
        f"give one of {known}"
    )


def _download(facts: NetworkFacts) -> str | None:
    """The file with the weights of a network from the hub; None if it cannot be had."""
    from huggingface_hub import constants, hf_hub_download

    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        return None
    try:
        with progress(f"weights of {facts.name}"):
            return hf_hub_download(facts.repository, HUB_FILES[0])
    except Exception:  # noqa: BLE001  the hub raises many kinds of errors; none of them is final
        return None


@lru_cache
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
