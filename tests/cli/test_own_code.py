"""Your own code on the command line: every kind in one file, named or given with ``--code``."""

import shlex

import numpy as np
import pandas as pd
import pytest

from afield import own_code
from afield.runs.store import Store
from afield.studies.commands import row_command, write_command

DATASET = """
import torch
from afield.data import Domain, DomainSet, Training

def read(options):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    noise = torch.randn(3, 40, 3, generator=generator)
    return {f"site{i}": Domain(noise[i] + 2 * y[:, None], y) for i in range(3)}

mine = DomainSet(
    name="mine",
    domains=("site0", "site1", "site2"),
    classes=("no", "yes"),
    reader=read,
    training=Training(steps=10, batch=8, backbone="small:mlp"),
)
"""
ADAPTATION = """
from dataclasses import dataclass
from afield.training import Adaptation
from afield.networks.inference import BatchPredictor

class Opposite(BatchPredictor):
    def __init__(self, model, scale):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, x):
        return -self.scale * self.model(x)

@dataclass(frozen=True)
class Contrary(Adaptation):
    scale: float = 1.0

    def predictor(self, model):
        return Opposite(model, self.scale)
"""

# What it builds depends on more than its source.
NETWORK = """
import os
from torch import nn

def build(shape, classes):
    net = nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, classes))
    nn.init.xavier_uniform_(net[0].weight, gain=float(os.environ["GAIN"]))
    return net
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch, tmp_path):
    """Two files of the user, and no code of another test."""
    monkeypatch.setattr(own_code, "_registered", {})
    (tmp_path / "sites.py").write_text(DATASET)
    (tmp_path / "contrary.py").write_text(ADAPTATION)


def test_a_dataset_and_an_adaptation_are_one_file_each(afield, tmp_path, monkeypatch):
    words = ("--methods", "erm", "--adapt", "./contrary.py", "--trials", "1", "--workers", "1")
    code, out, err = afield("bench", "./sites.py", *words)
    assert code == 0, err
    assert "contrary" in out
    records = list(Store(tmp_path / "runs"))
    plain, adapted = (
        [record for record in records if bool(record.run.adaptation) == own]
        for own in (False, True)
    )
    assert len(plain) == len(adapted) == 3
    assert set(plain[0].run.code) == {"datasets/sites"}
    assert set(adapted[0].run.code) == {"datasets/sites", "adaptations/contrary"}
    of_base = {record.run.key: record for record in plain}
    for record in adapted:
        (target,) = record.unseen
        opposite = 1 - record.checkpoints[-1].score(target, "main").accuracy
        # The weights are those of the best checkpoint.
        known = [c.score(target, "main") for c in of_base[record.run.base].checkpoints]
        assert opposite in [pytest.approx(score.accuracy) for score in known if score is not None]
    # The commands that the report states give the code again.
    command = row_command(adapted, store="again")
    assert command.startswith("afield --code sites.py --code contrary.py bench sites ")
    monkeypatch.setattr(own_code, "_registered", {})
    assert afield(*shlex.split(command)[1:], "--workers", "1")[0] == 0
    assert {r.run.key for r in Store(tmp_path / "again")} == {r.run.key for r in records}
    monkeypatch.setattr(own_code, "_registered", {})
    like = [("like", f"runs/{plain[0].run.key}"), ("store", "once")]
    one = write_command("train", options=like, code=plain[0].run.code)
    code, _, err = afield("train", "--like", f"runs/{plain[0].run.key}")
    assert (code, "afield --code sites.py" in err) == (2, True)
    assert afield(*shlex.split(one)[1:])[0] == 0


def test_all_commands_with_a_dataset_take_a_file(afield, refusal, tmp_path):
    code, out, err = afield("data", "check", "sites.py")
    assert (code, "site1" in out) == (0, True), err
    fit = ("erm", "--no-estimate", "--out", "model", "--steps", "5")
    assert afield("fit", "sites.py", *fit)[0] == 0
    assert afield("train", "sites.py", "erm", "--target", "site0", "--steps", "5")[0] == 0
    (tmp_path / "sites.py").write_text("x = 1\n")
    message = "error: sites.py: has no dataset; define one, or name it in __all__\n"
    assert refusal("bench", "./sites.py") == message
    refusal("bench", "./absent.py")


def test_predict_takes_an_adaptation_in_a_file(afield, tmp_path):
    fit = ("erm", "--no-estimate", "--out", "model", "--steps", "50")
    assert afield("fit", "sites.py", *fit)[0] == 0
    np.save(tmp_path / "new.npy", np.repeat([[-1.0], [3.0]] * 4, 3, axis=1).astype(np.float32))
    result = []
    for words in ((), ("--adapt", "./contrary.py", "--set", "contrary.scale=2")):
        out = tmp_path / f"{len(result)}.csv"
        code, _, err = afield("predict", "model", "new.npy", "--out", out, *words)
        assert code == 0, err
        result.append(pd.read_csv(out).iloc[:, 1].tolist())
    assert result[0] == ["no", "yes"] * 4
    assert result[1] == ["yes", "no"] * 4


def test_a_record_says_from_which_weights_an_own_network_started(afield, tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NETWORK)
    words = ("spirals", "erm", "--target", "turn0", "--steps", "3", "--backbone", "./net.py")
    firsts = []
    for store, gain in (("one", "1"), ("two", "1"), ("three", "2")):
        monkeypatch.setenv("GAIN", gain)
        assert afield("train", *words, "--store", store)[0] == 0
        (record,) = Store(tmp_path / store)
        firsts.append((record.run.key, record.versions["first weights"]))
    assert firsts[0] == firsts[1]
    assert firsts[0][0] == firsts[2][0]
    assert firsts[0][1] != firsts[2][1]
    like = ("--code", "net.py", "train", "--like", f"one/{firsts[0][0]}")
    code, _, err = afield(*like, "--store", "four")
    assert (code, "starts from other weights than in one/" in err) == (0, True)
    monkeypatch.setenv("GAIN", "1")
    assert "other weights" not in afield(*like, "--store", "five")[2]
