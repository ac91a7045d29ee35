"""Stores at addresses: what is sent is there for others, and a mirror never lies."""

import pickle
import uuid
from dataclasses import replace

import pytest
import torch

from afield.errors import DataError, SpecError
from afield.reporting.benchmarking import bench
from afield.runs.pools.local import Local
from afield.runs.record import Failure, Plan, Progress, Record
from afield.runs.run_files import read_record
from afield.runs.runner import execute
from afield.runs.store import RemoteStore, Store, fetch_run, open_store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.runs.interruption import continued_steps, interrupt


@pytest.fixture(params=["memory", "file"])
def address(request, tmp_path):
    place = tmp_path / "there" if request.param == "file" else f"/{uuid.uuid4().hex}/runs"
    return f"{request.param}://{place}"


def other(store):
    """Another process's view of the same address: it has nothing in its mirror."""
    result = RemoteStore(store.address)
    result.root = result.root / uuid.uuid4().hex
    result.root.mkdir()
    return result


def run_of(**settings):
    return plan_run("spirals", "erm", target="turn0", settings={"steps": 10, **settings})


def test_a_folder_is_a_store_and_an_address_a_remote_one(tmp_path):
    assert type(open_store(tmp_path)) is Store
    assert isinstance(open_store("memory://x"), RemoteStore)
    store = Store(tmp_path)
    assert open_store(store) is store


def test_a_record_made_here_is_read_elsewhere(address):
    run, store = run_of(), RemoteStore(address)
    record = execute(run, store)
    there = other(store)
    assert list(there) == [record]
    assert there.get(run) == record
    weights = there.weights(run)
    assert all(torch.equal(value, weights[name]) for name, value in store.weights(run).items())
    names = {path.rpartition("/")[2] for path in store.files.find(f"{store.path}/{run.key}")}
    assert names == {"record.json", "model.safetensors"}


def test_the_weights_are_those_of_a_folder(address, tmp_path):
    run, remote, local = run_of(), RemoteStore(address), Store(tmp_path)
    execute(run, remote)
    execute(run, local)
    sent = remote.files.cat_file(f"{remote.path}/{run.key}/model.safetensors")
    assert sent == (local.folder(run) / "model.safetensors").read_bytes()


def test_another_machine_goes_on_where_one_was_lost(address, tmp_path):
    run, store = run_of(steps=60, every=5), RemoteStore(address)
    interrupt(run, store, after=30)
    there = other(store)
    assert continued_steps(run, there) == [35, 40, 45, 50, 55, 60]
    straight = execute(run, Store(tmp_path / "straight"))
    assert there.get(run).checkpoints == straight.checkpoints
    assert not store.files.exists(f"{store.path}/{run.key}/snapshot.pt")


def test_what_was_removed_there_is_not_believed_here(address):
    run, store = run_of(), RemoteStore(address)
    execute(run, store)
    store.files.rm(f"{store.path}/{run.key}", recursive=True)
    assert store.get(run) is None
    assert list(store) == []
    assert store.done() == set()


def test_what_was_done_again_there_is_read_again(address):
    run, store = run_of(), RemoteStore(address)
    execute(run, store)
    there = other(store)
    assert len(list(there)) == 1
    wider = replace(run, rules=("sources", "left-out-source", "target"))
    execute(wider, store)
    assert there.get(wider) is not None
    assert [set(record.run.rules) for record in there] == [set(wider.rules)]


def test_failures_and_how_far_runs_are_can_be_seen_elsewhere(address):
    run, store = run_of(), RemoteStore(address)
    there = other(store)
    with store.claim(run):
        store.put_progress(Progress(run, ("turn0",), 5, 1.0, "host", 1))
    assert [result.step for result in there.progress()] == [5]
    store.put_failure(Failure(run, "no luck", ""))
    assert [result.error for result in there.failures()] == ["no luck"]
    assert there.progress() == []
    execute(run, store)
    assert there.failures() == []


