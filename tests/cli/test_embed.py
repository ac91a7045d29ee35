"""`afield embed` as a user types it."""

from afield.runs.store import Store
from tests.files import pictures


def test_embed_writes_a_dataset_that_bench_takes(afield, tmp_path):
    pictures(tmp_path / "own")
    network = ("--backbone", "timm:test_resnet", "--weights", "none", "--size", "32")
    code, out, err = afield("embed", "own", "--out", "emb", *network, "--threads", "1")
    assert (code, err) == (0, "")
    assert out == "features in emb.npz; next: `afield bench emb.npz`\n"
    _, out, _ = afield("embed", "own/home/dark", "--out", "new", *network, "--threads", "1")
    assert out == "features in new.npz; without labels\n"
    words = ("--methods", "erm", "--steps", "10", "--workers", "1", "--trials", "1")
    code, out, _ = afield("bench", "emb.npz", *words)
    assert code == 0
    assert "away office" in out
    assert len(list(Store(tmp_path / "runs"))) == 2
