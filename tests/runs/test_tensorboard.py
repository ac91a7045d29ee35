"""Curves for TensorBoard: what a run's record says, and no more."""

import pickle
from collections import defaultdict

import pytest

from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.tensorboard import TensorBoardWriter
from afield.studies.planning import plan_run

pytest.importorskip("tensorboard", reason="pip install 'afield[tensorboard]'")


class StopHereError(Exception):
    pass


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
    found = read(tmp_path / "curves" / run.key)
    for tag, values in expected.items():
        assert found[tag] == pytest.approx(values, rel=1e-6)
    assert any(tag.startswith("accuracy/unseen turn0") for tag in found)


def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 40, "every": 5})
    store = Store(tmp_path / "runs")
    first = TensorBoardWriter(str(tmp_path / "curves"))

    def stops(run, checkpoint):
        first(run, checkpoint)
        if checkpoint.step == 20:
            raise StopHereError

    with pytest.raises(StopHereError):
        execute(run, store, snapshot_seconds=0.0, watch=stops)
    first.close()
    execute(run, store, watch=TensorBoardWriter(str(tmp_path / "curves")))
    found = read(tmp_path / "curves" / run.key)
    assert list(found["training/loss"]) == [5, 10, 15, 20, 25, 30, 35, 40]


def test_it_can_be_sent_to_a_worker(tmp_path):
    assert pickle.loads(pickle.dumps(TensorBoardWriter(str(tmp_path)))).folder == str(tmp_path)