def test_plans_can_be_seen_elsewhere(address):
    store = RemoteStore(address)
    store.prepare()
    plan = Plan(("a", "b"), 0, "afield bench", "host", 1, 2.0)
    store.put_plan(plan)
    assert other(store).plans() == [plan]


@pytest.mark.slow
def test_a_sweep_with_merged_models_finds_its_experts_there(address):
    options = {"merges": ["average"], "trials": 1, "settings": {"steps": 10}}
    records = bench("spirals", store=address, **options)
    assert {record.run.method for record in records} >= {"average", "logit_ensemble", "base"}
    assert len(list(RemoteStore(address))) == len(records)


@pytest.mark.slow
def test_worker_processes_share_an_address(tmp_path):
    store = RemoteStore(f"file://{tmp_path / 'there'}")
    runs = [
        plan_run("spirals", "erm", target=t, settings={"steps": 10}) for t in ("turn0", "turn10")
    ]
    result = list(complete(runs, store, pool=Local(2)))
    assert all(isinstance(outcome, Record) for outcome in result)
    assert {record.run.key for record in store} == {run.key for run in runs}


def test_a_remote_store_can_be_sent_to_a_worker():
    store = RemoteStore("memory://somewhere/runs")
    assert pickle.loads(pickle.dumps(store)).address == store.address


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"cannot write to file:.*use --store"):
        RemoteStore(f"file://{tmp_path / 'file' / 'below'}").prepare()


def test_an_address_that_nothing_knows_is_a_clear_error():
    with pytest.raises(SpecError, match="nowhere://x: cannot be opened"):
        open_store("nowhere://x")


def test_an_address_that_cannot_be_read_is_a_clear_error(monkeypatch):
    store = RemoteStore("memory://broken/runs")

    class Broken(type(store.files)):
        def glob(self, *_, **__):
            raise RuntimeError("no credentials")

    store.files = Broken()
    with pytest.raises(DataError, match=r"memory://broken/runs: cannot be read \(no credentials\)"):
        list(store)


def test_nothing_half_sent_is_left(address):
    store = RemoteStore(address)
    execute(run_of(), store)
    assert not [path for path in store.files.find(store.path) if path.endswith(".part")]


def unwritable(store, *names):
    """The same store, where no file of these names can be written; its errors are its own."""

    class Broken(type(store.files)):
        def put_file(self, here, there, **options):
            if any(name in there for name in names):
                raise RuntimeError("throttled")
            super().put_file(here, there, **options)

    store.files = Broken()
    return store


def test_a_run_goes_on_where_its_progress_cannot_be_sent():
    store = unwritable(RemoteStore(f"memory://{uuid.uuid4().hex}/runs"), "progress.json")
    assert isinstance(execute(run_of(), store), Record)


def test_a_failure_that_cannot_be_sent_stops_no_other_run(caplog):
    store = unwritable(RemoteStore(f"memory://{uuid.uuid4().hex}/runs"), "failure", "model")
    runs = [run_of(), replace(run_of(), trial=1)]
    outcomes = list(complete(runs, store))
    assert [type(each) for each in outcomes] == [Failure, Failure]
    assert outcomes[0].error == f"{store.address}: cannot be written (throttled)"
    assert "the failure could not be written" in caplog.text


def test_what_another_process_has_removed_meanwhile_is_no_error(address):
    store = RemoteStore(address)

    class Late(type(store.files)):
        def exists(self, *_, **__):
            return True

    store.files = Late()
    assert isinstance(execute(run_of(), store), Record)


def test_a_run_at_an_address_can_be_named_as_one_in_a_folder(address, tmp_path):
    record = execute(run_of(), RemoteStore(address))
    assert read_record(fetch_run(f"{address}/{record.run.key}")) == record
    assert fetch_run(str(tmp_path / "erm-0")) == tmp_path / "erm-0"
    with pytest.raises(DataError, match=r"no record\.json"):
        read_record(fetch_run(f"{address}/erm-0"))
