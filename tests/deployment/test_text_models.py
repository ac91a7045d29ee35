"""Models for texts: fitted, moved, loaded, asked and exported."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import afield
from afield.deployment.exporting import export
from afield.deployment.model_files import DESCRIPTION_FILE
from afield.errors import DataError, SpecError
from afield.files import sha256
from afield.studies.features import embed
from tests.texts import change_json, reviews, write_encoder, write_reviews

pytestmark = pytest.mark.slow
TEXTS = ["the film was very good", "awful soup", "a fine room and the plot"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Reviews, and models of each kind; the encoder's folder is gone when tests begin."""
    home = tmp_path_factory.mktemp("texts")
    encoder, data = write_encoder(home / "private_place" / "tiny"), write_reviews(home)
    options = {"store": home / "runs"}
    named = f"{data}?text=text"
    features = embed(named, home / "features", backbone=f"hf:{encoder}", tokens=12)
    afield.fit(features, "erm", home / "features_model", settings={"steps": 20}, **options)
    tuned = {"steps": 3, "backbone": f"hf:{encoder}", "tokens": 12}
    afield.fit(named, "erm", home / "tuned_model", settings=tuned, estimate=False, **options)
    bag = {"steps": 40, "tokens": 64}
    afield.fit(named, "erm", home / "bag_model", settings=bag, **options)
    short = {**bag, "backbone": "small:text"}
    afield.fit(named, "erm", home / "small_model", settings=short, estimate=False, **options)
    shutil.move(encoder.parent, home / "gone")
    return home


MODELS = ("features_model", "tuned_model", "small_model", "bag_model")


def test_a_model_takes_strings_series_frames_tables_and_text_files(home, tmp_path):
    for name in MODELS:
        model = afield.load(home / name)
        expected = model.predict_proba(TEXTS)
        assert expected.shape == (3, 2)
        frame = pd.DataFrame({"text": TEXTS})
        path = write_reviews(tmp_path, frame)
        (tmp_path / "files").mkdir(exist_ok=True)
        for number, text in enumerate(TEXTS):
            (tmp_path / "files" / f"{number}.txt").write_text(text)
        for same in (np.array(TEXTS), frame["text"], frame, path, tmp_path / "files"):
            np.testing.assert_allclose(model.predict_proba(same), expected, atol=1e-6)
        assert model.predict(TEXTS[0]).tolist() == model.predict(TEXTS)[:1].tolist()
        names = [prediction.file for prediction in model.predictions(path)]
        assert names == [f"{path}[{row}]" for row in range(3)]


def test_a_model_of_features_equals_the_network_on_the_features_of_the_texts(home):
    frame = reviews()
    model = afield.load(home / "features_model")
    with np.load(home / "features.npz") as file:
        rows, labels = file["X"], file["y"]
    inner = model.module.network
    import torch

    scaled = (torch.from_numpy(rows) - model.module.mean) / model.module.std
    expected = np.array(model.classes)[inner(scaled).argmax(1).numpy()]
    texts = frame.sort_values("domain", kind="stable")
    assert texts["label"].tolist() == labels.tolist()
    assert (model.predict(texts["text"]) == expected).mean() > 0.98
    assert model.about.calibration is not None


def test_the_folder_has_tokenizer_and_configuration_and_no_path_of_this_machine(home):
    for name in MODELS:
        folder = home / name
        has_encoder = name not in ("small_model", "bag_model")
        assert (folder / "encoder" / "tokenizer.json").exists() == has_encoder
        written = (folder / DESCRIPTION_FILE).read_text() + (folder / "README.md").read_text()
        assert "private_place" not in written
        assert str(home) not in written
        assert ("hf:tiny?pooling=mean" in written) == has_encoder
        seen = {"small_model": "the first 64 tokens", "bag_model": "up to 64 n-grams"}
        assert f"It sees {seen.get(name, 'the first 12 tokens')} of a text" in written
        moved = shutil.copytree(folder, home / "elsewhere" / name)
        same = afield.load(moved).predict_proba(TEXTS)
        np.testing.assert_array_equal(same, afield.load(folder).predict_proba(TEXTS))


def test_a_folder_with_changed_or_missing_files_of_the_encoder_is_refused(home, tmp_path):
    folder = shutil.copytree(home / "tuned_model", tmp_path / "model")
    config = folder / "encoder" / "config.json"
    original = config.read_text()
    change_json(config, hidden_size=8)
    with pytest.raises(DataError, match=r"config\.json: its SHA-256 is not the one"):
        afield.load(folder)
    config.write_text(original)
    change_json(config, auto_map={"AutoModel": "code.Net"})
    description = json.loads((folder / DESCRIPTION_FILE).read_text())
    description["files"]["encoder/config.json"] = sha256(config)
    change_json(folder / DESCRIPTION_FILE, **description)
    with pytest.raises(DataError, match="names code"):
        afield.load(folder)
    config.unlink()
    with pytest.raises(DataError, match=r"no encoder/config\.json"):
        afield.load(folder)


