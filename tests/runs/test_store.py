"""Stores in folders and at addresses: nothing is lost, and what is sent is there for others."""

import errno
import json
import math
import os
import pickle
import re
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from afield.errors import DataError, SpecError
from afield.reporting.benchmarking import bench
from afield.runs.pools.local import Local
from afield.runs.record import Failure, Plan, Progress, Record
from afield.runs.run import Run
from afield.runs.run_files import read_record, read_run_weights
from afield.runs.runner import execute
from afield.runs.store import BusyError, RemoteStore, Store, fetch_run, open_store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from afield.training.scores import Checkpoint, Score, Scores
from tests.runs.interruption import continued_steps, interrupt
from tests.runs.records import RUN, put, record_of

PARTS = {"domain.weight": torch.arange(6.0).view(2, 3).T, "domain.count": torch.tensor(3)}


def test_a_record_comes_back_as_it_was(tmp_path):
    store, record = Store(tmp_path), record_of()
    put(store, record)
    assert store.get(RUN) == record
    assert list(store) == [record]
    assert torch.equal(store.weights(RUN)["w"], torch.arange(3.0))
    assert read_record(store.folder(RUN)).run == RUN


def test_a_run_that_is_not_done_has_no_record(store):
    with store.claim(RUN):
        assert store.get(RUN) is None
    assert list(store) == []


def test_a_record_read_for_fewer_rules_does_not_do_for_more(tmp_path):
    store, narrow = Store(tmp_path), replace(RUN, rules=("sources",))
    put(store, record_of(narrow))
    assert store.get(narrow) is not None
    assert store.get(replace(RUN, rules=("sources", "target"))) is None
    assert store.with_stored_rules(replace(RUN, rules=("target",))).rules == ("sources", "target")


def test_a_record_is_labelled_as_it_is_asked_for(tmp_path):
    store, labelled = Store(tmp_path), replace(RUN, given={"steps": 300})
    put(store, record_of())
    assert store.get(labelled).run == labelled


def test_a_success_removes_failure_and_snapshot(store):
    store.put_failure(Failure(RUN, "no luck", "trace"))
    assert [failure.error for failure in store.failures()] == ["no luck"]
    store.put_snapshot(RUN, {"x": torch.ones(2)}, record_of().checkpoints)
    put(store, record_of())
    assert store.failures() == []
    assert store.snapshot(RUN) is None


def test_a_snapshot_comes_back_as_it_was(tmp_path):
    store, done = Store(tmp_path), record_of().checkpoints
    with store.claim(RUN):
        store.put_snapshot(RUN, {"x": torch.ones(2), "n": [1, {"deep": 2.5}]}, done)
        state, checkpoints = store.snapshot(RUN)
    assert torch.equal(state["x"], torch.ones(2))
    assert state["n"] == [1, {"deep": 2.5}]
    assert tuple(checkpoints) == done


def test_a_snapshot_that_would_run_code_is_refused(store, capsys):
    class Evil:
        def __reduce__(self):
            return print, ("pwned",)

    with store.claim(RUN):
        torch.save({"checkpoints": "[]", "evil": Evil()}, store.folder(RUN) / "snapshot.pt")
        assert store.snapshot(RUN) is None
    assert "pwned" not in capsys.readouterr().out


def test_only_one_at_a_time_may_claim_a_run(store, tmp_path):
    with store.claim(RUN), pytest.raises(BusyError), Store(tmp_path).claim(RUN, wait=False):
        pass
    with store.claim(RUN, wait=False):
        pass


def test_what_a_killed_process_left_half_written_is_cleared_away(store):
    folder = store.folder(RUN)
    folder.mkdir()
    (folder / "record.json.123.part").write_text("{half")
    with store.claim(RUN):
        assert not list(folder.glob("*.part"))
    assert store.get(RUN) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": {}}'])
def test_a_broken_record_is_named_and_its_run_counts_as_not_done(store, content, caplog):
    put(store, record_of())
    path = store.folder(RUN) / "record.json"
    path.write_text(content)
    assert store.get(RUN) is None
    assert str(path) in caplog.text
    with pytest.raises(DataError, match=re.escape(str(path))):
        read_record(path.parent)


def test_a_record_that_contradicts_itself_is_left_out_by_name(tmp_path, caplog):
    store, good = Store(tmp_path), record_of()
    (checkpoint,) = good.checkpoints
    scores = dict(checkpoint.scores)
    impossible = {**scores, "a": Scores(probe=Score(math.nan, 0.5, 1.0, 10))}
    contradictions = {
        "has no checkpoint": (),
        "no checkpoint that may be picked": (replace(checkpoint, deployed=False),),
        "no scores of domain": (replace(checkpoint, scores={"c": scores["c"]}),),
        "impossible accuracy on 'a'": (replace(checkpoint, scores=impossible),),
    }
    for trial, checkpoints in enumerate(contradictions.values(), start=1):
        run = replace(RUN, trial=trial)
        put(store, replace(good, run=run, checkpoints=checkpoints))
    put(store, good)
    assert [record.run for record in store] == [RUN]
    for message in contradictions:
        assert message in caplog.text


