"""Curves for TensorBoard: what a run's record says, and no more."""

import pickle
from collections import defaultdict

import pytest

from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.tensorboard import TensorBoardWriter
from afield.studies.planning import plan_run
from tests.runs.interruption import interrupt

pytest.importorskip("tensorboard", reason="pip install 'afield[tensorboard]'")


def read(folder):
    """What TensorBoard's own reader finds: for each curve its values by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


def test_the_curves_are_those_of_the_record(tmp_path):
    run = plan_run("spirals", "vrex", target="turn0", settings={"steps": 20, "every": 5})
    curves = TensorBoardWriter(str(tmp_path / "curves"))
    record = execute(run, Store(tmp_path / "runs"), watch=curves)
    expected = defaultdict(dict)
    for checkpoint in record.checkpoints:
        for source in run.sources:
            score = checkpoint.scores[source].probe
            expected[f"accuracy/source {source}, probe"][checkpoint.step] = score.accuracy
            expected[f"loss/source {source}, probe"][checkpoint.step] = score.loss
        for name, value in checkpoint.logs.items():
            expected[f"training/{name}"][checkpoint.step] = value
    result = read(tmp_path / "curves" / run.key)
    for tag, values in expected.items():
        assert result[tag] == pytest.approx(values, rel=1e-6)
    assert any(tag.startswith("accuracy/unseen turn0") for tag in result)


def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 40, "every": 5})
    store = Store(tmp_path / "runs")
    first = TensorBoardWriter(str(tmp_path / "curves"))
    interrupt(run, store, after=20, watch=first)
    first.close()
    execute(run, store, watch=TensorBoardWriter(str(tmp_path / "curves")))
    result = read(tmp_path / "curves" / run.key)
    assert list(result["training/loss"]) == [5, 10, 15, 20, 25, 30, 35, 40]


def test_it_can_be_sent_to_a_worker(tmp_path):
    assert pickle.loads(pickle.dumps(TensorBoardWriter(str(tmp_path)))).folder == str(tmp_path)
