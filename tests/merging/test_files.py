"""Merging from file to file: the same as in memory, whole or not at all, and what peers read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import afield
from afield import registry
from afield.errors import AfieldError, DataError, MergeError, SpecError
from afield.files import _machine, _namespace
from afield.merging import files, tensor_files
from afield.merging import files as workers
from afield.merging.job import merge
from afield.merging.scopes import TensorSpec
from afield.merging.tensor_files import TensorFiles, write_header
from tests.files import Trap
from tests.merging.families import TENSORS, count_for, plain, sharded, statistics_for, written

merge_files = afield.merge_files


@pytest.fixture
def models(tmp_path):
    """A base, its experts and their files."""
    return written(tmp_path)


@pytest.fixture
def base(models):
    return models[0]


@pytest.fixture
def experts(models):
    return models[1]


@pytest.fixture
def paths(models):
    return models[2]


def account(path):
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["afield"])


def equal(result, expected):
    return set(result) == set(expected) and all(
        torch.equal(result[k], expected[k]) for k in expected
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in registry.names("merges") if name != "greedy_soup"),
        *((name, torch.bfloat16) for name in ("average", "ties", "score")),
    ],
)
def test_files_give_what_memory_gives_to_the_bit(tmp_path, name, dtype):
    base, experts, paths = written(tmp_path, count_for(name), dtype=dtype)
    made, files = (
        statistics_for(name, [{k: v for k, v in e.items() if k != "ids"} for e in experts]),
        [],
    )
    for i, each in enumerate(made or ()):
        save_file({k: v.contiguous() for k, v in each.items()}, tmp_path / f"s{i}.safetensors")
        files.append(tmp_path / f"s{i}.safetensors")
    out = merge_files(name, paths[0], paths[1:], tmp_path / "out.safetensors", statistics=files)
    assert equal(load_file(out), merge(name, base, experts, statistics=made))


def test_every_form_of_input_gives_the_same(tmp_path, base, experts, paths):
    torch.save(base, tmp_path / "base.pt")
    torch.save({"state_dict": experts[0]}, tmp_path / "e0.ckpt")
    sharded(tmp_path / "e1", experts[1], shards=3)
    expected = load_file(merge_files("ties", paths[0], paths[1:], tmp_path / "out.safetensors"))
    others = [tmp_path / "e0.ckpt", tmp_path / "e1", paths[3]]
    out = merge_files("ties", tmp_path / "base.pt", others, tmp_path / "out2.safetensors")
    assert equal(load_file(out), expected)


def test_the_same_merge_gives_the_same_bytes_also_from_elsewhere(tmp_path):
    contents = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        _, _, paths = written(tmp_path / folder)
        out = merge_files("ties", paths[0], paths[1:], tmp_path / folder / "out.safetensors")
        contents.append(out.read_bytes())
    assert contents[0] == contents[1]


def test_the_metadata_tell_how_it_was_made(tmp_path, paths):
    out = tmp_path / "out.safetensors"
    merge_files("ties", paths[0], paths[1:], out, scale=0.5, density=0.3)
    metadata = account(out)
    assert (metadata["merge"], metadata["params"], metadata["scale"]) == (
        "ties",
        {"density": 0.3},
        0.5,
    )
    assert metadata["tensors"] == {"kept: not floating point": 1, "merged": 7}
    digests = subprocess.run(["sha256sum", *paths], capture_output=True, text=True, check=True)
    expected = [line.split()[0][:16] for line in digests.stdout.splitlines()]
    assert metadata["base"] == {"base.safetensors": expected[0]}
    assert metadata["experts"] == [{f"e{i}.safetensors": expected[1 + i]} for i in range(3)]
    with safe_open(out, "pt") as file:
        assert set(file.metadata()) == {"format", "afield"}


def test_settings_that_were_not_given_are_reported_too(tmp_path, paths):
    out = merge_files("dare", paths[0], paths[1:], tmp_path / "out.safetensors")
    assert account(out)["params"] == {"drop": 0.9, "seed": 0}


@pytest.mark.slow
def test_more_workers_give_the_same_bytes(tmp_path, paths):
    files = [
        merge_files("tsv", paths[0], paths[1:], tmp_path / f"{n}.safetensors", workers=n)
        for n in (1, 2)
    ]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_small_models_are_merged_in_one_process_and_large_ones_on_all_cores(monkeypatch, paths):
    job = files.FileMerge("tsv", paths[0], tuple(paths[1:])).open_job()
    assert workers.default_workers(job) == 1
    monkeypatch.setattr(workers, "MIN_ENTRIES_FOR_WORKERS", 0)
    monkeypatch.setattr(workers, "usable_cores", lambda: 3)
    assert workers.default_workers(job) == 3
    monkeypatch.setattr(workers, "usable_cores", lambda: 300)
    assert workers.default_workers(job) == len(job.base.specs)


def test_a_device_that_is_not_there_is_reported_before_anything_is_read(tmp_path, paths):
    with pytest.raises(SpecError, match=r"no device 'warp' .*; use cpu"):
        merge_files("ties", paths[0], paths[1:], tmp_path / "out.safetensors", device="warp")


@pytest.mark.slow
def test_workers_do_not_repeat_what_is_doubtful(tmp_path, capfd, caplog, experts, paths):
    save_file(experts[0] | {"extra": torch.ones(2)}, paths[1])
    merge_files("dare", paths[0], paths[1:], tmp_path / "out.safetensors", workers=2)
    assert [record.message.split(": ")[1] for record in caplog.records] == [
        f"extra not in {paths[0]}, so not in the result"
    ]
    assert "extra" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_error_in_a_worker_is_the_error(tmp_path, experts, paths):
    experts[1]["b.weight"][2, 3] = torch.nan
    save_file(experts[1], paths[2])
    with pytest.raises(MergeError, match=r"e1.safetensors: NaN in b.weight"):
        merge_files("dare", paths[0], paths[1:], tmp_path / "out.safetensors", workers=2)
    assert not list(tmp_path.glob("out*"))


def test_the_number_of_threads_is_put_back(tmp_path, paths):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        merge_files("average", paths[0], paths[1:], tmp_path / "out.safetensors")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_failure_leaves_nothing_behind(tmp_path, experts, paths):
    experts[2]["text_projection"][0, 0] = torch.inf
    save_file(experts[2], paths[3])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(MergeError, match=r"e2.safetensors: an infinite number in text_projection"):
        merge_files("ties", paths[0], paths[1:], tmp_path / "out.safetensors")
    assert sorted(tmp_path.iterdir()) == before
    folder = sharded(tmp_path / "base", load_file(paths[0]))
    with pytest.raises(MergeError, match="an infinite number"):
        merge_files("average", folder, paths[1:], tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == sorted([*before, folder])
    (tmp_path / "there").mkdir()
    for out in ("new/deep/out.safetensors", "there/deep/out.safetensors"):
        with pytest.raises(MergeError, match="an infinite number"):
            merge_files("average", paths[0], paths[1:], tmp_path / out)
    assert sorted(tmp_path.iterdir()) == sorted([*before, folder, tmp_path / "there"])
    assert not list((tmp_path / "there").iterdir())


def test_a_failure_leaves_what_was_there(tmp_path, experts, paths):
    experts[2]["a.bias"][0] = torch.nan
    save_file(experts[2], paths[3])
    (tmp_path / "out.safetensors").write_text("dear")
    with pytest.raises(MergeError, match=r"NaN in a.bias"):
        merge_files("ties", paths[0], paths[1:], tmp_path / "out.safetensors", overwrite=True)
    assert (tmp_path / "out.safetensors").read_text() == "dear"


def test_nothing_is_overwritten_unasked_and_no_input_ever(tmp_path):
    _, _, (base, *experts) = written(tmp_path)
    out = tmp_path / "out.safetensors"
    out.write_text("dear")
    with pytest.raises(SpecError, match=r"out.safetensors: exists already"):
        merge_files("average", base, experts, out)
    assert out.read_text() == "dear"
    merge_files("average", base, experts, out, overwrite=True)
    assert account(out)["merge"] == "average"
    (tmp_path / "link.safetensors").symlink_to(experts[1])
    for place in (base, experts[1], tmp_path / "link.safetensors", tmp_path / "." / base.name):
        with pytest.raises(MergeError, match="is one of the inputs"):
            merge_files("average", base, experts, place, overwrite=True)


def test_no_file_in_a_folder_of_an_input_is_overwritten(tmp_path, base, experts, paths):
    folder = sharded(tmp_path / "e", experts[0])
    (tmp_path / "one").mkdir()
    save_file(base, tmp_path / "one" / "model.safetensors")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "one" / "model.safetensors")
    shards = sorted(folder.glob("*.safetensors"))
    for out in (*shards, tmp_path / "one" / "model.safetensors", tmp_path / "link.safetensors"):
        before = out.read_bytes()
        asked = files.FileMerge("average", paths[0], (folder, tmp_path / "one"))
        for act in (asked.preview, asked.write):
            with pytest.raises(MergeError, match="is one of the inputs"):
                act(out, overwrite=True)
        assert out.read_bytes() == before


def test_the_form_of_the_result_is_that_of_the_base(tmp_path, base, paths):
    with pytest.raises(MergeError, match=r"out.pt: the result is a safetensors file"):
        merge_files("average", paths[0], paths[1:], tmp_path / "out.pt")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(SpecError, match="is a folder; give a file to write"):
        merge_files("average", paths[0], paths[1:], tmp_path / "folder.safetensors")
    folder = sharded(tmp_path / "base", base)
    (tmp_path / "there").mkdir()
    with pytest.raises(MergeError, match="give a new folder, or remove it yourself"):
        merge_files("average", folder, paths[1:], tmp_path / "there", overwrite=True)


def test_a_folder_gives_a_folder_with_its_shards_and_config(tmp_path, base, experts, paths):
    folder = sharded(tmp_path / "base", base, shards=3)
    for name in ("config.json", "tokenizer.json", "README.md", "pytorch_model.bin"):
        (folder / name).write_text(name)
    (folder / "onnx").mkdir()
    out = merge_files("task_arithmetic", folder, paths[1:], tmp_path / "new" / "out")
    weights = {path.name for path in folder.glob("*.safetensors")}
    copied = {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    assert {path.name for path in out.iterdir()} == weights | copied | {"README.md"}
    assert (out / "README.md").read_text() != "README.md"
    assert (out / "config.json").read_text() == "config.json"
    result = {}
    for name in weights:
        part = load_file(out / name)
        assert set(part) == set(load_file(folder / name))
        assert account(out / name)["merge"] == "task_arithmetic"
        result |= part
    assert equal(result, merge("task_arithmetic", base, experts))


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch, paths):
    usage = files.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DataError, match="are free; free some space"):
        merge_files("average", paths[0], paths[1:], tmp_path / "out.safetensors")


def test_what_killed_processes_left_of_the_same_result_is_cleared_away(tmp_path, base, paths):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    alive = os.getppid()

    def part(name, process):
        return tmp_path / f"{name}.{_machine()}-{_namespace()}-{process}-0123abcd.part"

    left = [part("out.safetensors", gone.pid)]
    others = [part("out.safetensors", alive), part("other.safetensors", gone.pid)]
    others += [part("out.safetensors.x", gone.pid), tmp_path / "out.safetensors.part"]
    for path in (*left, *others):
        path.write_text("half")
    merge_files("average", paths[0], paths[1:], tmp_path / "out.safetensors")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    folder = sharded(tmp_path / "base", base)
    part("out", gone.pid).mkdir()
    (part("out", gone.pid) / "model.safetensors").write_text("half")
    merge_files("average", folder, paths[1:], tmp_path / "out")
    assert not part("out", gone.pid).exists()
    assert all(path.exists() for path in others)


def test_whole_numbers_without_a_sign_are_kept(tmp_path, base, experts, paths):
    base["mask"] = torch.tensor([7, 65535]).to(torch.uint16)
    save_file(base, paths[0])
    save_file(experts[0] | {"mask": base["mask"]}, paths[1])
    out = merge_files("average", paths[0], paths[1:], tmp_path / "out.safetensors")
    assert torch.equal(load_file(out)["mask"], base["mask"])


def test_errors_and_doubts_name_the_file_and_the_tensor(tmp_path, caplog, experts, paths):
    merge_files("average", paths[0], [paths[1], paths[0], paths[1]], tmp_path / "a.safetensors")
    first, second = [record.message for record in caplog.records]
    assert first.startswith(f"{paths[0]}: has the same weights as {paths[0]}")
    assert second == f"{paths[1]}: has the same weights as {paths[1]}, so they count twice"
    save_file(experts[0] | {"a.weight": torch.ones(2, 2)}, paths[1])
    with pytest.raises(MergeError, match=r"e0.safetensors: a.weight has the shape \[2, 2\]"):
        merge_files("average", paths[0], paths[1:], tmp_path / "b.safetensors")


@pytest.mark.slow
def test_killed_in_the_middle_it_leaves_no_result(tmp_path, paths):
    script = (
        "import os, sys; from afield.merging import files as f\n"
        "real = f._merge_tensor\n"
        "def once(*a):\n    real(*a); os.kill(os.getpid(), 9)\n"
        "f._merge_tensor = once\n"
        "f.merge_files('average', sys.argv[1], sys.argv[2:], 'out.safetensors')"
    )
    command = [sys.executable, "-c", script, *map(str, paths)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "out.safetensors").exists()


def nearby(state, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t + 0.01 * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t
        for name, t in state.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "tf_efficientnet_lite0"])
def test_the_merged_file_loads_strictly_into_timms_model(tmp_path, model):
    net = timm.create_model(model, pretrained=False)
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for i, path in enumerate(paths):
        save_file(nearby(net.state_dict(), i) if i else net.state_dict(), path)
    for name in ("score", "ties", "task_arithmetic"):
        out = merge_files(name, paths[0], paths[1:], tmp_path / f"{name}.safetensors")
        fresh = timm.create_model(model, pretrained=False, checkpoint_path=str(out)).eval()
        fresh.load_state_dict(load_file(out), strict=True)
        assert fresh(torch.zeros(1, 3, 224, 224)).isfinite().all()


@pytest.mark.slow
def test_the_merged_file_loads_strictly_into_open_clips_model(tmp_path):
    open_clip = pytest.importorskip("open_clip", reason="the extra clip is not installed")
    config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 64, "heads": 2, "layers": 2},
    }
    net = open_clip.CLIP(**config)
    for i in range(3):
        torch.save(nearby(net.state_dict(), i) if i else net.state_dict(), tmp_path / f"{i}.pt")
    for name in ("score", "ties"):
        out = tmp_path / f"{name}.safetensors"
        merge_files(name, tmp_path / "0.pt", [tmp_path / "1.pt", tmp_path / "2.pt"], out)
        fresh = open_clip.CLIP(**config)
        fresh.load_state_dict(load_file(out), strict=True)
        assert fresh.encode_image(torch.zeros(1, 3, 32, 32)).isfinite().all()
        assert ("averaged: text_projection" in account(out)["tensors"]) == (name == "score")


@pytest.mark.slow
def test_a_merged_folder_loads_into_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    net = transformers.BertModel(config)
    net.save_pretrained(tmp_path / "base", max_shard_size="1MB")
    for i in (1, 2):
        other = transformers.BertModel(config)
        other.load_state_dict(nearby(net.state_dict(), i))
        other.save_pretrained(tmp_path / str(i))
    out = merge_files("ties", tmp_path / "base", [tmp_path / "1", tmp_path / "2"], tmp_path / "out")
    _, loading_info = transformers.BertModel.from_pretrained(out, output_loading_info=True)
    assert not any(loading_info.values())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_does_not_grow_with_the_model(tmp_path):
    # A base and two experts of 240 MB each, a result of as much.
    for i in range(3):
        state = {f"w{j}": torch.full((1 << 20,), 1 + i + j / 7) for j in range(60)}
        save_file(state, tmp_path / f"{i}.safetensors")
    del state
    script = (
        "import sys; from pathlib import Path; import afield; import torch; torch.ones(9).sum()\n"
        "from afield.merging.files import merge_files\n"
        "def most():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return int(next(x for x in lines if x.startswith('VmHWM')).split()[1]) // 1024\n"
        "before = most()\n"
        "merge_files(sys.argv[1], '0.safetensors', ['1.safetensors', '2.safetensors'],\n"
        "            'out.safetensors', overwrite=True)\n"
        "print(most() - before)"
    )
    for name in ("ties", "dare"):
        done = subprocess.run(
            [sys.executable, "-c", script, name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) < 240


def assert_same(path, tensors=TENSORS):
    weights = TensorFiles(path)
    assert set(weights.specs) == set(tensors)
    for name, tensor in tensors.items():
        assert weights.specs[name] == TensorSpec(tensor.dtype, tuple(tensor.shape))
        assert torch.equal(weights.read(name), tensor.reshape(-1))
        assert torch.equal(weights.read(name, 1, 3), tensor.reshape(-1)[1:3])


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
    weights = TensorFiles(tmp_path / "old.pt")
    (tmp_path / "old.pt").unlink()
    for _ in range(3):
        assert torch.equal(weights.read("a.weight"), TENSORS["a.weight"].flatten())


def test_a_tensor_whose_entries_lie_in_another_order_is_copied_once_for_all_its_pieces(tmp_path):
    torch.save(TENSORS, tmp_path / "w.pt")
    weights = TensorFiles(tmp_path / "w.pt")
    pieces = [weights.read("conv", i, i + 32) for i in range(0, 96, 32)]
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
    result, before, most = TensorFiles(tmp_path / name), resident(), 0
    for key in result.specs:
        for start in range(0, 1 << 20, 1 << 18):
            assert result.read(key, start, start + (1 << 18)).sum() == 1 << 18
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
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-10])
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
    written = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(written[name], tensor) for name, tensor in TENSORS.items())
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
