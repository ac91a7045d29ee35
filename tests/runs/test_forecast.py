"""The expected time of a benchmark, against the time that it takes."""

import time

import pytest

from afield.runs.forecast import expected_seconds
from afield.runs.pools.local import Local
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.benchmark import make_benchmark


@pytest.mark.slow
def test_the_expected_time_is_of_the_right_size(tmp_path):
    runs = make_benchmark("spirals", ["erm", "arith"], trials=1, steps=200).runs()
    expected = expected_seconds(runs, workers=1)
    begun = time.monotonic()
    assert len(list(complete(runs, Store(tmp_path), pool=Local(1)))) == len(runs)
    taken = time.monotonic() - begun
    assert expected / 8 < taken < expected * 8


def test_more_runs_take_longer_and_more_workers_less():
    few, many = (make_benchmark("spirals", "erm", trials=n, steps=500).runs() for n in (1, 4))
    one = expected_seconds(many, workers=1)
    assert expected_seconds(many, workers=4) < one
    assert expected_seconds(few, workers=1) < one


def test_a_large_pretrained_network_is_not_measured(two_colours):
    settings = {"backbone": "timm:test_resnet", "weights": "none"}
    runs = make_benchmark(two_colours, "erm", trials=1, settings=settings).runs()
    assert expected_seconds(runs, workers=1) is None
