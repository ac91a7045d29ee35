"""From data to the folder of a model: what it holds, and what it says of itself."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from afield.data.lookup import find_dataset
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.errors import DataError, SpecError
from afield.networks.inference import compute_outputs
from afield.reporting.benchmarking import bench
from afield.runs.finished import reopen
from afield.runs.store import Store
from tests.files import spoken, tone

QUICK = {"steps": 10, "every": 10}
TINY = {"steps": 1, "every": 1, "size": 32, "weights": "none"}
MODELS = {
    "small": ("erm", {"backbone": "small:cnn"}),
    "resnet": ("erm", {"backbone": "timm:resnet18"}),
    "efficientnet": ("erm", {"backbone": "timm:tf_efficientnet_lite0"}),
    "dmg": ("dmg", {"backbone": "small:cnn"}),
    "arith": ("arith", {"backbone": "small:cnn"}),
}
FRESH = """
import json, sys
import afield
found = {}
for folder, files in json.loads(sys.argv[1]).items():
    found[folder] = afield.load(folder).predict_proba(files).tolist()
json.dump(found, sys.stdout)
"""


def store_run(folder, store):
    """The one run of a store that has left nothing out."""
    (record,) = [each for each in Store(store) if not each.unseen]
    with torch.random.fork_rng():
        return reopen(Store(store).folder(record.run))


@pytest.mark.slow
def test_a_fresh_process_gives_the_probabilities_of_the_model_in_memory(two_colours, tmp_path):
    files = sorted(two_colours.rglob("*.png"))
    asked, expected = {}, {}
    for name, (method, own) in MODELS.items():
        out, store = tmp_path / name, tmp_path / f"{name} runs"
        estimate = name == "small"
        settings = {**TINY, **own}
        fit(two_colours, method, out, store=store, settings=settings, estimate=estimate)
        subject = store_run(out, store)
        temperature = load(out).temperature
        assert (temperature != 1.0) == estimate
        # The line of evaluation, from the cache.
        expected[str(out)] = {
            two_colours / file: row
            for domain, samples in subject.domains.items()
            for file, row in zip(
                subject.sample_names[domain],
                (subject.logits(samples) / temperature).softmax(dim=1).tolist(),
                strict=True,
            )
        }
        asked[str(out)] = [str(file) for file in files]
    words = [sys.executable, "-c", FRESH, json.dumps(asked)]
    fresh = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    for out, rows in expected.items():
        result = dict(zip(files, fresh[out], strict=True))
        assert len(rows) == 48
        for file, row in rows.items():
            np.testing.assert_allclose(result[file], row, atol=1e-6)


def test_what_the_store_has_is_used_and_what_is_missing_is_done(tmp_path):
    bench("spirals", ["erm"], trials=2, store=tmp_path / "runs", settings=QUICK)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    model = fit("spirals", "erm", tmp_path / "model", store=tmp_path / "runs", settings=QUICK)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    assert model.about.estimate.trials == 2
    assert model.about.estimate.stderr is not None


def test_records_of_fewer_rules_are_enough(tmp_path):
    bench("spirals", ["erm"], trials=1, rules="sources", store=tmp_path / "r", settings=QUICK)
    fit("spirals", "erm", tmp_path / "model", store=tmp_path / "r", settings=QUICK)
    assert len(list(Store(tmp_path / "r"))) == 5


def test_it_trains_on_all_domains_and_says_what_it_did(spiral_model):
    about = load(spiral_model).about
    assert about.sources == about.run.sources == ("turn0", "turn10", "turn20", "turn30")
    assert about.run.method == "erm"
    assert about.run.steps == 40
    assert about.versions["torch"] == torch.__version__.partition("+")[0]
    assert about.command.endswith("--set steps=40 --set every=20")
    assert set(about.estimate.domains) == set(about.sources)


def test_without_an_estimate_one_run_is_done(tmp_path):
    model = fit(
        "spirals", "erm", tmp_path / "m", store=tmp_path / "r", settings=QUICK, estimate=False
    )
    assert len(list(Store(tmp_path / "r"))) == 1
    assert model.about.estimate is None
    assert model.about.command.endswith("--no-estimate")


@pytest.mark.slow
def test_best_takes_what_the_bench_has_shown(tmp_path):
    store = tmp_path / "runs"
    bench("spirals", ["erm"], trials=1, store=store, settings={"steps": 1})
    bench("spirals", ["vrex"], trials=1, store=store, settings={"steps": 150, "every": 150})
    model = fit("spirals", "best", tmp_path / "model", store=store)
    assert model.about.run.method == "vrex"
    assert model.about.run.steps == 150
    estimate = model.about.estimate
    assert estimate.recipes == 2
    assert estimate.selection.accuracy - estimate.selection.cost == estimate.accuracy
    assert all(key.startswith("vrex-") for (key,) in estimate.selection.runs.values())
    assert set(estimate.selection.same) == set(estimate.domains)
    assert load(tmp_path / "model").about.estimate == estimate
    assert model.about.command.endswith(f"--store {Path(store).name}")
    assert "Choosing cost 0.0 points" in (tmp_path / "model" / "README.md").read_text()
    assert len(list(Store(store))) == 9


@pytest.mark.slow
def test_a_bench_counts_wherever_its_data_are_now(two_colours, tmp_path):
    store, settings = tmp_path / "runs", {**QUICK, "size": 16}
    shutil.copytree(two_colours, tmp_path / "there")
    bench(tmp_path / "there", ["erm"], trials=1, store=store, settings=settings)
    (tmp_path / "there").rename(tmp_path / "here")
    best = fit(tmp_path / "here", "best", tmp_path / "best", store=store)
    named = fit(tmp_path / "here", "erm", tmp_path / "erm", store=store, settings=settings)
    assert len(list(Store(store))) == 4
    assert best.about.estimate == named.about.estimate
    assert best.about.calibration == named.about.calibration
    assert best.about.run.dataset == "here"


def test_of_many_domains_a_share_is_held_out(tmp_path):
    y = np.tile([0, 1], 8 * 13)
    noise = np.random.default_rng(0).normal(size=(len(y), 2))
    domain = np.repeat([f"clinic {i}" for i in range(13)], 16)
    np.savez(tmp_path / "many.npz", X=np.eye(2)[y] + 0.3 * noise, y=y, domain=domain)
    model = fit(tmp_path / "many.npz", "erm", tmp_path / "m", store=tmp_path / "r", settings=QUICK)
    assert len(list(Store(tmp_path / "r"))) == 2
    assert len(model.about.estimate.domains) == 3
    assert len(model.about.sources) == 13


def test_paths_of_data_and_weights_are_not_stored(two_colours, tmp_path):
    settings = {"steps": 1, "size": 16}
    fit(two_colours, "erm", tmp_path / "m", store=tmp_path / "r", settings=settings, estimate=False)
    content = json.loads((tmp_path / "m" / "model.json").read_text())
    assert content.pop("command")
    assert str(two_colours.parent) not in json.dumps(content)
    assert content["run"]["dataset"] == "colours"


def test_sounds_are_understood_again(tmp_path):
    for speaker in ("ann", "bob"):
        for word, hertz in (("low", 300.0), ("high", 3000.0)):
            for take in range(4):
                shift = 40.0 * take + 15.0 * (speaker == "bob")
                path = tmp_path / "data" / speaker / word / f"{take}.wav"
                spoken(path, tone(hertz + shift))
    model = fit(
        tmp_path / "data", "erm", tmp_path / "m", store=tmp_path / "r",
        settings={"steps": 30, "every": 30}, estimate=False,
    )  # fmt: skip
    spoken(tmp_path / "new" / "a.wav", tone(330.0, rate=8000), rate=8000)
    spoken(tmp_path / "new" / "b.wav", tone(3050.0))
    assert model.predict(tmp_path / "new").tolist() == ["low", "high"]


def test_a_run_that_fails_stops_it_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match="--no-estimate"):
        fit("spirals", "erm", tmp_path / "m", store=tmp_path / "r", settings={"lr": 1e30})
    assert not (tmp_path / "m").exists()


def test_a_place_with_something_else_is_refused_before_any_work(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    with pytest.raises(SpecError, match="is not a model folder"):
        fit("spirals", "erm", tmp_path / "photos", store=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_average_is_deployed_and_named(tmp_path):
    model = fit(
        "spirals", "erm", tmp_path / "m", store=tmp_path / "r", average="swad", settings=QUICK,
        estimate=False,
    )  # fmt: skip
    assert model.about.name == "spirals-erm-swad"
    assert "--average swad" in model.about.command


def test_arrays_of_bytes_are_predicted_as_in_evaluation(tmp_path):
    settings = {"steps": 3, "every": 3}
    options = {"store": tmp_path / "r", "settings": settings, "estimate": False}
    model = fit("rotated_digits", "erm", tmp_path / "m", **options)
    subject = store_run(tmp_path / "m", tmp_path / "r")
    samples = subject.domains["15deg"]
    expected = compute_outputs(subject.model, samples.x, samples.prepare).softmax(dim=1)
    x = (
        samples.x.in_memory
        if samples.x.in_memory is not None
        else samples.x.take(torch.arange(len(samples)))
    )
    np.testing.assert_allclose(model.predict_proba(x), expected.numpy(), atol=1e-6)
    assert find_dataset("rotated_digits").classes == model.classes
