"""Merged models in the folder of a model: used as any other, and claiming nothing."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from afield.deployment.fitting import fit
from afield.deployment.merged_model import merge_model
from afield.deployment.model import load
from afield.errors import DataError, MergeError, SpecError
from afield.merging.job import merge
from afield.reporting.benchmarking import bench
from afield.runs.run_files import read_run_weights
from afield.runs.store import Store

QUICK = {"steps": 5, "every": 5}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A benchmark of merges: a base and experts that start from it."""
    root = tmp_path_factory.mktemp("merges")
    bench("spirals", merges=["average"], trials=1, store=root, settings=QUICK)
    return Store(root)


@pytest.fixture(scope="module")
def folders(store):
    """The folders of a base and of its experts."""
    merged = next(each.run for each in store if each.run.method == "average")
    return store.root / merged.base, [store.root / key for key in merged.experts]


@pytest.mark.slow
def test_runs_of_a_store_become_a_model_that_can_be_used(folders, tmp_path):
    base, experts = folders
    model = merge_model("average", base, experts, tmp_path / "merged")
    states = [read_run_weights(folder) for folder in experts]
    expected = merge("average", read_run_weights(base), states)
    result = model.module.state_dict()
    assert all(torch.allclose(result[name], value) for name, value in expected.items())
    assert model.predict(np.zeros((3, 2))).shape == (3,)


@pytest.mark.slow
def test_it_claims_nothing_and_says_how_it_was_made(folders, tmp_path):
    base, experts = folders
    model = merge_model("ties", base, experts, tmp_path / "merged", density=0.5)
    assert model.about.estimate is None
    assert model.about.calibration is None
    assert model.about.merged["merge"] == "ties"
    assert len(model.about.sources) == len(experts) == 3
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "**Unseen domains: not estimated.**" in card
    assert "merged: `ties` (density=0.5" in card
    assert "of 3 models" in card
    assert "--set density=0.5" in model.about.command


def test_folders_of_models_and_plain_files_can_be_mixed(spiral_model, tmp_path):
    model = load(spiral_model)
    generator = torch.Generator().manual_seed(0)
    state = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator)
        for name, value in model.module.state_dict().items()
    }
    save_file(state, tmp_path / "b.safetensors")
    experts = [spiral_model, tmp_path / "b.safetensors"]
    merged = merge_model("average", spiral_model, experts, tmp_path / "m")
    for name, value in merged.module.state_dict().items():
        expected = (model.module.state_dict()[name] + state[name]) / 2
        torch.testing.assert_close(value, expected)


def test_statistics_weigh_the_experts(spiral_model, tmp_path):
    """Fisher information of 3 and 1 for all weights is a mean of three parts to one."""
    weights = load(spiral_model).module.state_dict()
    shifted = {name: value + 4 for name, value in weights.items()}
    files = {"b": shifted}
    files |= {
        n: {k: torch.full_like(v, m) for k, v in weights.items()}
        for n, m in (("f", 3.0), ("g", 1.0))
    }
    for name, tensors in files.items():
        save_file(tensors, tmp_path / f"{name}.safetensors")
    expert, *statistics = (tmp_path / f"{name}.safetensors" for name in files)
    merged = merge_model(
        "fisher", spiral_model, [spiral_model, expert], tmp_path / "m", statistics=statistics
    )
    for name, value in merged.module.state_dict().items():
        torch.testing.assert_close(value, weights[name] + 1)


def test_without_a_model_like_it_nothing_is_known(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "a.safetensors")
    file = tmp_path / "a.safetensors"
    with pytest.raises(MergeError, match="give --like"):
        merge_model("average", file, [file, file], tmp_path / "m")


def test_other_classes_and_other_scaling_are_refused(spiral_model, model_folder, tmp_path):
    path = model_folder / "model.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "classes": ["second", "first"]}))
    with pytest.raises(MergeError, match="has other classes than"):
        merge_model("average", spiral_model, [spiral_model, model_folder], tmp_path / "m")
    scaled = {**content["inputs"], "mean": [0.5, 0.5]}
    path.write_text(json.dumps({**content, "inputs": scaled}))
    with pytest.raises(MergeError, match="scales its inputs differently"):
        merge_model("average", spiral_model, [spiral_model, model_folder], tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_another_network_than_that_of_the_model_like_it_is_refused(spiral_model, tmp_path):
    file = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(2)}, file)
    with pytest.raises(DataError, match="not the weights of the network"):
        merge_model("average", file, [file, file], tmp_path / "m", like=spiral_model)
    assert not (tmp_path / "m").exists()


def test_inputs_are_never_overwritten(model_folder):
    with pytest.raises(SpecError, match="--force"):
        merge_model("average", model_folder, [model_folder, model_folder], model_folder)


def test_masks_of_a_wrapper_keep_their_domains(tmp_path):
    options = {"store": tmp_path / "r", "settings": QUICK, "estimate": False}
    fit("spirals", "dmg", tmp_path / "a", **options)
    merged = merge_model("average", tmp_path / "a", [tmp_path / "a", tmp_path / "a"],
                         tmp_path / "m")  # fmt: skip
    x = np.random.default_rng(0).normal(size=(4, 2))
    expected = load(tmp_path / "a").predict_proba(x, domain="turn10")
    np.testing.assert_allclose(merged.predict_proba(x, domain="turn10"), expected, atol=1e-5)
