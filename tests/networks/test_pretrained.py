"""Which network is at hand: levels, fallbacks, a local hub, and no network at all."""

import shutil

import huggingface_hub
import pytest
import timm
from huggingface_hub import constants
from safetensors.torch import save_file

from afield.errors import DataError, SpecError
from afield.networks import pretrained
from afield.networks.facts import networks_of_level
from afield.networks.pretrained import (
    Pretrained,
    find_pretrained,
    one_network,
    separate_networks,
    weights_in_folder,
)
from tests.networks.register import register_only

(FAST,) = networks_of_level("fast")
LITE2, LITE1, LITE0, MOBILENET = (facts.name for facts in networks_of_level("at hand"))


@pytest.fixture(autouse=True)
def forgotten_hub():
    """Whether the hub answers is asked once in a process."""
    pretrained._answers.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of weights, and no hub."""
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "weights"


def put(folder, name):
    path = folder / f"{name.partition(':')[2].replace('/', '-')}.safetensors"
    path.write_bytes(b"")
    return str(path)


def put_in_cache(root, repository):
    """A fake local hub: a repository in the cache, as a download leaves it."""
    place = root / f"models--{repository.replace('/', '--')}"
    for name, text in (("refs/main", "abc"), ("snapshots/abc/model.safetensors", "")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return str(place / "snapshots" / "abc" / "model.safetensors")


def test_without_the_default_the_best_network_at_hand_is_taken(folder):
    assert find_pretrained() is None
    for name in (MOBILENET, LITE0, LITE1, LITE2, FAST.name):
        path = put(folder, name)
        assert find_pretrained() == Pretrained(name, path)


def test_the_default_in_the_cache_of_the_hub_comes_before_other_files(folder, tmp_path):
    put(folder, LITE2)
    cached = put_in_cache(tmp_path / "hub", FAST.repository)
    assert find_pretrained() == Pretrained(FAST.name, cached)


def test_the_default_is_downloaded_if_the_hub_answers(folder, monkeypatch):
    put(folder, LITE2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(pretrained, "_answers", lambda address: True)
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *names: asked.append(names) or "downloaded"
    )
    assert find_pretrained() == Pretrained(FAST.name, "downloaded")
    assert asked == [(FAST.repository, "model.safetensors")]


def test_a_download_that_fails_leaves_the_network_at_hand(folder, monkeypatch):
    path = put(folder, LITE0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(pretrained, "_answers", lambda address: True)

    def fail(*names):
        raise OSError("connection reset")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    assert find_pretrained() == Pretrained(LITE0, path)


def test_offline_the_hub_is_not_asked(folder, monkeypatch):
    monkeypatch.setattr(pretrained, "_answers", lambda address: pytest.fail("asked the hub"))
    assert find_pretrained() is None
    with pytest.raises(DataError, match=r"fast: timm:hgnetv2.* HF_HUB_OFFLINE is set; get it with"):
        one_network({"backbone": "fast"})


def test_the_search_can_be_turned_off(folder, monkeypatch):
    put(folder, LITE0)
    monkeypatch.setenv("AFIELD_WEIGHTS", "none")
    assert find_pretrained() is None


def test_a_hub_that_does_not_answer_costs_little_time():
    assert not pretrained._answers("http://127.0.0.1:9")


def test_a_level_that_cannot_be_had_is_refused_with_what_is_at_hand(folder):
    put(folder, LITE1)
    for level in ("fast", "strong", "large"):
        with pytest.raises(DataError, match=f"--backbone {level}: .*; at hand: {LITE1}") as refused:
            separate_networks({"backbone": level})
        assert "\n" not in str(refused.value)


def test_a_level_stands_for_its_networks_and_the_files_at_hand(folder):
    path = put(folder, FAST.name)
    assert one_network({"backbone": "fast", "lr": 1}) == {
        "backbone": FAST.name,
        "weights": path,
        "lr": 1,
    }
    large = [facts.name for facts in networks_of_level("large")]
    both = separate_networks({"backbone": "large", "weights": "none"})
    assert [each["backbone"] for each in both] == large
    with pytest.raises(SpecError, match=f"stands for {large[0]} and {large[1]}; give one"):
        one_network({"backbone": "large", "weights": "none"})


def test_several_networks_are_separated_once_each():
    names = [each["backbone"] for each in separate_networks({"backbone": "linear,bag:, linear"})]
    assert names == ["linear", "bag:"]
    assert len(separate_networks({"backbone": ["timm:resnet50", "small:cnn"]})) == 2
    with pytest.raises(SpecError, match="one file for 2 networks"):
        separate_networks({"backbone": "timm:resnet50,timm:resnet18", "weights": "a.safetensors"})


def test_files_of_other_networks_are_refused_by_their_names(folder):
    assert find_pretrained(f"elsewhere/{LITE0.partition(':')[2]}.pth").backbone == LITE0
    with pytest.raises(SpecError, match=r"give one of tf_efficientnet_lite2\.safetensors, "):
        find_pretrained("mine.safetensors")


def test_a_network_of_the_register_uses_its_file_in_the_folder(tmp_path, monkeypatch, two_colours):
    from afield.studies.planning import plan_run

    register_only(monkeypatch, "timm:test_resnet")
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path))
    file = tmp_path / "test_resnet.safetensors"
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), file)
    run = plan_run(two_colours, "erm", settings={"backbone": "timm:test_resnet", "steps": 2})
    assert (run.weights, run.given) == (str(file), {"backbone": "timm:test_resnet", "steps": 2})
    shutil.move(file, tmp_path / "other.safetensors")
    moved = {"backbone": "timm:test_resnet", "steps": 2, "weights": tmp_path / "other.safetensors"}
    again = plan_run(two_colours, "erm", settings={**moved, "weights": str(moved["weights"])})
    assert again.key == run.key


def test_files_may_have_the_suffixes_of_torch(folder):
    (folder / "mobilenet_v2.pth").write_bytes(b"")
    (facts,) = (each for each in networks_of_level("at hand") if each.name == MOBILENET)
    assert weights_in_folder(facts) == str(folder / "mobilenet_v2.pth")
