"""Models on features take images: the whole network equals its two parts."""

import json
import logging

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from afield.deployment.exporting import export
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.studies.features import embed

NET = "test_resnet"
QUICK = {"steps": 20, "every": 10}


@pytest.fixture
def features(two_colours, tmp_path):
    file = tmp_path / "net.safetensors"
    save_file(timm.create_model(NET, num_classes=0).state_dict(), file)
    options = {"backbone": f"timm:{NET}", "weights": str(file), "size": 32}
    return embed(two_colours, tmp_path / "emb", **options)


def test_images_get_the_predictions_of_their_features(features, two_colours, tmp_path):
    options = {"store": tmp_path / "runs", "settings": QUICK}
    model = fit(features, "erm", tmp_path / "model", **options)
    assert model.about.inputs.kind == "pictures"
    content = np.load(features)
    files = [two_colours / name for name in content["names"]]
    from_files = model.predict_proba(files)
    (tmp_path / "net.safetensors").unlink()
    plain = fit(features, "erm", tmp_path / "plain", **options)
    assert plain.about.inputs.kind == "arrays"
    np.testing.assert_allclose(from_files, plain.predict_proba(content["X"]), atol=1e-4)
    adapted, expected = model.adapted("t3a"), plain.adapted("t3a").predict_proba(content["X"])
    np.testing.assert_allclose(adapted.predict_proba(files), expected, atol=1e-3)
    # Every prediction starts afresh.
    np.testing.assert_allclose(adapted.predict_proba(files), expected, atol=1e-3)
    assert not np.allclose(expected, from_files, atol=1e-2)
    distances = [each.distance for each in model.predictions(files)]
    expected = [each.distance for each in plain.predictions(content["X"])]
    np.testing.assert_allclose(distances, expected, rtol=1e-2)
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(files), from_files)


def test_missing_weights_are_logged_and_the_model_takes_features(features, tmp_path, caplog):
    (tmp_path / "net.safetensors").unlink()
    with caplog.at_level(logging.WARNING):
        model = fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=QUICK,
                    estimate=False)  # fmt: skip
    assert "the model will take features, not images" in caplog.text
    assert model.about.architecture.encoder is None


@pytest.mark.slow
def test_one_exported_program_goes_from_images_to_probabilities(features, two_colours, tmp_path):
    model = fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=QUICK,
                estimate=False)  # fmt: skip
    path = export(model, "torch", tmp_path / "model.pt2")
    program = torch.export.load(path).module()
    x = torch.randint(0, 256, (3, *model.about.inputs.shape)).float()
    prepared = (x - model.about.inputs.per_channel(model.about.inputs.mean)) / (
        model.about.inputs.per_channel(model.about.inputs.std)
    )
    with torch.no_grad():
        torch.testing.assert_close(program(x)[0], model.module(prepared), atol=1e-3, rtol=1e-3)


def test_the_description_names_the_frozen_network(features, tmp_path):
    fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=QUICK,
        estimate=False)  # fmt: skip
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    encoder = content["architecture"]["encoder"]
    provenance = json.loads(str(np.load(features)["provenance"]))
    assert encoder["backbone"] == f"timm:{NET}"
    assert encoder["weights"] == provenance["digest"]
    assert encoder["features"] == np.load(features)["X"].shape[1]
