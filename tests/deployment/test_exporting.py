"""What is exported gives the same in other programs, or is not kept."""

import csv
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from afield.deployment import exporting
from afield.deployment.exporting import SCRIPT, export
from afield.deployment.fitting import fit
from afield.deployment.model import Model, load
from afield.errors import SpecError

TINY = {"steps": 1, "every": 1, "size": 32, "weights": "none"}
MODELS = {
    "small": ("erm", "small:cnn"),
    "resnet": ("erm", "timm:resnet18"),
    "efficientnet": ("erm", "timm:tf_efficientnet_lite0"),
    "dmg": ("dmg", "small:cnn"),
    "arith": ("arith", "small:cnn"),
}


def as_seen(model: Model, files) -> np.ndarray:
    """Pictures at the network's size, not scaled: what the exported network takes."""
    inputs = model.about.inputs
    (batch,) = inputs.modality.read_batches(inputs, files, len(files))
    stored = batch.x
    mean, std = (inputs.per_channel(part) for part in (inputs.mean, inputs.std))
    return (inputs.prepare(stored) * std + mean).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_the_same_probabilities_for_files(name, two_colours, tmp_path):
    method, backbone = MODELS[name]
    settings = {**TINY, "backbone": backbone}
    options = {"store": tmp_path / "runs", "settings": settings, "estimate": False}
    model = fit(two_colours, method, tmp_path / "model", **options)
    files = sorted(two_colours.rglob("*.png"))[:9]
    session = onnxruntime.InferenceSession(export(tmp_path / "model"))
    _, result = session.run(None, {"x": as_seen(model, files)})
    np.testing.assert_allclose(result, model.predict_proba(files), atol=1e-4)


@pytest.mark.slow
def test_torch_gives_the_same_for_any_batch(spiral_model, tmp_path):
    program = torch.export.load(export(spiral_model, "torch", tmp_path / "m.pt2"))
    model = load(spiral_model)
    for count in (1, 3, 100):
        x = torch.randn(count, 2)
        logits, result = program.module()(x)
        np.testing.assert_allclose(result.detach(), model.predict_proba(x), atol=1e-6)
        assert logits.shape == (count, 2)


@pytest.fixture(scope="module")
def exported(spiral_model, tmp_path_factory):
    return export(spiral_model, "onnx", tmp_path_factory.mktemp("onnx") / "m.onnx")


@pytest.mark.slow
def test_the_file_says_what_goes_in_and_comes_out(exported):
    program = onnx.load(exported)
    onnx.checker.check_model(program)
    (x,) = program.graph.input
    assert x.name == "x"
    first, width = x.type.tensor_type.shape.dim
    assert first.dim_param
    assert width.dim_value == 2
    assert [each.name for each in program.graph.output] == ["logits", "probabilities"]
    metadata = {each.key: each.value for each in program.metadata_props}
    assert json.loads(metadata["classes"]) == ["first", "second"]


@pytest.mark.slow
@pytest.mark.parametrize(("to", "suffix"), [("onnx", ".onnx"), ("torch", ".pt2")])
def test_exports_do_not_tell_where_anything_is_installed(spiral_model, tmp_path, to, suffix):
    path = export(spiral_model, to, tmp_path / f"model{suffix}")
    content = path.read_bytes()
    if to == "torch":
        with zipfile.ZipFile(path) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    places = (Path(torch.__file__).parents[1], Path(exporting.__file__).parents[2], tmp_path)
    for place in (*map(str, places), "site-packages", ".py"):
        assert place.encode() not in content, place


def test_temperature_and_softmax_are_in_it(exported, spiral_model):
    model = load(spiral_model)
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    logits, result = onnxruntime.InferenceSession(exported).run(None, {"x": x})
    expected = torch.from_numpy(logits / model.temperature).softmax(dim=1)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    np.testing.assert_allclose(result, model.predict_proba(x), atol=1e-4)


