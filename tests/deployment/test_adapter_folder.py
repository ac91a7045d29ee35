"""Model folders with an adapter of a base: written, read with the base, and refused without it."""

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import afield
from afield.deployment.exporting import export
from afield.errors import DataError, SpecError
from afield.networks.backbone import network
from tests.runs.small_runs import varied_run
from tests.texts import write_encoder, write_reviews

TUNE = "lora:rank=2,alpha=4"
ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Pictures, weights of a small network, and models of one run with all weights and without."""
    home = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    net = timm.create_model("test_vit", num_classes=0)
    save_file(net.state_dict(), home / "first.safetensors")
    varied_run(home)
    for name in ("whole", "adapter"):
        fit(home, name, adapter_only=name == "adapter")
    return home


def fit(home, name, **options):
    settings = {"backbone": "timm:test_vit", "weights": str(home / "first.safetensors")}
    settings |= {"tune": TUNE, "size": 32, "steps": 4, "lr": 0.01, **options.pop("settings", {})}
    options = {"estimate": False, "store": home / "runs", **options}
    return afield.fit(home / "pictures", "erm", home / name, settings=settings, **options)


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_an_adapter_predicts_like_all_weights_and_is_small(home):
    whole = afield.load(home / "whole")
    model = afield.load(home / "adapter", base=home / "first.safetensors")
    expected = whole.module.state_dict()
    for name, value in model.module.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
    x = [home / "pictures" / "a" / "red" / f"{i}.png" for i in range(4)]
    np.testing.assert_allclose(model.predict_proba(x), whole.predict_proba(x), atol=1e-6)
    assert "model.safetensors" in files(home / "whole")
    assert files(home / "adapter") == files(home / "whole") - {"model.safetensors"} | {
        "adapter_config.json",
        ADAPTER,
    }
    sizes = [(home / n).stat().st_size for n in ("whole/model.safetensors", f"adapter/{ADAPTER}")]
    assert sizes[1] < sizes[0] / 4
    about = json.loads((home / "adapter" / "model.json").read_text())
    assert about["base"]["weights"] == "first.safetensors"
    assert str(home) not in (home / "adapter" / "model.json").read_text()
    assert "base" not in json.loads((home / "whole" / "model.json").read_text())


def test_the_base_is_found_by_its_name(home, tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path))
    with pytest.raises(DataError, match=r"there is no .*first.safetensors; put its weights there"):
        afield.load(home / "adapter")
    shutil.copy(home / "first.safetensors", tmp_path)
    model = afield.load(home / "adapter")
    assert export(model, "torch", tmp_path / "model.pt2").exists()
    assert model.classes == ("blue", "red")


def test_another_base_is_refused_in_one_line(home, tmp_path):
    weights = load_file(home / "first.safetensors")
    name = next(name for name in weights if name.endswith("qkv.weight"))
    weights[name][0, 0] += 1
    save_file(weights, tmp_path / "first.safetensors")
    with pytest.raises(DataError, match="have another digest; give those") as caught:
        afield.load(home / "adapter", base=tmp_path / "first.safetensors")
    assert "\n" not in str(caught.value)


def test_a_changed_or_foreign_adapter_is_refused(home, tmp_path):
    folder = shutil.copytree(home / "adapter", tmp_path / "model")
    tensors = load_file(folder / ADAPTER)
    save_file({name: value + 1 for name, value in tensors.items()}, folder / ADAPTER)
    with pytest.raises(DataError, match=r"its SHA-256 is not the one in model.json"):
        afield.load(folder, base=home / "first.safetensors")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "head"}, "--adapter-only: only with --tune lora"),
        ({"weights": "none"}, "starts from random weights"),
    ],
)
def test_what_cannot_be_an_adapter_is_refused_before_training(home, tmp_path, settings, message):
    with pytest.raises(SpecError, match=message):
        fit(home, "refused", adapter_only=True, settings=settings, store=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("erm-*"))
    with pytest.raises(SpecError, match="only for one trained network"):
        fit(home, "refused", adapter_only=True, ensemble=2, store=tmp_path / "runs")


def test_peft_reads_the_folder(home):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig.from_pretrained(home / "adapter")
    assert (config.r, config.lora_alpha) == (2, 4)
    whole = afield.load(home / "whole").module
    base = afield.load(home / "whole").module
    first = network("timm:test_vit", (3, 32, 32), 2, weights=str(home / "first.safetensors"))
    base.features.load_state_dict(first.features.state_dict())
    theirs = peft.PeftModel.from_pretrained(base, home / "adapter").eval()
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), whole(x), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_of_an_encoder_of_texts(tmp_path, monkeypatch):
    encoder, data = write_encoder(tmp_path / "at_hand" / "tiny"), write_reviews(tmp_path)
    settings = {"steps": 3, "backbone": f"hf:{encoder}", "tokens": 12, "tune": TUNE, "lr": 0.01}
    options = {"settings": settings, "estimate": False, "store": tmp_path / "runs"}
    named = f"{data}?text=text"
    whole = afield.fit(named, "erm", tmp_path / "whole", **options)
    afield.fit(named, "erm", tmp_path / "model", adapter_only=True, **options)
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path / "at_hand"))
    model = afield.load(tmp_path / "model")
    texts = ["the film was very good", "awful soup"]
    np.testing.assert_allclose(model.predict_proba(texts), whole.predict_proba(texts), atol=1e-6)
    assert "tiny" in (tmp_path / "model" / "model.json").read_text()
