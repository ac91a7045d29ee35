"""Tensors in files: read where they lie, refused where they need code, written as a stream."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from afield.errors import AfieldError, DataError
from afield.merging import files as tensor_files
from afield.merging.files import TensorFiles, write_header
from afield.merging.scopes import TensorSpec
from tests.files import Trap
from tests.merging.families import TENSORS, plain, sharded


def assert_same(path, tensors=TENSORS):
    found = TensorFiles(path)
    assert set(found.specs) == set(tensors)
    for name, tensor in tensors.items():
        assert found.specs[name] == TensorSpec(tensor.dtype, tuple(tensor.shape))
        assert torch.equal(found.read(name), tensor.reshape(-1))
        assert torch.equal(found.read(name, 1, 3), tensor.reshape(-1)[1:3])


def test_all_forms_give_the_tensors_whole_and_in_pieces(tmp_path):
    save_file(plain(TENSORS), tmp_path / "w.safetensors")
    torch.save(TENSORS, tmp_path / "w.pt")
    torch.save({"state_dict": TENSORS, "epoch": 3}, tmp_path / "w.ckpt")
    torch.save({"model": TENSORS, "optimizer": {"lr": 0.1}}, tmp_path / "w.pth")
    torch.save(TENSORS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "one").mkdir()
    save_file(plain(TENSORS), tmp_path / "one" / "model.safetensors")
    sharded(tmp_path / "many")
    for name in ("w.safetensors", "w.pt", "w.ckpt", "w.pth", "old.pt", "one", "many"):
        assert_same(tmp_path / name)


def test_parameters_of_a_module_are_read(tmp_path):
    module = torch.nn.Linear(2, 3)
    torch.save(dict(module.named_parameters()), tmp_path / "w.pt")
    assert not TensorFiles(tmp_path / "w.pt").read("weight").requires_grad


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_mapping_made_anew_gives_the_same(tmp_path, name, monkeypatch):
    monkeypatch.setattr(tensor_files, "REMAP_BYTES", 8)
    save_file(plain(TENSORS), tmp_path / "w.safetensors")
    torch.save(TENSORS, tmp_path / "w.pt")
    assert_same(tmp_path / name)


def test_a_file_that_cannot_be_mapped_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "REMAP_BYTES", 8)
    torch.save(TENSORS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    found = TensorFiles(tmp_path / "old.pt")
    (tmp_path / "old.pt").unlink()
    for _ in range(3):
        assert torch.equal(found.read("a.weight"), TENSORS["a.weight"].flatten())


def test_a_tensor_whose_entries_lie_in_another_order_is_copied_once_for_all_its_pieces(tmp_path):
    torch.save(TENSORS, tmp_path / "w.pt")
    found = TensorFiles(tmp_path / "w.pt")
    pieces = [found.read("conv", i, i + 32) for i in range(0, 96, 32)]
    assert torch.equal(torch.cat(pieces), TENSORS["conv"].flatten())
    assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1


def test_safetensors_without_a_suffix_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "REMAP_BYTES", 8)
    save_file(plain(TENSORS), tmp_path / "0a1b", metadata={"format": "pt"})
    assert_same(tmp_path / "0a1b")
    assert TensorFiles(tmp_path / "0a1b").metadata == {"format": "pt"}


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_what_has_been_read_does_not_stay_in_memory(tmp_path, name):
    tensors = {f"w{i}": torch.ones(1 << 20) for i in range(60)}
    save = torch.save if name == "w.pt" else save_file
    save(tensors, tmp_path / name)
    del tensors
    found, before, most = TensorFiles(tmp_path / name), resident(), 0
    for key in found.specs:
        for start in range(0, 1 << 20, 1 << 18):
            assert found.read(key, start, start + (1 << 18)).sum() == 1 << 18
        most = max(most, resident() - before)
    # 240 MB were read.
    assert most < 80 << 20


def test_a_pickle_that_needs_code_is_refused_and_does_not_run(tmp_path):
    victim = tmp_path / "trapped"
    for name, state in (("a", {**TENSORS, "t": Trap(victim)}), ("b", torch.nn.Linear(2, 2))):
        torch.save(state, tmp_path / f"{name}.pt")
        with pytest.raises(DataError, match=r"\.pt: not read, .* needs code to be run"):
            TensorFiles(tmp_path / f"{name}.pt")
        torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
        with pytest.raises(DataError, match="no readable weights"):
            TensorFiles(tmp_path / "old.pt")
    assert not victim.exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({0: torch.ones(2)}, AfieldError, r"w.pt: the name 0 is not a string"),
        ({"__metadata__": torch.ones(2)}, DataError, r"w.pt: a tensor is called __metadata__"),
        ({"a": TENSORS, "b": 3}, DataError, "not a dict of tensors"),
    ],
)
def test_what_is_no_dict_of_tensors_with_names_is_refused(
    tmp_path, zipped, content, error, message
):
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(error, match=message):
        TensorFiles(tmp_path / "w.pt")


def test_missing_broken_and_cut_files_are_named(tmp_path):
    for name in ("no.safetensors", "no.pt"):
        with pytest.raises(DataError, match=name):
            TensorFiles(tmp_path / name)
    (tmp_path / "text.safetensors").write_text("hello, this is not it")
    save_file(plain(TENSORS), tmp_path / "cut.safetensors")
    whole = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-10])
    for name in ("text", "cut"):
        with pytest.raises(DataError, match=f"{name}.safetensors: not readable safetensors"):
            TensorFiles(tmp_path / f"{name}.safetensors")


def test_folders_without_or_with_too_many_weights_are_named(tmp_path):
    with pytest.raises(DataError, match="0 safetensors files"):
        TensorFiles(tmp_path)
    for name in "ab":
        save_file({"w": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(DataError, match="2 safetensors files"):
        TensorFiles(tmp_path)


def test_an_index_that_leads_elsewhere_or_nowhere_is_refused(tmp_path):
    folder = sharded(tmp_path / "m")
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    torch.save(TENSORS, folder / "w.bin")
    (folder / "config.json").write_text("{}")
    elsewhere = ("../w.safetensors", "/etc/passwd", "sub/w.safetensors", "..", 3)
    for file in (*elsewhere, "config.json", "w.bin", ".safetensors"):
        index.write_text(json.dumps({"weight_map": good["weight_map"] | {"one": file}}))
        with pytest.raises(DataError, match="not an index"):
            TensorFiles(folder)
    for text in ("{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(DataError, match="not an index"):
            TensorFiles(folder)
    lost = good["weight_map"] | {"lost": good["weight_map"]["one"]}
    index.write_text(json.dumps({"weight_map": lost}))
    with pytest.raises(DataError, match="lost is in the index, but not in its file"):
        TensorFiles(folder)


def test_what_is_written_is_what_the_library_reads(tmp_path):
    specs = {
        name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS.items()
    }
    places = write_header(tmp_path / "w.safetensors", specs, {"format": "pt", "x": "ü"})
    with (tmp_path / "w.safetensors").open("rb+") as file:
        for name, tensor in reversed(TENSORS.items()):
            file.seek(places[name])
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    found = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert TensorFiles(tmp_path / "w.safetensors").metadata == {"format": "pt", "x": "ü"}
    assert all(place % TENSORS[name].element_size() == 0 for name, place in places.items())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_whole_numbers_without_a_sign_are_written(tmp_path, dtype):
    write_header(tmp_path / "w.safetensors", {"w": TensorSpec(dtype, (2,))}, {})
    assert load_file(tmp_path / "w.safetensors")["w"].dtype == dtype


def test_a_type_that_safetensors_do_not_have_is_named(tmp_path):
    with pytest.raises(DataError, match=r"w: safetensors has no type for torch.complex128"):
        write_header(tmp_path / "w.safetensors", {"w": TensorSpec(torch.complex128, (2,))}, {})


def test_bytes_are_those_of_the_library_itself(tmp_path):
    tensors = {"b": torch.ones(3).half(), "a": torch.ones(2), "c": torch.ones(3).half()}
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    specs = {
        name: TensorSpec(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    places = write_header(tmp_path / "ours.safetensors", specs, {"format": "pt"})
    theirs = (tmp_path / "theirs.safetensors").read_bytes()
    ours = bytearray((tmp_path / "ours.safetensors").read_bytes())
    for name, place in places.items():
        content = np.ascontiguousarray(tensors[name].numpy()).tobytes()
        ours[place : place + len(content)] = content
    assert bytes(ours) == theirs


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(plain(TENSORS), tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors: a link that leads out"):
        TensorFiles(folder)
    (folder / "model.safetensors").unlink()
    save_file(plain(TENSORS), folder / "model.safetensors")
    (folder / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match=r"config\.json: a link that leads out"):
        TensorFiles(folder)


def test_links_of_the_hub_cache_to_its_own_blobs_are_followed(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file(plain(TENSORS), blobs / "4567")
    (snapshot / "model.safetensors").symlink_to("../../blobs/4567")
    assert_same(snapshot)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="not a regular file"):
        TensorFiles(tmp_path / "a.safetensors")
