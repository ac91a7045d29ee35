"""The folder of a model: whole, its own, and refused in one line where it is not what it says."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from afield.deployment.model import load
from afield.deployment.model_files import is_model_folder
from afield.deployment.model_folder import (
    Calibration,
    _to_strangeness,
    check_output_folder,
    read_description,
    read_held_out,
    read_model,
    write_model,
)
from afield.errors import DataError, SpecError


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def refusal(folder) -> str:
    with pytest.raises(DataError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def changed(folder, **fields) -> None:
    """The description with some of its fields changed; nested ones as ``inputs__size``."""
    path = folder / "model.json"
    content = json.loads(path.read_text())
    for name, value in fields.items():
        *outer, last = name.split("__")
        place = content
        for key in outer:
            place = place[key]
        place[last] = value
    path.write_text(json.dumps(content))


def with_own_hash(folder, name="model.safetensors") -> None:
    """As somebody would who changes a file and its hash."""
    import hashlib

    content = json.loads((folder / "model.json").read_text())
    content["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(content))


def test_it_has_five_files_that_all_may_read(spiral_model):
    names = {file.name for file in spiral_model.iterdir()}
    tensors = {"model.safetensors", "distance.safetensors", "held_out.safetensors"}
    assert names == {"model.json", "README.md", *tensors}
    assert len({file.stat().st_mode & 0o777 for file in spiral_model.iterdir()}) == 1


def test_a_file_that_is_cut_short_is_refused(model_folder):
    file = model_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert "changed or cut short" in refusal(model_folder)


@pytest.mark.parametrize("name", ["model.safetensors", "distance.safetensors"])
def test_a_file_with_one_other_bit_is_refused(model_folder, name):
    file = model_folder / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    assert "its SHA-256 is not the one in model.json" in refusal(model_folder)


def test_a_pickle_in_the_place_of_safetensors_is_refused_and_not_run(model_folder, tmp_path):
    trap = tmp_path / "trapped"
    (model_folder / "model.safetensors").write_bytes(pickle.dumps(Trap(str(trap))))
    with_own_hash(model_folder)
    assert "not readable safetensors" in refusal(model_folder)
    assert not trap.exists()


def test_a_pickle_beside_no_safetensors_is_refused_and_not_run(model_folder, tmp_path):
    trap = tmp_path / "trapped"
    (model_folder / "model.safetensors").unlink()
    torch.save({"a": Trap(str(trap))}, model_folder / "pytorch_model.bin")
    message = refusal(model_folder)
    assert (
        "no model.safetensors in it (pytorch_model.bin is not read: it could run code)" in message
    )
    assert not trap.exists()


def test_a_tensor_more_is_refused(model_folder):
    file = model_folder / "model.safetensors"
    save_file({**load_file(file), "extra": torch.zeros(1)}, file)
    with_own_hash(model_folder)
    assert "it has in addition extra" in refusal(model_folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.safetensors", "distance.safetensors"])
def test_a_weight_that_is_no_number_is_refused(model_folder, name, value):
    file = model_folder / name
    tensors = load_file(file)
    first = sorted(tensors)[0]
    tensors[first].view(-1)[0] = value
    save_file(tensors, file)
    with_own_hash(model_folder, name)
    assert f"NaN or infinity in {first}" in refusal(model_folder)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "distance.safetensors"])
def test_a_link_that_leads_out_is_refused(model_folder, tmp_path, name):
    (model_folder / name).rename(tmp_path / name)
    (model_folder / name).symlink_to(tmp_path / name)
    assert "a link that leads out of the folder" in refusal(model_folder)


def test_a_link_within_the_folder_and_one_to_it_are_fine(model_folder, tmp_path):
    (model_folder / "model.safetensors").rename(model_folder / "weights")
    (model_folder / "model.safetensors").symlink_to("weights")
    (tmp_path / "link").symlink_to(model_folder)
    assert load(tmp_path / "link").classes == ("first", "second")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": 2}, "has format 2, from a later afield"),
        ({"format": "x"}, "not from afield"),
        ({"classes": ["a"]}, "(classes must be at least two different names)"),
        ({"classes": 3}, "classes"),
        ({"inputs__stored": [2**40]}, "not the shape of a sample"),
        ({"inputs__std": [0.0, 1.0]}, "std above 0"),
        ({"inputs__kind": "files"}, "inputs: no kind of samples 'files'; known: arrays"),
        ({"calibration__temperature": 0.0}, "temperature"),
        ({"calibration__temperature": float("nan")}, "temperature"),
        ({"calibration__distances": [2, 1]}, "in rising order"),
        ({"files": {}}, "no hash of model.safetensors"),
        ({"architecture": None}, "architecture"),
        ({"architecture__backbone": "timm:resnet18"}, "takes images"),
        ({"architecture__backbone": "small:cnn"}, "takes images"),
        ({"architecture__backbone": "evil:net"}, "no backbone 'evil:net'"),
        ({"architecture__backbone": "timm:hf-hub:evil/net"}, "no backbone"),
        ({"architecture__backbone": "timm:local-dir:/tmp"}, "no backbone"),
        ({"architecture__backbone": "small:mlp2"}, "did you mean 'small:mlp'?"),
        # Other tensors, no method, and more classes than the weights have.
        ({"architecture__wrapper": "dmg"}, "it lacks"),
        ({"architecture__wrapper": "os.system"}, "no method 'os.system'"),
        ({"classes": ["a", "b", "c"]}, "it has in another shape head.weight"),
    ],
)
def test_a_description_that_cannot_be_is_refused(model_folder, fields, message):
    changed(model_folder, **fields)
    assert message in refusal(model_folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 1}', "[" * 100_000])
def test_what_is_no_description_is_refused(model_folder, text):
    (model_folder / "model.json").write_text(text)
    refusal(model_folder)


def test_names_of_files_in_the_description_lead_nowhere(model_folder, tmp_path):
    (tmp_path / "elsewhere").write_text("")
    message = json.loads((model_folder / "model.json").read_text())
    changed(model_folder, files={**message["files"], "../elsewhere": "0" * 64})
    assert load(model_folder)


def test_a_place_that_is_no_folder_is_reported(tmp_path):
    assert "no such model folder" in refusal(tmp_path / "nowhere")
    assert "no model.json in it" in refusal(tmp_path)


def test_what_is_written_comes_back(spiral_model, tmp_path):
    about, weights, distances = read_model(spiral_model)
    held_out = read_held_out(spiral_model, about)
    message = write_model(tmp_path / "new", about, weights, distances, "card", held_out=held_out)
    again, same, _ = read_model(tmp_path / "new")
    assert again == message == about
    assert all(torch.equal(same[name], value) for name, value in weights.items())


def test_a_folder_of_something_else_is_never_overwritten(spiral_model, tmp_path):
    about, weights, _ = read_model(spiral_model)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    for force in (False, True):
        with pytest.raises(SpecError, match="is not a model folder"):
            write_model(tmp_path / "photos", about, weights, None, "", overwrite=force)
    assert [each.name for each in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_model_is_replaced_only_on_request(model_folder):
    about, weights, _ = read_model(model_folder)
    renamed = replace(about, name="other")
    with pytest.raises(SpecError, match="--force"):
        write_model(model_folder, renamed, weights, None, "")
    assert read_description(model_folder).name == about.name
    write_model(model_folder, renamed, weights, None, "", overwrite=True)
    assert read_description(model_folder).name == "other"
    assert not (model_folder / "distance.safetensors").exists()


def test_an_empty_folder_and_a_new_one_can_be_written_to_but_no_file(tmp_path):
    (tmp_path / "empty").mkdir()
    check_output_folder(tmp_path / "empty")
    check_output_folder(tmp_path / "new" / "deep")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="is a file or a link"):
        check_output_folder(tmp_path / "file")


@pytest.mark.parametrize("name", [".", "..", "/", "deep/.."])
def test_a_place_without_a_name_is_refused_before_any_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="not the name of a folder"):
        check_output_folder(Path(name))


def test_other_peoples_json_is_not_taken_for_a_model(tmp_path):
    assert not is_model_folder(tmp_path)
    for text in ('{"name": "mine"}', "[" * 100_000):
        (tmp_path / "model.json").write_text(text)
        assert not is_model_folder(tmp_path)


def test_a_pipe_in_the_place_of_the_description_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "model.json")
    assert not is_model_folder(tmp_path)
    with pytest.raises(DataError, match=r"model\.json"):
        load(tmp_path)


def test_quantiles_must_be_in_order():
    with pytest.raises(SpecError, match="in rising order"):
        Calibration(1.0, (0.5, 0.1), (0.0, 1.0), 1, 0.0, 0.0)


def test_a_model_needs_nothing_but_its_folder(model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(model_folder)
    assert load(tmp_path / "elsewhere" / "copy").about.estimate is not None


@pytest.mark.parametrize(
    ("centers", "whitening"),
    [((3, 2), (2, 3)), ((3, 2), (3, 3)), ((0, 2), (2, 2)), ((3,), (3, 3)), ((3, 2, 1), (2, 2))],
)
def test_distances_of_impossible_shapes_are_refused(centers, whitening, tmp_path):
    tensors = {"centres": torch.ones(centers), "whitening": torch.ones(whitening)}
    with pytest.raises(DataError, match="not the distances of a model"):
        _to_strangeness(tmp_path, tensors, "mahalanobis")
    known = {"centres": torch.ones(3, 2), "whitening": torch.ones(2, 2)}
    assert _to_strangeness(tmp_path, known, "mahalanobis").classes.width == 2
    with_bank = known | {"neighbors": torch.ones(5, 2)}
    assert _to_strangeness(tmp_path, with_bank, "neighbors").bank is not None
    for tensors, kind in (
        (known, "neighbors"),
        (known, "relative"),
        (known | {"x": torch.ones(1, 2)}, "gen"),
    ):
        with pytest.raises(DataError, match="not the distances of a model"):
            _to_strangeness(tmp_path, tensors, kind)
