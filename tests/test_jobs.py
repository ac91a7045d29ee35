import logging

import numpy as np
import pytest

import afield
from afield.errors import DataError, UnknownNameError
from afield.jobs import DEFAULT_METHODS, bench, plan, train
from afield.record import Store

QUICK = {"steps": 10}


def test_bench_returns_the_records_of_the_store(tmp_path):
    records = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=tmp_path)
    assert [record.run.method for record in records] == ["erm", "vrex"] * 4
    assert {record.run.key for record in Store(tmp_path)} == {record.run.key for record in records}
    again = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=Store(tmp_path))
    assert again == records


def test_the_short_list_of_methods_exists_and_all_stands_for_every_one():
    assert set(DEFAULT_METHODS) <= set(afield.names("methods"))
    assert {run.method for run in plan("spirals", trials=1)} == set(DEFAULT_METHODS)
    assert {run.method for run in plan("spirals", ["all"], trials=1)} == set(
        afield.names("methods")
    )


def test_a_method_named_twice_is_run_once():
    assert len(plan("spirals", ["erm", "erm"], trials=1)) == 4


def test_an_unknown_method_is_an_error_before_any_training():
    with pytest.raises(UnknownNameError, match="did you mean 'erm'"):
        plan("spirals", ["ermm"])


def test_broken_data_are_an_error_before_any_training(tmp_path):
    path = tmp_path / "own.npz"
    x = np.zeros((8, 2))
    x[3, 1] = np.nan
    np.savez(path, X=x, y=[0, 1] * 4, domain=[0, 0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(DataError, match="NaN"):
        bench(path, store=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_missing_class_is_reported(tmp_path, caplog):
    path = tmp_path / "own.npz"
    np.savez(path, X=np.eye(8), y=[0, 1, 0, 1, 0, 0, 0, 0], domain=list("aaaabbbb"))
    with caplog.at_level(logging.WARNING):
        plan(path, ["erm"])
    assert "domain 'b' has no sample of class '1'" in caplog.text


def test_a_failing_run_is_logged_and_left_out(tmp_path, caplog):
    settings = {"steps": 10, "lr": 1e30}
    assert bench("spirals", ["erm"], trials=1, settings=settings, store=tmp_path) == []
    assert "failed: ERM at step" in caplog.text


def test_train_leaves_out_none_one_or_several(tmp_path):
    unseen = [
        train("spirals", "erm", target=target, settings=QUICK, store=tmp_path).unseen
        for target in ((), "turn10", ["turn0", "turn30"])
    ]
    assert unseen == [(), ("turn10",), ("turn0", "turn30")]


def test_train_with_an_unknown_target_has_a_guess(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean"):
        train("spirals", "erm", target="turn11", store=tmp_path)


def test_it_learns_on_the_embedded_digits(tmp_path):
    record = train("rotated_digits", "erm", target="45deg", settings={"steps": 150}, store=tmp_path)
    assert record.checkpoints[-1].score("45deg", "main").accuracy > 0.6
