"""A run that was never done, its record, and how it is stored."""

import torch

from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import Checkpoint, Score, Scores

RUN = Run("toy", "erm", ("a", "b"), params={"x": 1.0})


def record_of(run=RUN):
    scores = {
        "a": Scores(probe=Score(0.5, 0.5, 1.0, 10)),
        "b": Scores(probe=Score(1 / 3, 0.1, 2.0, 30)),
        "c": Scores(main=Score(0.25, 0.25, 3.0, 40)),
    }
    return Record(run, (Checkpoint(10, scores, {"loss": 0.1}),), 1.5, {"torch": "2"}, "cpu")


def put(store, record, weights=None):
    with store.claim(record.run):
        store.put(record, weights or {"w": torch.arange(3.0)})
