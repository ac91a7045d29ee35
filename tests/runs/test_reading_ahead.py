"""Runs whose batches a thread makes during the step before."""

from contextlib import nullcontext

import pytest

from afield.data.stream import Stream
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from tests.runs.interruption import interrupted, outcome


@pytest.mark.slow
def test_a_run_has_the_same_bytes_without_the_thread_and_after_an_interruption(
    two_colours, tmp_path, monkeypatch
):
    settings = {"steps": 6, "every": 2, "size": 112, "augment": "full", "batch": 2}
    settings |= {"backbone": "small:cnn", "seed_category.period": 2}
    run = plan_run(two_colours, "seed_category", settings=settings)
    threads = []
    real = Stream.reading_ahead

    def noted(stream):
        threads.append(stream.samples.take_time)
        return real(stream)

    monkeypatch.setattr(Stream, "reading_ahead", noted)
    stores = [Store(tmp_path / name) for name in ("ahead", "broken", "plain")]
    execute(run, stores[0])
    interrupted(run, stores[1], after=4)
    execute(run, stores[1])
    assert threads == 3 * [True]
    monkeypatch.setattr(Stream, "reading_ahead", lambda _: nullcontext())
    execute(run, stores[2])
    assert outcome(stores[0], run) == outcome(stores[1], run) == outcome(stores[2], run)
