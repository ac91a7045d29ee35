"""Runs that are stopped in the middle, and what must be the same when they continue."""

import multiprocessing
import os
import signal

import pytest

from afield import files
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.sweep import complete


class StopHereError(Exception):
    """Raised in the middle of a run."""


def outcome(store, run):
    """What must be the same: the weights' bytes, further networks' too, and all scores and logs."""
    weights = sorted(store.folder(run).glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in weights}, store.get(run).checkpoints


def interrupt(run, store, *, after, watch=None, **options):
    """Do a run until the checkpoint of a step, with a snapshot of every checkpoint."""

    def stop(run, checkpoint):
        if watch is not None:
            watch(run, checkpoint)
        if checkpoint.step >= after:
            raise StopHereError

    with pytest.raises(StopHereError):
        execute(run, store, snapshot_seconds=0.0, watch=stop, **options)
    assert store.snapshot(run) is not None


def continued_steps(run, store, **options):
    """Do the rest of a run, and return the steps of its checkpoints."""
    steps = []
    execute(run, store, watch=lambda _, checkpoint: steps.append(checkpoint.step), **options)
    return steps


def assert_continues(run, straight, broken, *, stops, before_start=lambda: None, **options):
    """Interrupted after each of these steps, a run ends in the bytes of one in a single go."""
    record = execute(run, straight, **options)
    for after in stops:
        before_start()
        interrupt(run, broken, after=after, **options)
    before_start()
    rest = [each.step for each in record.checkpoints if each.step > stops[-1]]
    assert continued_steps(run, broken, **options) == rest
    assert outcome(broken, run) == outcome(straight, run)
    return record


def kill_while(work, runs, store, *, write):
    """Do runs in another process, which is killed just before it puts this file in place.

    Files are counted from 1, without those that tell how far a run is. What a killed process
    leaves behind depends on these moments only.
    """
    # The fork server has everything imported, so that a child starts at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["afield.runs.runner", "afield.data.datasets.rotated_digits", "torch._dynamo"]
    )
    process = context.Process(target=_die_before, args=(write, work, runs, store))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def do_run(run, store):
    execute(run, store, snapshot_seconds=0.0)


def do_sweep(runs, store):
    list(complete(runs, store, snapshot_seconds=0.0))


def _die_before(write, work, runs, store):
    rename, written = files._rename, []

    def rename_or_die(temporary, path, old):
        if path.name != "progress.json":
            written.append(path)
        if len(written) == write:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(temporary, path, old)

    files._rename = rename_or_die
    work(runs, store)


def assert_a_kill_changes_nothing(run, reference, folder, *, write):
    """Killed before this file was put in place and started again, a run ends in the same bytes."""
    store = Store(folder)
    kill_while(do_run, run, store, write=write)
    assert store.get(run) is None
    assert (store.snapshot(run) is not None) == (write > 1)
    execute(run, store)
    assert outcome(store, run) == outcome(reference, run)
    assert not list(store.folder(run).glob("*.part"))
