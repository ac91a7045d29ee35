"""Runs that stop in the middle, and what must be the same when they go on."""

import pytest

from afield.runs.runner import execute


class StopHereError(Exception):
    """Raised in the middle of a run."""


def outcome(store, run):
    """What must be the same: the weights' bytes, further networks' too, and all scores and logs."""
    files = sorted(store.folder(run).glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}, store.get(run).checkpoints


def interrupted(run, store, *, after):
    def watch(_, checkpoint):
        if checkpoint.step >= after:
            raise StopHereError

    with pytest.raises(StopHereError):
        execute(run, store, snapshot_seconds=0.0, watch=watch)
