"""Journeys of new users, from an empty folder to an answer, with the real commands."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from afield.data.domains import data_root

QUICK = ("--steps", "20", "--trials", "1", "--workers", "1")
METHOD = '''"""Plain training with a penalty on large logits."""

from dataclasses import dataclass

import torch.nn.functional as F

from afield.training.method import Method, pool


@dataclass(frozen=True)
class Calm(Method):
    """Cross-entropy plus the mean square of the logits."""

    def loss(self, learner, batches):
        batch = pool(batches)
        logits = learner.model(batch.x)
        return F.cross_entropy(logits, batch.y) + 0.01 * logits.square().mean(), {}
'''


@pytest.fixture
def photos(tmp_path):
    """Eight photographs of two classes in each of three domains, in an empty folder."""
    source = data_root() / "pacs_mini"
    weights = data_root() / "weights" / "tf_efficientnet_lite0.safetensors"
    if not source.is_dir() or not weights.is_file():
        pytest.skip(f"no {source} or {weights}; AFIELD_DATA names the folder with both")
    for domain in ("photo", "cartoon", "art_painting"):
        for label in ("guitar", "elephant"):
            folder = tmp_path / "photos" / domain / label
            folder.mkdir(parents=True)
            for file in sorted((source / domain / label).iterdir())[:4]:
                shutil.copy(file, folder / file.name)
    (tmp_path / "new").mkdir()
    new = sorted((source / "photo" / "guitar").iterdir())[10]
    shutil.copy(new, tmp_path / "new" / f"unknown{new.suffix}")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command in a folder, in a process of its own, with the weights of this machine."""
    environment = {name: value for name, value in os.environ.items() if name != "AFIELD_WEIGHTS"}
    program = [sys.executable, "-c", "from afield.cli import main; main()", *words]
    done = subprocess.run(
        program, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def answers(folder: Path) -> list[dict[str, str]]:
    with (folder / "answers.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.data
@pytest.mark.slow
def test_from_photographs_to_an_answer_for_a_new_file(photos):
    bench = run(photos, "bench", "photos", "--methods", "linear_probe,erm", *QUICK)
    assert "timm:tf_efficientnet_lite2 (licence Apache-2.0" in bench.stderr
    assert "photos: accuracy (%) on unseen domains" in bench.stdout
    assert (photos / "runs" / "report.html").read_text().count("data:image/webp") == 3
    run(photos, "fit", "photos", "best", "--out", "model", "--workers", "1")
    run(photos, "predict", "model", "new", "--out", "answers.csv")
    (answer,) = answers(photos)
    assert (answer["class"], answer["error"]) == ("guitar", "")
    export = run(photos, "export", "model", "--to", "torch")
    assert "n × 3 × 260 × 260" in export.stdout + export.stderr


@pytest.mark.data
@pytest.mark.slow
def test_from_features_to_an_answer_for_a_new_image(photos):
    run(photos, "embed", "photos", "--out", "emb")
    run(photos, "bench", "emb.npz", "--methods", "linear_probe", *QUICK)
    run(photos, "fit", "emb.npz", "best", "--out", "model", "--workers", "1")
    run(photos, "predict", "model", "new", "--out", "answers.csv")
    (answer,) = answers(photos)
    assert (answer["class"], answer["error"]) == ("guitar", "")


@pytest.mark.slow
def test_an_own_method_is_compared_and_deployed(tmp_path):
    (tmp_path / "calm.py").write_text(METHOD)
    listed = run(tmp_path, "bench", "spirals", "--methods", "erm,calm.py", *QUICK)
    assert "calm" in listed.stdout
    run(tmp_path, "fit", "spirals", "calm.py", "--out", "model", "--steps", "20", "--workers", "1")
    assert json.loads((tmp_path / "model" / "model.json").read_text())["name"] == "spirals-calm"
    np.savez(tmp_path / "new.npz", X=np.zeros((2, 2)))
    run(tmp_path, "predict", "model", "new.npz", "--out", "answers.csv")
    assert {answer["class"] for answer in answers(tmp_path)} <= {"first", "second"}


@pytest.mark.slow
def test_a_merge_is_compared_and_deployed(tmp_path):
    run(tmp_path, "bench", "spirals", "--merges", "score,average", *QUICK)
    run(tmp_path, "fit", "spirals", "best", "--out", "model", "--workers", "1")
    np.savez(tmp_path / "new.npz", X=np.zeros((2, 2)))
    run(tmp_path, "predict", "model", "new.npz", "--out", "answers.csv")
    assert {answer["class"] for answer in answers(tmp_path)} <= {"first", "second"}
    name = json.loads((tmp_path / "model" / "model.json").read_text())["name"]
    assert name in ("spirals-score", "spirals-average")
