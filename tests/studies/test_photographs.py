"""Folders of images: which pretrained network is used, and what its features are known by."""

import logging

import huggingface_hub
import numpy as np
import pytest
import timm
from huggingface_hub import constants
from safetensors.torch import save_file

from afield.data.cache import cache_root
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError
from afield.networks import pretrained
from afield.networks.pretrained import Pretrained, find_pretrained
from afield.studies.benchmark import make_benchmark
from afield.studies.features import use_features
from afield.studies.planning import plan_run

NET = "test_resnet"


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A tiny network of a known name in the folder of weights."""
    monkeypatch.setattr(pretrained, "KNOWN_NETWORKS", (f"timm:{NET}",))
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / f"{NET}.safetensors"
    save_file(timm.create_model(NET, num_classes=0).state_dict(), file)
    return file


def test_photographs_become_features_of_the_network_at_hand_once(weights, two_colours, caplog):
    first = plan_run(two_colours, "erm", target="west")
    assert f"timm:{NET}, weights {weights.name}" in caplog.text
    features = find_dataset(first.dataset)
    assert (first.backbone, features.name) == ("small:mlp", "colours")
    assert features.domains == find_dataset(two_colours).domains
    assert first.data == features.fingerprint
    assert len(first.data) == 16
    path = cache_root() / "features" / first.data / "colours.npz"
    before = path.stat().st_mtime_ns
    assert plan_run(two_colours, "erm", target="west").key == first.key
    assert path.stat().st_mtime_ns == before


def test_the_key_does_not_depend_on_the_cache_or_the_place_of_the_weights(
    weights, two_colours, tmp_path, monkeypatch
):
    first = plan_run(two_colours, "erm")
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other"))
    moved = tmp_path / f"{NET}.safetensors"
    weights.rename(moved)
    again = plan_run(two_colours, "erm", settings={"weights": str(moved)})
    assert (again.key, again.given) == (first.key, {})
    assert again.dataset != first.dataset
    with pytest.raises(DataError, match="the cache was deleted"):
        find_dataset(tmp_path / "other" / "features" / "none" / "colours")


def test_other_weights_and_another_size_are_other_features(weights, two_colours):
    plain = plan_run(two_colours, "erm").data
    assert plan_run(two_colours, "erm", settings={"size": 64}).data != plain
    save_file(timm.create_model(NET, num_classes=0).state_dict(), weights)
    assert plan_run(two_colours, "erm").data != plain


def test_a_network_that_is_given_is_trained_as_before(weights, two_colours):
    raw = find_dataset(two_colours)
    for settings in ({"backbone": "small:cnn"}, {"weights": "none"}):
        assert use_features(raw, settings) == (raw, settings)
    tuned = plan_run(two_colours, "erm", finetune=True)
    assert (tuned.dataset, tuned.backbone) == (raw.spec, f"timm:{NET}")
    assert tuned.weights == str(weights)
    frozen = {"backbone": f"timm:{NET}", "weights": str(weights)}
    assert plan_run(two_colours, "erm", settings=frozen, finetune=False).backbone == "small:mlp"


def test_python_toml_and_the_command_line_have_the_same_word(weights, two_colours):
    runs = make_benchmark(two_colours, "erm", trials=1, finetune=True).runs()
    assert {run.backbone for run in runs} == {f"timm:{NET}"}


def test_what_features_cannot_do_is_refused(weights, two_colours):
    with pytest.raises(SpecError, match="add --finetune"):
        plan_run(two_colours, "erm", settings={"augment": "light"})
    with pytest.raises(SpecError, match="--no-finetune needs images"):
        plan_run("spirals", "erm", finetune=False)
    with pytest.raises(SpecError, match="small:cnn: features are computed from images"):
        plan_run(two_colours, "erm", settings={"backbone": "small:cnn"}, finetune=False)
    with pytest.raises(SpecError, match="does not say which network it is for; add --backbone"):
        plan_run(two_colours, "erm", settings={"weights": "own.safetensors"})


def test_without_weights_one_line_says_how_to_get_them(two_colours, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(pretrained, "_in_hub", lambda: None)
    with caplog.at_level(logging.WARNING):
        assert plan_run(two_colours, "erm").backbone == "small:cnn"
    (line,) = caplog.messages
    assert "no pretrained weights at hand" in line
    assert "timm.create_model('tf_efficientnet_lite0', pretrained=True)" in line


def test_the_search_goes_from_files_to_the_hub(weights, monkeypatch):
    monkeypatch.setattr(pretrained, "_in_hub", lambda: "from the hub")
    assert find_pretrained().weights == str(weights)
    weights.unlink()
    assert find_pretrained() == "from the hub"
    monkeypatch.setenv("AFIELD_WEIGHTS", "none")
    assert find_pretrained() is None


def test_the_hub_is_asked_only_for_weights_that_are_not_in_its_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, file: "downloaded")
    result = []
    for answers in (True, False):
        monkeypatch.setattr(pretrained, "_answers", lambda address, answers=answers: answers)
        result.append(find_pretrained())
    assert result == [Pretrained("timm:tf_efficientnet_lite0", "downloaded"), None]
    folder = tmp_path / "models--timm--tf_efficientnet_lite0.in1k"
    for name, text in (("refs/main", "abc"), ("snapshots/abc/model.safetensors", "")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    cached = str(folder / "snapshots" / "abc" / "model.safetensors")
    assert find_pretrained() == Pretrained("timm:tf_efficientnet_lite0", cached)


def test_a_hub_that_does_not_answer_costs_little_time():
    assert not pretrained._answers("http://127.0.0.1:9")


def test_official_lists_survive(weights, two_colours, tmp_path):
    root = tmp_path / "listed"
    root.mkdir()
    for domain in ("east", "west"):
        (root / domain).symlink_to(two_colours / domain)
        files = sorted((two_colours / domain).glob("*/*.png"))
        for part, chosen in (("train", files[::3]), ("val", files[1::3]), ("test", files[2::3])):
            lines = [f"{file.relative_to(two_colours)} 0\n" for file in chosen]
            (root / f"{domain}_{part}.txt").write_text("".join(lines))
    raw, (features, _) = find_dataset(root), use_features(find_dataset(root), {})
    for name, domain in raw.load().items():
        loaded = features.load()[name]
        assert np.array_equal(loaded.test, domain.test)
        assert np.array_equal(loaded.validation, domain.validation)
        assert list(loaded.names) == list(domain.names)
