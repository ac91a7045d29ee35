"""Models of classical methods: fitted, stored as arrays, loaded, attacked and exported."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save

from afield.data.lookup import find_dataset
from afield.deployment.exporting import export
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.errors import DataError
from afield.files import sha256
from afield.runs.finished import reopen
from afield.runs.store import Store
from tests.texts import write_reviews

FEW = {"extra_trees": {"extra_trees.trees": 8}, "boosted_trees": {"boosted_trees.rounds": 4}}
NAMES = ["logistic", "extra_trees", "boosted_trees", "svm", "nearest"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder of a model of every classical method, on arrays."""
    root = tmp_path_factory.mktemp("classical")
    for name in NAMES:
        fit("spirals", name, root / name, store=root / "runs", settings=FEW.get(name, {}))
    return root


def samples():
    return find_dataset("spirals").load()["turn20"].x.numpy()


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_predicts_the_bytes_of_the_run_that_made_it(name, models):
    model, store = load(models / name), Store(models / "runs")
    (record,) = [each for each in store if not each.unseen and each.run.method == name]
    subject = reopen(store.folder(record.run))
    x = torch.from_numpy(samples())
    with torch.inference_mode():
        expected = subject.model(subject.domains["turn20"].prepare(x))
    logits, _ = model.logits_and_features(x)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_has_all_that_other_folders_have_and_nothing_pickled(name, models):
    folder = models / name
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    model = load(folder)
    estimate, calibration = model.about.estimate, model.about.calibration
    assert set(estimate.domains) == {"turn0", "turn10", "turn20", "turn30"}
    assert calibration.temperature != 1.0
    assert set(calibration.separations) == set(estimate.domains)
    (first, *_) = model.predictions(samples()[:3])
    assert 0 <= first.percentile <= 100
    assert name in (folder / "README.md").read_text()
    domain = find_dataset("spirals").load()["turn20"]
    names = np.array(model.classes)[domain.y.numpy()]
    assert model.evaluate((domain.x.numpy(), names)).overall.accuracy > 0.5
    assert len(model.held_out) == 4


def tampered(folder, tmp_path, change, *, hashed=True):
    """A copy of a model folder with changed arrays, and with their hash if `hashed`."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    weights = load_file(copy / "model.safetensors")
    change(weights)
    (copy / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    if hashed:
        about = json.loads((copy / "model.json").read_text())
        about["files"]["model.safetensors"] = sha256(copy / "model.safetensors")
        (copy / "model.json").write_text(json.dumps(about))
    return copy


def cycle(weights):
    inner = (weights["head.child"] > torch.arange(len(weights["head.child"]))).nonzero()[-1]
    weights["head.child"][inner] = 0


def far_node(weights):
    weights["head.child"][0] = 2**31 - 2


def far_feature(weights):
    weights["head.feature"][0] = 7


def wide_table(weights):
    weights["head.table"] = torch.ones(len(weights["head.table"]), 5)


def no_roots(weights):
    weights["head.roots"] = weights["head.roots"][:0]


def without_table(weights):
    del weights["head.table"]


def wrong_type(weights):
    weights["head.row"] = weights["head.row"].float()


def another_array(weights):
    weights["head.code"] = torch.zeros(3)


CHANGES = (cycle, far_node, far_feature, wide_table, no_roots, without_table)
CHANGES += (wrong_type, another_array)


@pytest.mark.parametrize("name", ["extra_trees", "boosted_trees"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_trees_are_refused_in_one_line_even_with_their_hash(name, change, models, tmp_path):
    with pytest.raises(DataError, match=r"model\.safetensors: not the") as caught:
        load(tampered(models / name, tmp_path, change))
    assert "\n" not in str(caught.value)


def test_a_change_without_its_hash_is_noticed_first(models, tmp_path):
    with pytest.raises(DataError, match="SHA-256 is not the one"):
        load(tampered(models / "svm", tmp_path, lambda w: w["head.gamma"].fill_(2), hashed=False))


@pytest.mark.parametrize("wrapper", ["linear_probe_", "os.system", "../svm"])
def test_a_description_that_names_no_method_is_refused(wrapper, models, tmp_path):
    copy = tampered(models / "svm", tmp_path, lambda _: None)
    about = json.loads((copy / "model.json").read_text())
    about["architecture"]["wrapper"] = wrapper
    (copy / "model.json").write_text(json.dumps(about))
    with pytest.raises(DataError) as caught:
        load(copy)
    assert "\n" not in str(caught.value)


def test_arrays_of_another_classical_method_are_refused(models, tmp_path):
    copy = tampered(models / "svm", tmp_path, lambda _: None)
    about = json.loads((copy / "model.json").read_text())
    about["architecture"].update(wrapper="nearest", params={"neighbors": 5})
    (copy / "model.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match="points is missing"):
        load(copy)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_exported_file_gives_the_probabilities_of_the_model(name, models, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    file = export(models / name, "onnx", tmp_path / f"{name}.onnx")
    session = onnxruntime.InferenceSession(file)
    x = samples()[:50].astype(np.float32)
    found = session.run(["probabilities"], {"x": x})[0]
    np.testing.assert_allclose(found, load(models / name).predict_proba(x), atol=1e-4)


def test_tables_and_texts_are_fitted_and_predicted(tmp_path):
    generator = np.random.default_rng(0)
    label = generator.integers(0, 2, 120)
    frame = pd.DataFrame(
        {
            "age": np.where(
                generator.random(120) < 0.2, np.nan, label + generator.normal(size=120)
            ),
            "kind": np.where(label == generator.integers(0, 2, 120), "a", "b"),
            "label": np.array(["no", "yes"])[label],
            "domain": np.repeat(["north", "south", "west"], 40),
        }
    )
    frame.to_csv(tmp_path / "table.csv", index=False)
    model = fit(tmp_path / "table.csv", "logistic", tmp_path / "m1", store=tmp_path / "runs")
    new = pd.DataFrame({"age": [2.0, np.nan], "kind": ["a", "never seen"]})
    assert model.predict_proba(new).shape == (2, 2)
    path = write_reviews(tmp_path)
    for name in ("logistic", "extra_trees"):
        settings = FEW.get(name, {})
        out = tmp_path / f"texts {name}"
        model = fit(path, name, out, store=tmp_path / "runs", settings=settings, estimate=False)
        assert load(out).predict(["a good book", "a bad film"]).shape == (2,)
