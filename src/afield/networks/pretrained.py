"""Which pretrained network is at hand for photographs, if none is given.

    1. the file of ``--weights``, if it has a known name
    2. a file of a known name in the folder of weights: AFIELD_WEIGHTS, or AFIELD_DATA/weights
    3. the local cache of the Hugging Face hub
    4. the hub itself, if it answers within five seconds

``AFIELD_WEIGHTS=none`` turns the search off.
"""

import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from afield.data.domains import data_root
from afield.errors import SpecError
from afield.files import file_digest
from afield.progress import progress

__all__ = ["KNOWN_NETWORKS", "Pretrained", "download_command", "find_pretrained", "searches"]

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