@pytest.mark.parametrize("precision", ["nope", "__init__", 3, None, ["fp16"], {}])
def test_a_record_of_a_precision_that_does_not_exist_is_left_out_by_name(
    tmp_path, caplog, precision
):
    store, other = Store(tmp_path), replace(RUN, trial=7)
    put(store, record_of())
    put(store, record_of(other))
    path = store.folder(other) / "record.json"
    content = json.loads(path.read_text())
    content["run"]["precision"] = precision
    path.write_text(json.dumps(content))
    assert [record.run for record in Store(tmp_path)] == [RUN]
    assert str(path) in caplog.text


def test_a_record_holds_its_whole_run(store):
    put(store, record_of())
    result = json.loads((store.folder(RUN) / "record.json").read_text())
    # What is None is not written, so that records stay as they were before it was added.
    unset = {"folder", "encoder", "images", "tune", "columns"}
    assert set(result["run"]) == set(Run.__dataclass_fields__) - unset


def test_weights_that_are_not_there_or_broken_are_named(store):
    with pytest.raises(DataError, match="no readable weights"):
        store.weights(RUN)
    put(store, record_of())
    (store.folder(RUN) / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DataError, match="no readable weights"):
        store.weights(RUN)


def test_a_store_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SpecError, match="cannot write"), Store(tmp_path / "file").claim(RUN):
        pass


def test_a_folder_without_a_record_is_a_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"no record\.json"):
        read_record(tmp_path)


def test_numbers_that_are_not_finite_come_back(store):
    scores = {**record_of().checkpoints[0].scores, "c": Scores(Score(0.5, 0.5, math.inf, 10))}
    record = replace(record_of(), checkpoints=(Checkpoint(1, scores, {"loss": -math.inf}),))
    put(store, record)
    assert store.get(RUN) == record


def test_a_failure_does_not_come_after_a_success(store):
    put(store, record_of())
    store.put_failure(Failure(RUN, "too late", "trace"))
    assert store.failures() == []


@pytest.mark.parametrize("place", [0, 60, -80, -1])
def test_a_snapshot_in_which_one_byte_was_changed_is_not_used(store, place, caplog):
    with store.claim(RUN):
        store.put_snapshot(RUN, {"x": torch.ones(9)}, record_of().checkpoints)
        path = store.folder(RUN) / "snapshot.pt"
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        assert store.snapshot(RUN) is None
    assert "changed since it was written" in caplog.text


def test_a_snapshot_that_is_a_pipe_is_not_read(store):
    with store.claim(RUN):
        os.mkfifo(store.folder(RUN) / "snapshot.pt")
        assert store.snapshot(RUN) is None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_reported_before_any_run(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(SpecError, match=r"refuses locks.*another file system"):
        Store(tmp_path / "store").prepare()


@pytest.mark.parametrize("place", ["s3://", "s3:///", "gs://", "s3:/bucket", "s3:/", "s3:"])
def test_an_address_without_a_place_makes_no_folder(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="s3://bucket/runs"):
        open_store(place)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"PK", b"garbage" * 100])
def test_a_run_does_not_continue_from_a_broken_snapshot(store, content, caplog):
    with store.claim(RUN):
        (store.folder(RUN) / "snapshot.pt").write_bytes(content)
        assert store.snapshot(RUN) is None
    assert "not a readable snapshot" in caplog.text


def test_one_broken_record_does_not_hide_the_others(tmp_path, caplog):
    store, other = Store(tmp_path), replace(RUN, trial=1)
    put(store, record_of())
    put(store, record_of(other))
    (store.folder(RUN) / "record.json").write_text("{half")
    assert [record.run for record in store] == [other]
    assert RUN.key in caplog.text


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path, caplog):
    store, other = Store(tmp_path), replace(RUN, trial=1)
    put(store, record_of(other))
    # Root may read all files, but no folder as one.
    (store.folder(RUN) / "record.json").mkdir(parents=True)
    assert [record.run for record in store] == [other]
    assert "record.json: cannot be read (Is a directory)" in caplog.text


def test_where_a_record_is_wrong_is_reported(store):
    put(store, record_of(RUN))
    path = store.folder(RUN) / "record.json"
    content = json.loads(path.read_text())
    for wrong, where in (([1], "the whole file"), (content | {"seconds": "long"}, "seconds")):
        path.write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=rf"not a record of afield \({where}: "):
            read_record(path.parent)