def test_what_gives_other_numbers_is_not_kept(spiral_model, tmp_path, monkeypatch):
    class Other(nn.Module):
        def forward(self, x):
            return 2 * x, x.softmax(dim=1)

    monkeypatch.setattr(
        exporting, "_write_onnx", lambda ready, model, part: part.touch() or Other()
    )
    with pytest.raises(SpecError, match=r"differs by .* it is not kept"):
        export(spiral_model, "onnx", tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_in_a_line_and_nothing_is_left(spiral_model, tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return self.module(x) if float(x.sum()) > 0 else x

    model = load(spiral_model)
    odd = Odd()
    odd.module = model.module
    with pytest.raises(SpecError, match="cannot be exported to torch") as caught:
        export(Model(model.about, odd), "torch", tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_predicts_from_batches_is_refused(tmp_path):
    settings = {"steps": 2, "every": 2}
    options = {"store": tmp_path / "runs", "settings": settings, "estimate": False}
    fit("spirals", "mtl", tmp_path / "model", **options)
    with pytest.raises(SpecError, match="mtl predicts from batches of unlabelled samples"):
        export(tmp_path / "model")
    assert len(load(tmp_path / "model").predict(np.zeros((3, 2), dtype=np.float32))) == 3


def test_a_model_that_is_exported_stays_as_it_was(spiral_model, tmp_path, monkeypatch):
    model, traced = load(spiral_model), []
    model.module.features.append(nn.ReLU(inplace=True))

    def written(ready, model, part):
        part.touch()
        traced.append(ready.module)
        return ready

    monkeypatch.setattr(exporting, "_write_onnx", written)
    export(model, "onnx", tmp_path / "m.onnx")
    assert model.module.features[-1].inplace
    assert not traced[0].features[-1].inplace
    assert traced[0] is not model.module


def test_a_package_that_is_missing_is_reported(spiral_model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SpecError, match=r"pip install 'afield\[onnx\]'"):
        export(spiral_model, "onnx", tmp_path / "m.onnx")


def test_places_and_forms_that_are_impossible_are_refused(spiral_model, tmp_path):
    with pytest.raises(SpecError, match="cannot export to 'tflite'; give onnx or torch"):
        export(spiral_model, "tflite")
    with pytest.raises(SpecError, match=r"the suffix of onnx files is \.onnx"):
        export(spiral_model, "onnx", tmp_path / "m.pt2")
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(SpecError, match="--force"):
        export(spiral_model, "onnx", tmp_path / "m.onnx")
    with pytest.raises(SpecError, match="give `out`"):
        export(load(spiral_model))
    assert (tmp_path / "m.onnx").read_text() == "mine"


def odd_image(number: int, generator: np.random.Generator) -> Image.Image:
    """An image with one of several modes, sizes and shapes."""
    width, height = (int(side) for side in generator.integers(9, 200, 2))
    level = generator.integers(0, 255)
    noise = generator.normal(level, 40, (height, width, 3)).clip(0, 255).astype(np.uint8)
    mode = ("RGB", "L", "LA", "RGBA", "P", "1", "CMYK", "I;16")[number % 8]
    if mode == "I;16":
        return Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(noise).convert(mode)


def write_odd_image(folder: Path, number: int, generator: np.random.Generator) -> Path:
    image = odd_image(number, generator)
    fitting = {"CMYK": ("jpg", "tif"), "RGB": ("jpg", "webp", "bmp", "png"), "L": ("jpg", "png")}
    suffixes = fitting.get(image.mode, ("png", "tif"))
    path = folder / f"{number:03d}.{suffixes[number // 8 % len(suffixes)]}"
    exif = Image.Exif()
    exif[0x0112] = number % 9
    image.save(path, **({"exif": exif} if path.suffix in (".jpg", ".webp", ".png") else {}))
    return path


def test_the_script_beside_an_exported_model_answers_like_predict(two_colours, tmp_path):
    settings = {"backbone": "small:cnn", "steps": 20, "size": 40}
    model = fit(two_colours, "erm", tmp_path / "m", settings=settings, store=tmp_path / "runs")
    path = export(model, "onnx", tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    (tmp_path / "odd").mkdir()
    files = [write_odd_image(tmp_path / "odd", number, generator) for number in range(100)]
    program = [sys.executable, "predict_onnx.py", path.name, *map(str, files)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    answers = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [answer["file"] for answer in answers] == list(map(str, files))
    expected = model.predict_proba(files)
    classes = [model.classes[number] for number in expected.argmax(1)]
    assert [answer["class"] for answer in answers] == classes
    assert len(set(classes)) == 2
    confidences = [float(answer["confidence"]) for answer in answers]
    np.testing.assert_allclose(confidences, expected.max(1), atol=0.005)


def test_a_script_that_was_changed_is_kept_unless_it_may_be_replaced(two_colours, tmp_path, caplog):
    settings = {"backbone": "small:cnn", "steps": 2, "size": 16}
    model = fit(
        two_colours, "erm", tmp_path / "m", settings=settings, store=tmp_path, estimate=False
    )
    script = tmp_path / "predict_onnx.py"
    export(model, "torch", tmp_path / "m.pt2")
    assert not script.exists()
    script.write_text("mine")
    export(model, "onnx", tmp_path / "m.onnx")
    assert script.read_text() == "mine"
    assert "predict_onnx.py: exists already and is kept" in caplog.text
    export(model, "onnx", tmp_path / "m.onnx", overwrite=True)
    assert script.read_text() == SCRIPT.read_text()
