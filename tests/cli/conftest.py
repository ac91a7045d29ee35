"""What the tests of commands share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from tests.networks.register import register_only


@pytest.fixture
def refusal(afield, tmp_path: Path) -> Callable[..., str]:
    """A function that types a command with a mistake, and returns the one line of the error."""

    def typed(*words: object) -> str:
        before = sorted(tmp_path.iterdir())
        code, out, err = afield(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("error: ")
        assert sorted(tmp_path.iterdir()) == before
        return err

    return typed


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