def test_weights_say_how_their_inputs_are_made(store):
    with store.claim(RUN):
        store.put(record_of(), {"w": torch.ones(1)}, inputs={"classes": ["x", "y"], "mean": [0.5]})
    with safe_open(store.folder(RUN) / "model.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["afield"])
    assert metadata == {"run": RUN.key, "classes": ["x", "y"], "mean": [0.5]}


MERGING = ("lr_schedule", "clip_norm", "role", "base", "experts", "freeze_head")


@pytest.mark.parametrize(
    ("of_run", "of_checkpoints"), [(MERGING, ()), (("optimizer",), ("deployed",))]
)
def test_a_record_from_before_is_read_with_what_was_usual_then(of_run, of_checkpoints, store):
    put(store, record_of())
    path = store.folder(RUN) / "record.json"
    content = json.loads(path.read_text())
    for name in of_run:
        del content["run"][name]
    for checkpoint in content["checkpoints"]:
        for name in of_checkpoints:
            del checkpoint[name]
    path.write_text(json.dumps(content))
    assert store.get(RUN) == record_of()
    assert store.get(RUN).candidates == record_of().checkpoints


def test_whether_a_checkpoint_is_deployed_comes_back(store):
    (last,) = record_of().checkpoints
    earlier = replace(last, step=5, deployed=False)
    record = replace(record_of(), checkpoints=(earlier, last))
    put(store, record)
    assert store.get(RUN) == record
    assert store.get(RUN).candidates == (last,)
    other = replace(RUN, trial=1)
    with store.claim(other):
        store.put_snapshot(other, {}, record.checkpoints)
        _, result = store.snapshot(other)
    assert tuple(result) == record.checkpoints


def test_the_weights_of_further_networks_come_back_beside_the_model(store):
    with store.claim(RUN):
        store.put(record_of(), {"w": torch.arange(3.0)}, parts=PARTS)
    result = read_run_weights(store.folder(RUN), "parts")
    assert set(result) == set(PARTS)
    assert all(torch.equal(result[name], PARTS[name]) for name in PARTS)
    assert set(read_run_weights(store.folder(RUN))) == set(store.weights(RUN)) == {"w"}


@pytest.mark.parametrize("parts", [None, {}])
def test_without_further_networks_there_is_no_file_of_them(store, parts):
    with store.claim(RUN):
        store.put(record_of(), {"w": torch.arange(3.0)}, parts=parts)
    assert not (store.folder(RUN) / "parts.safetensors").exists()
    with pytest.raises(DataError, match=r"parts\.safetensors: no readable weights"):
        read_run_weights(store.folder(RUN), "parts")


def test_further_networks_are_there_before_the_run_is_done(tmp_path, monkeypatch):
    store, written = Store(tmp_path), []
    replaced = Path.replace

    def watched(self, target):
        written.append(Path(target).name)
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    with store.claim(RUN):
        store.put(record_of(), {"w": torch.arange(3.0)}, parts=PARTS)
    assert sorted(written[:2]) == ["model.safetensors", "parts.safetensors"]
    assert written[2:] == ["record.json"]


def test_unused_domains_come_back_with_the_record(tmp_path):
    store, run = Store(tmp_path), replace(RUN, tested=("c",), unused=("d", "e"))
    put(store, record_of(run))
    assert read_record(store.folder(run)).run == run
    assert store.get(run).run.unused == ("d", "e")


def test_a_record_from_before_confidence_can_be_read_and_an_unread_one_takes_no_room(store):
    put(store, record_of())
    assert "calibration_error" not in (store.folder(RUN) / "record.json").read_text()
    assert store.get(RUN).checkpoints[0].score("c", "main").calibration_error is None
    looked = Score(0.25, 0.25, 3.0, 40, calibration_error=0.1, accuracy_at_90=0.3)
    other = replace(RUN, trial=1)
    scores = {**record_of().checkpoints[0].scores, "c": Scores(looked)}
    put(store, replace(record_of(other), checkpoints=(Checkpoint(1, scores, {}),)))
    assert store.get(other).checkpoints[0].score("c", "main") == looked


def test_what_a_killed_process_left_beside_a_finished_run_is_removed(store, tmp_path):
    put(store, record_of())
    folder = store.folder(RUN)
    written = (folder / "record.json").stat().st_mtime
    for name, age in (("snapshot.pt", 1), ("progress.json", 1), ("failure.json", -1)):
        (folder / name).touch()
        os.utime(folder / name, (written - age, written - age))
    (tmp_path / "report.html.0a0a0a-1-1-0a0a0a0a.part").touch()
    os.utime(tmp_path / "report.html.0a0a0a-1-1-0a0a0a0a.part", (0, 0))
    store.prepare()
    left = {path.name for path in folder.iterdir()} - {"lock", "record.json", "model.safetensors"}
    assert left == {"failure.json"}
    assert not list(tmp_path.glob("*.part"))


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
