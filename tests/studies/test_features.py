"""Features against those of the same network, computed picture by picture from the files."""

import io
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from afield.data.cache import cache_root
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.data.sources.arrays import array_dataset
from afield.data.sources.folders import unlabelled_files
from afield.errors import DataError, SpecError
from afield.networks import pretrained
from afield.networks.pretrained import Encoder
from afield.progress import report_progress_to
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.seeds import derive_seed
from afield.studies import feature_cache
from afield.studies import features as embedding
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import train
from afield.studies.features import embed, use_features
from afield.studies.planning import plan_run
from tests.files import words
from tests.networks.register import register_only
from tests.texts import reviews, write_encoder, write_reviews, write_text_tree

NET, SIZE = "test_resnet", 32
TINY = {"backbone": f"timm:{NET}", "weights": "none", "size": SIZE}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Features of other tests are not known."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path):
    """Two domains and two classes, three pictures of noise each; every second is on a test list."""
    generator = np.random.default_rng(0)
    root = tmp_path / "own"
    for domain in ("a shop", "zoé"):
        for label in ("cup", "pot"):
            (root / domain / label).mkdir(parents=True)
            for i in range(3):
                values = generator.integers(0, 256, (40, 30, 3)).astype(np.uint8)
                Image.fromarray(values).save(root / domain / label / f"{i}.png")
    for domain in ("a shop", "zoé"):
        files = sorted((root / domain).glob("*/*.png"))
        for part, chosen in (("train", files[::2]), ("test", files[1::2])):
            lines = [f"{file.relative_to(root)} 0\n" for file in chosen]
            (root / f"{domain}_{part}.txt").write_text("".join(lines), encoding="utf-8")
    return root


def random_net():
    torch.manual_seed(derive_seed("embedding", f"timm:{NET}"))
    return timm.create_model(NET, num_classes=0).eval()