def test_the_encoder_of_a_model_cannot_ask_for_more_than_its_weights_have(home, tmp_path):
    folder = shutil.copytree(home / "tuned_model", tmp_path / "model")
    config = folder / "encoder" / "config.json"
    original = json.loads(config.read_text())
    for values, message in (
        ({"num_hidden_layers": 1500}, "asks for more parameters"),
        ({"num_hidden_layers": 10**6}, "above 2000"),
        ({"hidden_act": 3}, "config.json cannot be used"),
    ):
        config.write_text(json.dumps({**original, **values}))
        description = json.loads((folder / DESCRIPTION_FILE).read_text())
        description["files"]["encoder/config.json"] = sha256(config)
        change_json(folder / DESCRIPTION_FILE, **description)
        with pytest.raises(DataError, match=message):
            afield.load(folder)


def test_names_in_a_description_cannot_lead_to_another_folder(home, tmp_path):
    folder = shutil.copytree(home / "tuned_model", tmp_path / "model")
    description = json.loads((folder / DESCRIPTION_FILE).read_text())
    description["architecture"]["backbone"] = "hf:owner/never-downloaded?pooling=mean"
    description["inputs"]["tokenizer"] = "/etc/passwd"
    change_json(folder / DESCRIPTION_FILE, **description)
    about = afield.load(folder).about
    assert about.inputs.tokenizer == str(folder / "encoder" / "tokenizer.json")
    assert about.architecture.backbone == f"hf:{folder / 'encoder'}?pooling=mean"


def test_texts_that_cannot_be_read_get_a_line_each(home, tmp_path):
    model = afield.load(home / "small_model")
    broken = list(model.predictions(["good", " ", float("nan"), "bad"]))
    assert [prediction.error for prediction in broken] == ["", "no text", "no text", ""]
    (tmp_path / "latin.txt").write_bytes("schön".encode("latin-1"))
    path = write_reviews(tmp_path, pd.DataFrame({"words": ["good"]}))
    (tmp_path / "vectors.npz").write_bytes(b"PK")
    files = [tmp_path / name for name in ("latin.txt", "none.txt", path.name, "vectors.npz")]
    result = list(model.predictions(files))
    assert result[0].error.startswith("not UTF-8")
    assert result[1].error == "no such file or folder"
    assert "no column 'text' of texts; it has words" in result[2].error
    assert result[3].error == "arrays, but this model takes texts"
    (named,) = model.predictions(path, text="words")
    assert named.label in model.classes
    for values, message in (
        (str(path), "is a file, not a text"),
        ([path, "good"], "either texts or paths"),
        (3, "give texts as strings"),
    ):
        with pytest.raises(SpecError, match=message):
            model.predict(values)


def test_other_models_refuse_a_column_of_texts(tmp_path):
    settings = {"steps": 5}
    options = {"store": tmp_path / "runs", "estimate": False, "settings": settings}
    model = afield.fit("spirals", "erm", tmp_path / "model", **options)
    with pytest.raises(SpecError, match="takes no texts"):
        list(model.predictions(np.zeros((1, 2)), text="text"))


def test_exports_take_token_ids_and_a_mask_of_any_length(home, tmp_path):
    import onnxruntime

    for name in MODELS:
        model = afield.load(home / name)
        path = export(home / name, "onnx", tmp_path / f"{name}.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask"]
        facts = session.get_modelmeta().custom_metadata_map
        assert facts["max_tokens"] == str(model.about.inputs.stored[0])
        rows = np.stack([model.about.inputs.modality.tokenize(text)[1:] for text in TEXTS])
        width = (rows >= 0).sum(1).max()
        ids, mask = np.maximum(rows, 0)[:, :width], (rows >= 0)[:, :width]
        feed = {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}
        probabilities = session.run(["probabilities"], feed)[0]
        np.testing.assert_allclose(probabilities, model.predict_proba(TEXTS), atol=1e-4)


def test_the_card_and_the_command_name_the_column(home):
    card = (home / "tuned_model" / "README.md").read_text()
    assert 'model.predict(["A text."])' in card
    assert "text-classification" in card
    assert Path(home / "gone").exists()


def test_the_commands_predict_a_column_and_export_with_the_inputs_of_texts(home, tmp_path, afield):
    path = write_reviews(tmp_path, pd.DataFrame({"words": TEXTS}), "new.csv")
    code, out, _ = afield("predict", home / "small_model", path, "--text", "words")
    assert code == 0
    assert out.count(f"{path}[") == 3
    words = ("export", home / "small_model", "--to", "torch", "--out", tmp_path / "model.pt2")
    code, out, _ = afield(*words)
    assert code == 0
    assert "from input_ids and attention_mask (n × up to 64 tokens, int64)" in out


def test_bad_input_of_the_commands_is_one_line(home, tmp_path, afield):
    encoder, data = home / "gone" / "tiny", home / "reviews.csv"
    bare = shutil.copytree(encoder, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    shutil.copytree(encoder, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / "model.bin")
    for words, message in (
        (("embed", data, "--text", "review", "--backbone", f"hf:{encoder}"), "no column 'review'"),
        (("embed", data), "computed by a pretrained encoder"),
        (("embed", data, "--backbone", f"hf:{bare}"), "no tokenizer.json"),
        (("embed", data, "--backbone", f"hf:{tmp_path / 'pickled'}"), "a pickle"),
        (("fit", data, "erm", "--backbone", f"hf:{tmp_path / 'none'}"), "no such folder"),
    ):
        code, out, err = afield(*words, "--out", tmp_path / "out")
        assert code == 2, message
        assert message in err
        assert len((out + err).strip().splitlines()) == 1
