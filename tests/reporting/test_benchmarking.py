"""`afield.bench`: records, failures, and what is left in the store."""

import numpy as np
import pytest

from afield.errors import DataError
from afield.reporting.benchmarking import bench
from afield.runs.store import Store

QUICK = {"steps": 10}


@pytest.fixture
def twenty(tmp_path):
    """Twenty domains of eight samples."""
    y = np.tile([0, 1], 80)
    x = np.eye(2)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=np.repeat(np.arange(20), 8))
    return tmp_path / "own.npz"


def test_bench_returns_the_records_of_the_store(tmp_path):
    records = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=tmp_path)
    assert [record.run.method for record in records] == ["erm", "vrex"] * 4
    assert {record.run.key for record in Store(tmp_path)} == {record.run.key for record in records}
    again = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=Store(tmp_path))
    assert again == records


def test_broken_data_are_an_error_before_any_training(tmp_path):
    path = tmp_path / "own.npz"
    x = np.zeros((8, 2))
    x[3, 1] = np.nan
    np.savez(path, X=x, y=[0, 1] * 4, domain=[0, 0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(DataError, match="NaN"):
        bench(path, store=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_failing_run_is_logged_and_left_out(tmp_path, caplog):
    settings = {"steps": 10, "lr": 1e30}
    assert bench("spirals", ["erm"], trials=1, settings=settings, store=tmp_path) == []
    assert "failed: ERM at step" in caplog.text


def test_bench_holds_out_a_share_of_the_domains(twenty, tmp_path):
    settings = QUICK | {"domains_per_step": 3}
    records = bench(
        twenty,
        "erm",
        hold_out=0.25,
        validate=0.2,
        trials=2,
        settings=settings,
        store=tmp_path / "runs",
    )
    assert [len(record.run.sources) for record in records] == [11, 11]
    assert [len(record.tests) for record in records] == [5, 5]
    assert records[0].tests != records[1].tests
    assert {record.run.rules for record in records} == {("validation", "target")}


def test_bench_trains_on_so_many_of_the_domains_that_are_not_held_out(twenty, tmp_path):
    shares = {"hold_out": 0.25, "validate": 0.1, "trials": 1}
    options = {**shares, "settings": QUICK, "store": tmp_path / "runs"}
    records = bench(twenty, "erm", train_on=[2, "all"], **options)
    assert [len(record.run.sources) for record in records] == [2, 13]
    assert len({record.tests for record in records}) == 1
    for record in records:
        assert len(record.domains) == 20 - len(record.run.unused)
    (plain,) = bench(twenty, "erm", **options)
    assert plain.checkpoints == records[1].checkpoints


@pytest.mark.slow
def test_bench_returns_merged_records_and_leaves_out_what_failed(tmp_path, caplog):
    path = tmp_path / "own.npz"
    y = np.tile([0, 1], 18)
    x = np.eye(2)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(path, X=x, y=y, domain=np.repeat(list("abc"), 12))
    options = {"merges": ["average", "slerp"], "trials": 1, "settings": {"steps": 3}}
    records = bench(path, store=tmp_path / "runs", **options)
    roles = [record.run.role for record in records]
    assert (roles.count("base"), roles.count("expert"), roles.count("merged")) == (3, 9, 18)
    assert roles == sorted(roles)
    failing = {**options, "settings": {"steps": 3, "lr": 1e30}, "base_steps": 1}
    assert bench(path, store=tmp_path / "others", **failing) == []
    assert "failed: " in caplog.text
