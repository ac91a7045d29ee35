"""What an earlier version has written is still read, and means the same.

``golden/flat`` was made by the package before it had rooms: a store with finished runs, merged runs
and one run that was interrupted, a decoded cache, and two model folders. ``golden/keys.json`` and
``golden/draws.json`` were computed by it.
"""

import hashlib
import json
import logging
import os
import shutil

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

import afield
from afield import registry
from afield.data.cache import cache_root, stat_digest
from afield.data.training_settings import Training
from afield.hyperparameters import defaults, draw_values, seed_name, without_neutral
from afield.runs.run import Run
from afield.runs.run_files import read_record
from afield.runs.run_setup import versions
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.training.scores import Checkpoint
from tests.files import GOLDEN

FLAT = GOLDEN / "flat"
KEYS = json.loads((GOLDEN / "keys.json").read_text())
DRAWS = json.loads((GOLDEN / "draws.json").read_text())
INTERRUPTED = "arith-98b78145f915e4c7"


def listed(value):
    """As JSON has it: tuples are lists."""
    return json.loads(json.dumps(value))


@pytest.fixture
def store(tmp_path):
    shutil.copytree(FLAT / "store", tmp_path / "store")
    return Store(tmp_path / "store")


def test_keys_recipes_and_seeds_of_runs_are_as_ever():
    assert len(KEYS) >= 30
    for known in KEYS:
        fields = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in known["run"].items()
        }
        run = Run(**fields)
        assert (run.key, run.recipe, run.seed) == (known["key"], known["recipe"], known["seed"])


def test_draws_of_hyperparameters_are_as_ever():
    for kind, names in DRAWS["names"].items():
        for name, seeding in names.items():
            entry = registry.find(kind, name)
            assert seed_name(entry) == seeding, f"{name}: set seed_name, so that draws stay"
            drawn = without_neutral(entry, draw_values(entry, draw=1, trial=2))
            assert listed(drawn) == DRAWS["draws"][kind][name]
    drawn, before = draw_values(Training, draw=1, trial=2), DRAWS["draws"]["training"]["Training"]
    # Settings that were added later are not drawn.
    assert listed({name: drawn[name] for name in before}) == before
    assert all(drawn[name] == defaults(Training)[name] for name in set(drawn) - set(before))


def test_every_record_of_the_store_is_read_and_has_its_key(store):
    folders = [path.parent for path in store.root.glob("*/record.json")]
    assert len(folders) > 50
    for folder in folders:
        assert read_record(folder).run.key == folder.name
    assert len(list(store)) == len(folders)


def test_an_older_digest_of_the_code_is_no_reason_for_a_warning(store, caplog):
    runs = [record.run for record in store if not record.run.role]
    with caplog.at_level(logging.WARNING):
        outcomes = list(complete(runs, store))
    assert len(outcomes) == len(runs)
    assert not caplog.text


@pytest.mark.slow
def test_the_runs_of_the_store_give_the_same_results_again(store, tmp_path):
    """Methods, draws, experts and merges of the first target; last digits depend on the CPU."""
    before = {record.run.key: record for record in store}
    others = ("turn10", "turn20", "turn30")
    runs = {key: record.run for key, record in before.items() if record.run.sources == others}
    runs |= {key: before[key].run for run in list(runs.values()) for key in run.experts}
    assert {run.role for run in runs.values()} == {"", "base", "expert", "merged"}
    again = Store(tmp_path / "again")
    for record in complete(list(runs.values()), again):
        checkpoints = zip(before[record.run.key].checkpoints, record.checkpoints, strict=True)
        for stored, repeated in checkpoints:
            assert accuracies(stored) == accuracies(repeated)
        torch.testing.assert_close(
            dict(again.weights(record.run)), dict(store.weights(record.run)), rtol=1e-4, atol=1e-5
        )


def accuracies(checkpoint):
    return {
        (domain, part): round(score.accuracy, 6)
        for domain, scores in checkpoint.scores.items()
        # The sample for curves has grown since; nothing is selected by it.
        for part in ("main", "probe", "known")
        if (score := getattr(scores, part)) is not None
    }


def test_an_interrupted_run_continues_from_its_snapshot(store, caplog):
    path = store.root / INTERRUPTED / "snapshot.pt"
    state = torch.load(path, weights_only=True)
    run = Run(**read_progress(store.root / INTERRUPTED))
    assert run.key == INTERRUPTED
    before = json.loads(state["checkpoints"])
    assert [checkpoint["step"] for checkpoint in before] == [3, 6]
    # The versions of packages are those of this machine; the digest of the code is the old one.
    state["made"] = {**state["made"], **versions(run), "code": state["made"]["code"]}
    # Written again as snapshots are today, with a digest of their content.
    done = TypeAdapter(tuple[Checkpoint, ...]).validate_json(state.pop("checkpoints"))
    store.put_snapshot(run, state, done)
    with caplog.at_level(logging.WARNING):
        record = execute(run, store)
    assert not caplog.text
    assert [checkpoint.step for checkpoint in record.checkpoints] == [3, 6, 9, 12]
    # Accuracies of the first checkpoints are those that were stored, to the digit.
    assert (
        record.checkpoints[0].scores["turn0"].probe.loss
        == (before[0]["scores"]["turn0"]["probe"]["loss"])
    )


def read_progress(folder):
    run = json.loads((folder / "progress.json").read_text())["run"]
    return {k: tuple(v) if isinstance(v, list) else v for k, v in run.items()}


def test_a_decoded_cache_is_used_and_not_made_again(tmp_path, monkeypatch):
    """The names of its entries depend on where the images lie, so they are renamed here."""
    photos = tmp_path / "photos"
    shutil.copytree(FLAT / "photos", photos)
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    files = sorted(photos.rglob("*.png"))
    kept = sorted((FLAT / "cache").iterdir())
    assert len(kept) == 2
    for entry in kept:
        state = json.loads((entry / "state.json").read_text())
        name = hashlib.sha256(os.fsencode(photos) + f"\0{state['form']}".encode()).hexdigest()[:12]
        copy = cache_root() / f"photos-{name}"
        shutil.copytree(entry, copy)
        (copy / "state.json").write_text(json.dumps({**state, "state": stat_digest(files)}))
    for file in files:
        stat = file.stat()
        file.write_bytes(bytes(stat.st_size))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    record = afield.train(
        photos, "erm", target="east", store=tmp_path / "runs",
        settings={"steps": 2, "every": 2, "size": 16},
    )  # fmt: skip
    assert record.dropped == 0
    assert len([path for path in cache_root().iterdir() if path.is_dir()]) == 2


@pytest.mark.parametrize(("name", "shape"), [("model", (2,)), ("image_model", (3, 16, 16))])
def test_a_model_folder_is_loaded_and_predicts(name, shape):
    model = afield.load(FLAT / name)
    if name == "image_model":
        inputs = sorted(FLAT.glob("photos/west/*/*.png"))
    else:
        inputs = np.zeros((4, *shape), dtype=np.float32)
    answers = model.predict_proba(inputs)
    assert answers.shape == (len(inputs), len(model.classes))
    np.testing.assert_allclose(answers.sum(1), 1, rtol=1e-4)
