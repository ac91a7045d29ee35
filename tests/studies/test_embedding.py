"""Features against those of the same network, computed picture by picture from the files."""

import io
import json
import resource
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
from afield.errors import DataError, SpecError
from afield.networks.pretrained import Encoder
from afield.progress import report_progress_to
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.seeds import derive_seed
from afield.studies import features as embedding
from afield.studies import features as partial_features
from afield.studies.benchmark import make_benchmark
from afield.studies.features import embed

NET, SIZE = "test_resnet", 32
TINY = {"backbone": f"timm:{NET}", "weights": "none", "size": SIZE}


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
    result = np.load(embed(folder, tmp_path / "emb", **TINY))
    provenance = json.loads(str(result["provenance"]))
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
        record = execute(run, Store(tmp_path / "runs"))
        assert record.domains == ("a shop", "zoé")
    domains = array_dataset(path).load()
    assert domains["zoé"].test.tolist() == [False, True] * 3
    assert domains["zoé"].names[0] == "zoé/cup/0.png"


def test_the_same_features_come_out_twice_even_of_random_weights(folder, tmp_path):
    first = embed(folder, tmp_path / "first.npz", **TINY)
    torch.manual_seed(1)
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
        embed(folder, path, **TINY)
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
    for out, message in (("no/emb", "create it first"), ("taken", "give another --out")):
        with pytest.raises(SpecError, match=message):
            embed("no such data", tmp_path / out, **TINY)


def test_data_are_not_overwritten_by_their_own_features(tmp_path):
    path = tmp_path / "own.npz"
    x = np.zeros((4, 24, 24), dtype=np.uint8)
    np.savez(path, X=x, y=[0, 1, 0, 1], domain=list("aabb"))
    before = path.read_bytes()
    with pytest.raises(SpecError, match="is the dataset itself"):
        embed(path, tmp_path / "own", **TINY)
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
    monkeypatch.setattr(partial_features, "SAVE_SECONDS", 0.0)
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
    assert seen == [5, 10, 10, 12]
    np.testing.assert_allclose(
        np.load(path)["X"], np.load(io.BytesIO(whole))["X"], rtol=1e-4, atol=1e-6
    )
    assert not list(cache_root().glob("embedding-*"))


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
