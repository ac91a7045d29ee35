"""Workers do what the plans of a store lack, each run once, and end."""

import gzip
import time
from dataclasses import replace

import pytest

from afield.compute import hostname
from afield.errors import DataError, SpecError
from afield.runs import work
from afield.runs.record import Failure, Plan, Record
from afield.runs.runner import execute
from afield.runs.store import RemoteStore, Store
from afield.runs.work import Worker, missing_jobs, planned_runs, put_plan
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import plan_run, plan_runs

TARGETS = ("turn0", "turn10", "turn20")


def runs_of(*, steps=10, **settings):
    settings = {"steps": steps, **settings}
    return [plan_run("spirals", "erm", target=t, settings=settings) for t in TARGETS]


def plan_of(runs, **changes):
    keys = tuple(run.key for run in runs)
    return replace(Plan(keys, 0, "afield bench", hostname(), 1, time.time()), **changes)


@pytest.fixture
def runs(store):
    """Three runs, planned in the store."""
    runs = runs_of()
    put_plan(plan_of(runs), runs, store)
    return runs


def keys_of(outcomes):
    return [outcome.run.key for outcome in outcomes]


def test_a_plan_returns_its_runs_as_they_were(store):
    runs = plan_runs(make_benchmark("spirals", methods=["erm", "vrex"], draws=2, trials=2))
    plan = plan_of(runs)
    put_plan(plan, runs, store)
    assert planned_runs(plan, Store(store.root)) == runs


def test_a_worker_does_what_is_missing_and_ends_in_the_same_bytes(store, runs, tmp_path):
    execute(runs[0], store)
    assert keys_of(Worker(store).work()) == [run.key for run in runs[1:]]
    assert list(Worker(store).work()) == []
    for run in runs:
        alone = execute(run, Store(tmp_path / "alone"))
        assert store.get(run).checkpoints == alone.checkpoints
        paths = [
            each.folder(run) / "model.safetensors" for each in (store, Store(tmp_path / "alone"))
        ]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_worker_ends_after_so_many_runs_or_so_long(store, runs):
    assert len(list(Worker(store, runs=1).work())) == 1
    assert list(Worker(store, seconds=0).work()) == []
    assert len(list(Worker(store).work())) == len(runs) - 1


def test_workers_leave_a_claimed_run_to_the_one_that_does_it(store, runs):
    with store.claim(runs[1]):
        assert keys_of(Worker(Store(store.root)).work()) == [runs[0].key, runs[2].key]
    assert keys_of(Worker(store).work()) == [runs[1].key]


def test_a_failed_run_is_left_alone_until_the_command_is_started_again(store):
    runs = runs_of(lr=1e30)[:1]
    put_plan(plan_of(runs), runs, store)
    assert [type(each) for each in Worker(store).work()] == [Failure]
    assert list(Worker(store).work()) == []
    put_plan(plan_of(runs), runs, store)
    assert len(list(Worker(store).work())) == 1


def test_runs_wait_for_those_whose_weights_they_start_from(store, monkeypatch):
    """While another worker does the base, the worker looks again; it does the rest afterwards."""
    words = {"merges": ["average"], "trials": 1, "targets": ["turn0"], "settings": {"steps": 10}}
    runs = plan_runs(make_benchmark("spirals", **words))
    base = next(run for run in runs if run.role == "base")
    put_plan(plan_of(runs), list(reversed(runs)), store)
    claim = store.claim(base)
    claim.__enter__()
    looks = []

    def let_go(seconds):
        looks.append(seconds)
        claim.__exit__(None, None, None)

    monkeypatch.setattr(work.time, "sleep", let_go)
    outcomes = list(Worker(Store(store.root)).work())
    assert len(looks) == 1
    assert all(isinstance(each, Record) for each in outcomes)
    assert sorted(keys_of(outcomes)) == sorted(run.key for run in runs)
    done = keys_of(outcomes)
    assert all(done.index(base.key) < done.index(r.key) for r in runs if r.base == base.key)


def test_rules_of_several_plans_are_evaluated_at_once(store, runs):
    other = [replace(run, rules=("oracle",)) for run in runs[:2]]
    put_plan(plan_of(other, started=time.time() + 1), other, store)
    assert {*missing_jobs(store)[0].run.rules} == {*runs[0].rules, "oracle"}


def test_workers_share_an_address(tmp_path):
    runs = runs_of()
    address = f"file://{tmp_path / 'there'}"
    store = RemoteStore(address)
    store.prepare()
    put_plan(plan_of(runs), runs, store)
    assert sorted(keys_of(Worker(RemoteStore(address)).work())) == sorted(r.key for r in runs)
    assert list(Worker(RemoteStore(address)).work()) == []


def test_plans_that_cannot_be_done_here_are_named(store, runs, caplog):
    many = runs_of(steps=20)
    put_plan(plan_of(many, threads=10_000, command="afield bench many"), many, store)
    assert keys_of(job for job in missing_jobs(store)) == [run.key for run in runs]
    assert "`afield bench many`: needs 10000 threads" in caplog.text
    own = [replace(runs[0], dataset="photos/here", data="abc")]
    list(Worker(store).work())
    put_plan(plan_of(own), own, store)
    with pytest.raises(SpecError, match="needs 10000 threads"):
        missing_jobs(store)
    (store.root / "plans" / f"{plan_of(many).number}.json").unlink()
    with pytest.raises(DataError, match=r"photos/here is not here; start in the folder"):
        missing_jobs(store)


@pytest.mark.parametrize("damage", ["cut", "foreign", "gone"])
def test_damaged_runs_of_a_plan_are_named_and_not_done(store, runs, damage):
    (path,) = store.root.glob("plans/*.runs.jsonl.gz")
    content = gzip.decompress(path.read_bytes())
    changed = {
        "cut": path.read_bytes()[:-20],
        "foreign": gzip.compress(content.replace(b'"steps":10', b'"steps":11')),
    }
    path.write_bytes(changed[damage]) if damage in changed else path.unlink()
    with pytest.raises(DataError, match="start `afield bench` again"):
        missing_jobs(store)
