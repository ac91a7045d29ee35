"""`afield train` and `afield embed` as a user types them."""

from afield.experiments.store import Store
from tests.files import pictures


def test_train_shows_sources_and_the_unseen_domain_and_can_be_repeated(afield, tmp_path):
    code, out, err = afield(
        "train", "spirals", "vrex", "--target", "turn10", "--steps", "10", "--set", "vrex.penalty=2"
    )
    assert code == 0
    assert out.count("validation") == 3
    assert out.count("unseen") == 1
    (folder,) = (tmp_path / "runs").glob("vrex-*")
    assert folder.name in err
    code, again, _ = afield("train", "--like", folder, "--store", "other")
    assert (code, again) == (0, out)
    other = tmp_path / "other" / folder.name / "model.safetensors"
    assert other.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_train_shows_what_the_domain_label_gives_where_a_method_can_use_it(afield):
    code, out, _ = afield("train", "spirals", "dmg", "--target", "turn10", "--steps", "5")
    assert code == 0
    assert out.count("validation, domain label given") == 3


def test_embed_writes_a_dataset_that_bench_takes(afield, tmp_path):
    pictures(tmp_path / "own")
    network = ("--backbone", "timm:test_resnet", "--weights", "none", "--size", "32")
    code, out, err = afield("embed", "own", "--out", "emb", *network, "--threads", "1")
    assert (code, err) == (0, "")
    assert out == "features in emb.npz; next: `afield bench emb.npz`\n"
    words = ("--methods", "erm", "--steps", "10", "--workers", "1", "--trials", "1")
    code, out, _ = afield("bench", "emb.npz", *words)
    assert code == 0
    assert "away office" in out
    assert len(list(Store(tmp_path / "runs"))) == 2