def features(net, file, size=SIZE):
    """What the network makes of one picture."""
    side = round(size * 8 / 7)
    with Image.open(file) as image:
        image.draft("RGB", (side, side))
        stored = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(stored)).permute(2, 0, 1)[None]
    pixels = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    mean, std = (torch.tensor(net.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        return net((pixels / 255 - mean) / std)[0].numpy()


@contextmanager
def files_no_larger_than(size):
    """As on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_row_has_the_features_the_class_and_the_domain_of_its_file(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(embedding, "CHUNK", 5)
    state = torch.get_rng_state()
    result = np.load(embed(folder, tmp_path / "emb", **TINY))
    assert torch.equal(torch.get_rng_state(), state)
    files = [folder / name for name in result["names"]]
    assert sorted(files) == sorted(folder.rglob("*.png"))
    net = random_net()
    expected = np.stack([features(net, file) for file in files])
    assert result["X"].dtype == np.float32
    np.testing.assert_allclose(result["X"], expected, rtol=1e-3, atol=1e-5)
    assert len(np.unique(result["X"], axis=0)) == 12
    assert result["y"].tolist() == [file.parent.name for file in files]
    assert result["domain"].tolist() == [file.parent.parent.name for file in files]
    # On the list of tests are the second, fourth and sixth file of a domain.
    assert result["test"].tolist() == [False, True] * 6


def test_the_provenance_says_with_what_the_features_were_made(folder, tmp_path):
    provenance = json.loads(str(np.load(embed(folder, tmp_path / "emb", **TINY))["provenance"]))
    assert provenance["dataset"] == folder.name
    assert provenance["data"] == find_dataset(folder).fingerprint
    assert len(provenance["digest"]) == 16
    assert (provenance["backbone"], provenance["weights"], provenance["size"]) == (
        f"timm:{NET}",
        "",
        SIZE,
    )
    assert (provenance["timm"], provenance["torch"]) == (version("timm"), version("torch"))


def test_the_file_is_a_dataset_like_any_other_with_or_without_its_suffix(folder, tmp_path):
    path = embed(folder, tmp_path / "emb", **TINY)
    assert path == tmp_path / "emb.npz"
    for spec in (path, tmp_path / "emb"):
        (run, _) = make_benchmark(spec, ["erm"], trials=1, settings={"steps": 2}).runs()
        assert run.backbone == "small:mlp"
        assert execute(run, Store(tmp_path / "runs")).domains == ("a shop", "zoé")
    domains = array_dataset(path).load()
    assert domains["zoé"].test.tolist() == [False, True] * 3
    assert domains["zoé"].names[0] == "zoé/cup/0.png"


def test_the_same_features_come_out_twice_even_of_random_weights(folder, tmp_path, monkeypatch):
    first = embed(folder, tmp_path / "first.npz", **TINY)
    torch.manual_seed(1)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other cache"))
    second = embed(folder, tmp_path / "second.npz", **TINY)
    assert first.read_bytes() == second.read_bytes()


def test_weights_of_a_file_are_those_that_compute(folder, tmp_path):
    torch.manual_seed(7)
    net = timm.create_model(NET, num_classes=0).eval()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    weights = str(tmp_path / "net.safetensors")
    result = np.load(embed(folder, tmp_path / "emb", **{**TINY, "weights": weights}))
    expected = features(net, folder / result["names"][0])
    np.testing.assert_allclose(result["X"][0], expected, rtol=1e-3, atol=1e-5)
    provenance = json.loads(str(result["provenance"]))
    assert provenance["weights"] == weights
    assert len(provenance["start"]) == 16


def test_pictures_in_arrays_are_seen_at_their_own_size_grey_ones_too(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (8, 24, 24)).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", X=x, y=[0, 1] * 4, domain=list("aaaabbbb"))
    path = embed(tmp_path / "grey.npz", tmp_path / "emb", backbone=f"timm:{NET}", weights="none")
    result = np.load(path)
    assert result["X"].shape == (8, 96)
    assert "names" not in result
    assert "test" not in result
    torch.manual_seed(derive_seed("embedding", f"timm:{NET}"))
    net = timm.create_model(NET, num_classes=0, in_chans=1).eval()
    mean, std = (np.mean(net.pretrained_cfg[key]) for key in ("mean", "std"))
    with torch.inference_mode():
        expected = net(torch.from_numpy((x[:, None] / 255 - mean) / std).float()).numpy()
    np.testing.assert_allclose(result["X"], expected, rtol=1e-3, atol=1e-5)


def test_a_disk_that_is_full_leaves_the_old_file_whole_and_no_part(folder, tmp_path):
    path = embed(folder, tmp_path / "emb", **TINY)
    before = path.read_bytes()
    with files_no_larger_than(2000), pytest.raises(SpecError, match=r"emb\.npz: cannot be written"):
        embed(folder, path, overwrite=True, **TINY)
    assert path.read_bytes() == before
    assert sorted(child.name for child in tmp_path.iterdir()) == ["emb.npz", "own"]


def test_a_broken_picture_is_an_error_before_anything_is_written_or_left_out(folder, tmp_path):
    (folder / "zoé" / "pot" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"zoé/pot/1\.png"):
        embed(folder, tmp_path / "emb", **TINY)
    assert not (tmp_path / "emb.npz").exists()
    result = np.load(embed(folder, tmp_path / "emb", skip_broken=True, **TINY))
    assert len(result["X"]) == len(result["y"]) == len(result["names"]) == len(result["test"]) == 11
    assert "zoé/pot/1.png" not in result["names"]


@pytest.mark.parametrize("dataset", ["spirals", "sounds.npz"])
def test_numbers_and_sounds_are_no_pictures(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).random((4, 1, 8, 8)).astype(np.float32)
    np.savez("sounds.npz", X=x, y=[0, 1, 0, 1], domain=list("aabb"))
    with pytest.raises(SpecError, match="give a dataset of images and"):
        embed(dataset, "emb", **TINY)
    assert not Path("emb.npz").exists()


def test_where_nothing_can_be_written_is_reported_before_the_data_are_read(tmp_path):
    (tmp_path / "taken.npz").mkdir()
    for out, message in (("no/emb", "create it first"), ("taken", "is a folder; give a file")):
        with pytest.raises(SpecError, match=message):
            embed("no such data", tmp_path / out, **TINY)


def test_data_are_not_overwritten_by_their_own_features(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, X=np.zeros((4, 24, 24), dtype=np.uint8), y=[0, 1, 0, 1], domain=list("aabb"))
    before = path.read_bytes()
    with pytest.raises(SpecError, match="is the dataset itself"):
        embed(path, tmp_path / "own", overwrite=True, **TINY)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "small:cnn"}, "small:cnn: features are computed from images by"),
        ({**TINY, "threads": 0}, "threads=0"),
        ({**TINY, "threads": 100_000}, "threads=100000"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options, message, folder, tmp_path):
    with pytest.raises(SpecError, match=message):
        embed(folder, tmp_path / "emb", **options)


def test_the_number_of_threads_is_as_before(folder, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embed(folder, tmp_path / "emb", threads=1, **TINY)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_progress_counts_the_samples(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "CHUNK", 5)
    reports = []

    @contextmanager
    def listener(what, total):
        yield lambda done: reports.append((what, done, total))

    with report_progress_to(listener):
        embed(folder, tmp_path / "emb", **TINY)
    assert [each for each in reports if each[0] == "embedding own"] == [
        ("embedding own", done, 12) for done in (5, 10, 12)
    ]


def test_a_file_that_does_not_say_its_network_in_full_has_none():
    known = {**asdict(Encoder("timm:a", kind="image", digest="abc")), "stored": [3, 8, 8]}
    result = Encoder.from_provenance({**known, "more": 1})
    assert result == Encoder("timm:a", kind="image", stored=(3, 8, 8), digest="abc")
    for change in ({"digest": ""}, {"stored": []}, {"stored": ["x"]}):
        assert Encoder.from_provenance({**known, **change}) is None
    for name in known:
        # Files of earlier versions, all of images, do not mention tokens.
        expected = result if name == "tokens" else None
        without = {key: value for key, value in known.items() if key != name}
        assert Encoder.from_provenance(without) == expected


def test_an_interrupted_embedding_continues_where_it_stopped(folder, tmp_path, monkeypatch):
    whole = embed(folder, tmp_path / "whole", **TINY).read_bytes()
    monkeypatch.setattr(embedding, "CHUNK", 5)
    monkeypatch.setattr(feature_cache, "SAVE_SECONDS", 0.0)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other cache"))
    seen = []

    @contextmanager
    def killed_after_ten(what, total):
        def advance(done):
            if what.startswith("embedding"):
                seen.append(done)
                if done == 10 and len(seen) == 2:
                    raise KeyboardInterrupt

        yield advance

    with report_progress_to(killed_after_ten):
        with pytest.raises(KeyboardInterrupt):
            embed(folder, tmp_path / "emb", **TINY)
        path = embed(folder, tmp_path / "emb", **TINY)
    assert seen == [5, 10, 12]
    np.testing.assert_allclose(
        np.load(path)["X"], np.load(io.BytesIO(whole))["X"], rtol=1e-4, atol=1e-6
    )
    # Files of the first call stay; those of the second are one.
    assert len(list(cache_root().glob("feature-samples/*/*.npz"))) == 3


@contextmanager
def counted(monkeypatch):
    """The numbers of samples whose features are added to the cache."""
    counts, add = [], feature_cache.FeatureCache.add
    with monkeypatch.context() as patch:
        patch.setattr(
            feature_cache.FeatureCache,
            "add",
            lambda cache, keys, rows: counts.append(len(keys)) or add(cache, keys, rows),
        )
        yield counts


def test_only_the_features_of_new_files_are_computed(folder, tmp_path, monkeypatch):
    for listed in folder.glob("*.txt"):
        listed.unlink()
    with counted(monkeypatch) as computed:
        first = np.load(embed(folder, tmp_path / "first", **TINY))
        assert sum(computed) == 12
        for number in range(3):
            path = folder / "zoé" / "pot" / f"new {number}.png"
            Image.new("RGB", (30, 40), (10 * number, 0, 0)).save(path)
        more = np.load(embed(folder, tmp_path / "more", **TINY))
        assert sum(computed) == 12 + 3
        (folder / "zoé" / "pot" / "1.png").write_bytes(b"no picture")
        fewer = np.load(embed(folder, tmp_path / "fewer", skip_broken=True, **TINY))
        assert sum(computed) == 12 + 3
    for other in (more, fewer):
        for name, row in zip(first["names"], first["X"], strict=True):
            (place,) = (other["names"] == name).nonzero()
            if len(place):
                assert np.array_equal(other["X"][place[0]], row)
    assert len(fewer["X"]) == 14


def test_features_have_the_same_bits_in_any_company(folder, tmp_path, monkeypatch):
    whole = np.load(embed(folder, tmp_path / "whole", **TINY))
    bits = dict(zip(whole["names"].tolist(), whole["X"], strict=True))
    for number in range(2):
        monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / f"cache {number}"))
        alone = folder / "zoé" / "cup" / f"{number}.png"
        one = np.load(embed(alone, tmp_path / f"one {number}", **TINY))
        assert np.array_equal(one["X"][0], bits[f"zoé/cup/{number}.png"])


def test_a_damaged_file_of_the_cache_costs_only_time(folder, tmp_path):
    before = embed(folder, tmp_path / "before", **TINY).read_bytes()
    for path in cache_root().glob("feature-samples/*/*.npz"):
        path.write_bytes(path.read_bytes()[:-100])
    assert embed(folder, tmp_path / "after", **TINY).read_bytes() == before


@pytest.mark.data
@pytest.mark.slow
def test_a_bench_after_adding_a_class_of_a_domain_computes_the_new_features_only(
    tmp_path, monkeypatch
):
    pictures = data_root() / "pacs_mini"
    if not pictures.is_dir():
        pytest.skip(f"no {pictures}; AFIELD_DATA names the folder with it")
    root = tmp_path / "pacs"
    folders = sorted(pictures.glob("*/*"))
    left_out = pictures / "sketch" / "horse"
    for folder in folders:
        (root / folder.parent.name).mkdir(parents=True, exist_ok=True)
        if folder != left_out:
            (root / folder.parent.name / folder.name).symlink_to(folder)
    settings = {"backbone": f"timm:{NET}", "weights": "none", "size": 32, "tune": "frozen"}
    bench = make_benchmark(root, "erm", trials=1, settings={**settings, "steps": 2})
    with counted(monkeypatch) as computed:
        bench.runs()
        assert sum(computed) == 48 * (len(folders) - 1)
        (root / "sketch" / "horse").symlink_to(left_out)
        bench.runs()
    assert sum(computed) == 48 * len(folders)


def test_files_without_labels_give_features_and_names(folder, tmp_path):
    labelled = np.load(embed(folder, tmp_path / "emb", **TINY))
    flat = folder / "zoé" / "cup"
    result = np.load(embed(flat, tmp_path / "flat", **TINY))
    assert sorted(result.files) == ["X", "names", "provenance"]
    assert result["names"].tolist() == ["0.png", "1.png", "2.png"]
    rows = [name.startswith("zoé/cup") for name in labelled["names"]]
    np.testing.assert_allclose(result["X"], labelled["X"][rows], rtol=1e-4, atol=1e-6)
    one = np.load(embed(flat / "1.png", tmp_path / "one", **TINY))
    np.testing.assert_allclose(one["X"][0], result["X"][1], rtol=1e-4, atol=1e-6)


def test_wrong_weights_are_reported_before_any_file_is_decoded(folder, tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (folder / "zoé" / "pot" / "1.png").write_bytes(b"no picture")
    options = {**TINY, "weights": str(tmp_path / "other.safetensors")}
    with pytest.raises(DataError, match=r"other\.safetensors"):
        embed(folder, tmp_path / "emb", **options)


@pytest.mark.data
@pytest.mark.slow
def test_real_weights_of_a_file_tell_the_classes_of_real_pictures_apart(tmp_path):
    pictures, weights = data_root() / "pacs_mini", data_root() / "weights"
    file = weights / "tf_efficientnet_lite0.safetensors"
    if not pictures.is_dir() or not file.is_file():
        pytest.skip(f"no {pictures} or {file}; AFIELD_DATA names the folder with both")
    for domain in ("photo", "cartoon"):
        for label in ("elephant", "guitar"):
            (tmp_path / "few" / domain / label).mkdir(parents=True)
            for picture in sorted((pictures / domain / label).iterdir())[:4]:
                (tmp_path / "few" / domain / label / picture.name).symlink_to(picture)
    path = embed(
        tmp_path / "few",
        tmp_path / "emb",
        backbone="timm:tf_efficientnet_lite0",
        weights=str(file),
        size=96,
    )
    result = np.load(path)
    assert result["X"].shape == (16, 1280)
    net = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    known = load_file(file)
    net.load_state_dict({key: known[key] for key in net.state_dict() if key in known}, strict=False)
    # The first file of the first domain and class, computed from its own pixels.
    expected = features(net, tmp_path / "few" / result["names"][0], size=96)
    np.testing.assert_allclose(result["X"][0], expected, rtol=1e-3, atol=1e-4)
    # With trained weights the picture that is most alike is of the same class.
    unit = result["X"] / np.linalg.norm(result["X"], axis=1, keepdims=True)
    alike = unit @ unit.T - 2 * np.eye(len(unit))
    assert np.mean(result["y"][alike.argmax(axis=1)] == result["y"]) > 0.9


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A tiny network of a known name in the folder of weights."""
    register_only(monkeypatch, f"timm:{NET}")
    monkeypatch.setenv("AFIELD_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / f"{NET}.safetensors"
    save_file(timm.create_model(NET, num_classes=0).state_dict(), file)
    return file


def test_photographs_become_features_of_the_network_at_hand_once(weights, two_colours, caplog):
    first = plan_run(two_colours, "erm", target="west")
    assert f"timm:{NET} (licence MIT) for 60 images, weights {weights.name}" in caplog.text
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
    monkeypatch.setattr(pretrained, "_download", lambda facts: None)
    with caplog.at_level(logging.WARNING):
        assert plan_run(two_colours, "erm").backbone == "small:cnn"
    (line,) = caplog.messages
    assert "no pretrained weights at hand" in line
    assert "timm.create_model('hgnetv2_b1.ssld_stage1_in22k_in1k', pretrained=True)" in line


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


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


def sentence_vector(folder, text, tokens):
    """The mean state of the tokens of one text, computed with transformers alone."""
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(tokens)
    net = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        ids = torch.tensor([tokenizer.encode(text).ids])
        return net(ids).last_hidden_state[0].mean(0).numpy()


def test_features_are_the_sentence_vectors_of_the_encoder_in_the_order_of_the_domains(
    tmp_path, encoder, caplog
):
    frame = reviews(4)
    path = write_reviews(tmp_path, frame)
    out = embed(path, tmp_path / "features", backbone=f"hf:{encoder}", tokens=12)
    with np.load(out) as file:
        arrays = dict(file)
    texts = frame.sort_values("domain", kind="stable")
    for row in (0, 5, 23):
        expected = sentence_vector(encoder, texts["text"].iloc[row], 12)
        np.testing.assert_allclose(arrays["X"][row], expected, atol=1e-5)
    assert arrays["y"].tolist() == texts["label"].tolist()
    assert arrays["domain"].tolist() == texts["domain"].tolist()
    provenance = json.loads(str(arrays["provenance"]))
    assert provenance["tokens"] == 12
    assert "transformers" in provenance
    assert "of 24 texts are cut at 12 tokens; --tokens N" in caplog.text
    built = Encoder.from_provenance(find_dataset(out).provenance)
    assert built.shape == (12,)
    assert built.build()


def test_folders_of_texts_give_the_same_features_as_a_table(tmp_path, encoder):
    frame = reviews(2)
    tree = write_text_tree(tmp_path / "tree", frame)
    outs = [
        embed(data, tmp_path / f"{number}", backbone=f"hf:{encoder}")
        for number, data in enumerate((tree, write_reviews(tmp_path, frame)))
    ]
    rows = [np.load(out)["X"] for out in outs]
    # Within a domain, folders order texts by class.
    for start in range(0, 12, 4):
        one, other = (np.sort(x[start : start + 4], axis=0) for x in rows)
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_a_killed_process_continues_and_gives_the_same_bytes(tmp_path, encoder, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    path = write_reviews(tmp_path, reviews(40))
    whole = embed(path, tmp_path / "whole", backbone=f"hf:{encoder}")
    script = (
        "import os, signal\n"
        "from afield.studies import feature_cache, features\n"
        "feature_cache.SAVE_SECONDS, write = 0.0, feature_cache.FeatureCache._write\n"
        "def die(cache):\n"
        "    write(cache)\n"
        "    if len(cache._written) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "feature_cache.FeatureCache._write = die\n"
        f"features.embed({str(path)!r}, {str(tmp_path / 'cut')!r}, backbone={f'hf:{encoder}'!r})\n"
    )
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "other cache"))
    killed = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    kept = 2 * embedding.CHUNK
    with counted(monkeypatch) as computed:
        cut = embed(path, tmp_path / "cut", backbone=f"hf:{encoder}")
    assert 0 < sum(computed) <= len(np.load(cut)["X"]) - kept
    assert cut.read_bytes() == whole.read_bytes()


def test_features_of_texts_need_a_pretrained_encoder_and_images_need_none(tmp_path, encoder):
    path = write_reviews(tmp_path)
    for options, message in (
        ({}, "computed by a pretrained encoder; give, e.g., --backbone hf:FOLDER"),
        ({"backbone": "small:text"}, "with small:text: features of texts"),
        ({"backbone": "timm:resnet18"}, "use bag:, or an encoder"),
        ({"backbone": f"hf:{encoder}", "tokens": 2}, "tokens=2: texts need at least 4"),
    ):
        with pytest.raises(SpecError, match=message):
            embed(path, tmp_path / "out", **options)
    with pytest.raises(SpecError, match="has no texts"):
        embed("rotated_digits", tmp_path / "out", backbone=f"hf:{encoder}")


def test_texts_without_labels_give_vectors_and_names(tmp_path, encoder):
    tree = write_text_tree(tmp_path / "tree", reviews(2))
    flat = tree / "food" / "good"
    (flat / "read me.TXT").write_text("very good soup")
    labelled = np.load(embed(tree, tmp_path / "labelled", backbone=f"hf:{encoder}"))
    result = np.load(embed(flat, tmp_path / "flat", backbone=f"hf:{encoder}"))
    assert sorted(result.files) == ["X", "names", "provenance"]
    assert result["names"].tolist() == ["004.txt", "006.txt", "read me.TXT"]
    rows = [name.startswith("food/good") for name in labelled["names"]]
    np.testing.assert_allclose(result["X"], labelled["X"][rows], atol=1e-5)
    one = np.load(embed(flat / "006.txt", tmp_path / "one", backbone=f"hf:{encoder}"))
    np.testing.assert_allclose(one["X"][0], result["X"][1], atol=1e-5)
    vector = sentence_vector(encoder, "very good soup", 24)
    np.testing.assert_allclose(result["X"][2], vector, atol=1e-5)


def test_notes_in_folders_of_labelled_samples_are_not_texts_to_embed(tmp_path):
    texts = write_text_tree(tmp_path / "texts", reviews(2))
    (texts / "README.txt").write_text("Collected in May.")
    assert unlabelled_files(texts) is None
    sounds = words(tmp_path / "sounds")
    (sounds / "README.txt").write_text("Recorded in May.")
    assert unlabelled_files(sounds) is None
    assert unlabelled_files(tmp_path / "absent") is None


def test_the_record_of_features_knows_how_long_their_texts_were(tmp_path, encoder):
    path = write_reviews(tmp_path, reviews(6))
    out = embed(path, tmp_path / "features", backbone=f"hf:{encoder}", tokens=8)
    options = {"target": "food", "store": tmp_path / "runs", "device": "cpu"}
    record = train(out, "erm", settings={"steps": 4}, **options)
    settings = {"steps": 4, "backbone": f"hf:{encoder}", "tokens": 8}
    texts = train(path, "erm", settings=settings, **options)
    assert record.embedded_tokens == texts.run.tokens == 8
    assert texts.embedded_tokens == record.run.tokens == 0
    assert record.truncated == texts.truncated > 0
    assert record.median_tokens == texts.median_tokens > 0


def test_features_without_lengths_of_texts_are_still_read(tmp_path, encoder):
    out = embed(write_reviews(tmp_path), tmp_path / "features", backbone=f"hf:{encoder}")
    with np.load(out) as file:
        arrays = {key: file[key] for key in file.files if key != "text_lengths"}
    older = tmp_path / "older.npz"
    np.savez(older, **arrays)
    record = train(older, "erm", store=tmp_path / "runs", target="food", settings={"steps": 4})
    assert (record.truncated, record.median_tokens, record.embedded_tokens) == (0, 0, 0)


@pytest.mark.data
def test_the_vectors_of_new_texts_are_near_those_of_texts_with_the_same_meaning(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    for name, text in (
        ("a", "I loved this film."),
        ("b", "The hotel room was dirty."),
        ("c", "What a wonderful movie!"),
    ):
        (folder / f"{name}.txt").write_text(text)
    encoder = data_root() / "weights" / "minilm_l6"
    x = np.load(embed(folder, tmp_path / "out", backbone=f"hf:{encoder}"))["X"]
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert x[0] @ x[2] > 0.6 > 0.3 > x[0] @ x[1]
