"""What the tests of several files share: a small learning problem and runs on it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from afield.cli import console, main
from afield.data.domains import Domain
from afield.data.samples import Samples, pool_domains
from afield.data.stream import Stream
from afield.deployment.fitting import fit
from afield.networks.backbone import Classifier
from afield.training.learner import Task
from tests.data.downloadable import NAME, SOURCE
from tests.files import other_package
from tests.networks.register import register_only

DOMAINS, CLASSES, FEATURES = 3, 4, 6
# Tests are small: more threads would wait for each other, not least where other programs run.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is kept in, or taken from, the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Folders of images train a small network, whatever weights this machine has.
        patch.setenv("AFIELD_WEIGHTS", "none")
        yield


@pytest.fixture
def samples() -> Samples:
    """Three domains whose classes lie apart, each domain shifted a little."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=generator)
    mains = {}
    for i in range(DOMAINS):
        y = torch.arange(40 + 10 * i) % CLASSES
        noise = torch.randn(len(y), FEATURES, generator=generator)
        mains[f"domain{i}"] = Domain(x=centres[y] + 0.3 * noise + 0.5 * i, y=y)
    return pool_domains(mains)


@pytest.fixture
def stream(samples: Samples) -> Stream:
    return Stream(samples, batch=8, seed=0)


def little_network(outputs: int) -> nn.Module:
    return Classifier(nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU()), 8, outputs)


@pytest.fixture
def task() -> Task:
    return Task(
        sources=tuple(f"domain{i}" for i in range(DOMAINS)),
        classes=tuple("abcd"),
        steps=100,
        network=little_network,
        optimizer=partial(torch.optim.Adam, lr=0.01),
        shape=(FEATURES,),
    )


@pytest.fixture
def model(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return task.network(CLASSES)


@pytest.fixture(scope="session")
def spiral_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model, with its estimate; not to be changed."""
    place = tmp_path_factory.mktemp("fitted")
    settings = {"steps": 40, "every": 20}
    fit("spirals", "erm", place / "model", store=place / "runs", settings=settings)
    return place / "model"


@pytest.fixture
def model_folder(spiral_model: Path, tmp_path: Path) -> Path:
    """A copy of it, to be tampered with."""
    shutil.copytree(spiral_model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def two_colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two classes from three cameras, each with a tint of its own."""
    root, generator = tmp_path_factory.mktemp("data") / "colours", np.random.default_rng(0)
    for camera, tint in (("east", 0), ("north", 25), ("west", 50)):
        for label, level in (("dark", 60), ("light", 150)):
            folder = root / camera / label
            folder.mkdir(parents=True)
            for number in range(10):
                noise = generator.normal(0, 25, (20 + number, 30, 3))
                pixels = (level + tint + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture
def afield(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """A function that types a command in an empty folder.

    It returns the exit code and what the command wrote to standard output and standard error.
    """
    monkeypatch.chdir(tmp_path)

    def type_(*words: object, width: int = 200) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["afield", *map(str, words)])
        # The consoles were made at import, for the streams of that moment.
        monkeypatch.setattr(console, "out", console.SafeConsole(width=width, highlight=False))
        monkeypatch.setattr(
            console, "err", console.SafeConsole(stderr=True, width=width, highlight=False)
        )
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        written = capsys.readouterr()
        return code, written.out, written.err

    return type_


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Installs the package with these archives, each an address, a checksum and a folder."""

    def declared(*archives, source=SOURCE):
        archive_code = "".join(f"Archive({u!r}, {c!r}, folder={f!r}), " for u, c, f in archives)
        (tmp_path / "site").mkdir()
        text = source.format(name=NAME, archives=f"({archive_code})")
        other_package(tmp_path / "site", "datasets", NAME, "their_module:theirs", text)
        monkeypatch.syspath_prepend(tmp_path / "site")

    yield declared
    sys.modules.pop("their_module", None)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of the hub, without a connection."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return folder


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photographs of two findings from three hospitals, and a tiny network with weights at hand."""
    weights = tmp_path / "weights" / "test_resnet.safetensors"
    weights.parent.mkdir()
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), weights)
    register_only(monkeypatch, "timm:test_resnet")
    monkeypatch.setenv("AFIELD_WEIGHTS", str(weights.parent))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for hospital, tint in (("Klinikum Nord", 0), ("St. Marien", 25), ("Uniklinik", 50)):
        for finding, level in (("Erguss", 60), ("unauffällig", 150)):
            folder = tmp_path / "Kliniken" / hospital / finding
            folder.mkdir(parents=True)
            for number in range(8):
                noise = generator.normal(0, 25, (20 + number, 30, 3))
                pixels = (level + tint + noise).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "Kliniken"
