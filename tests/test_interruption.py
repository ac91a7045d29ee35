"""A signal stops training at its next checkpoint, with a snapshot; it ends in the same bytes."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from afield import interruption
from afield.interruption import Interrupted
from afield.runs.store import Store
from tests.waiting import HANG_SECONDS, wait_until

TRAIN = ("train", "spirals", "erm", "--target", "turn10", "--steps")
WHAT = ("spirals", "--methods", "erm", "--trials", "1", "--targets", "turn0,turn10")
BENCH = ("bench", *WHAT, "--workers", "2", "--steps")
# Enough for a signal to come in the middle, and few enough to go on to the end.
STEPS = "1000"


@contextmanager
def started(folder, *words):
    """A command in a process of its own, which ends with the test."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from afield.cli.app import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()


def weights(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/model.safetensors")}


def assert_no_claim_is_left(folder):
    store = Store(folder / "runs")
    for progress in store.progress():
        with store.claim(progress.run, wait=False):
            pass


@pytest.fixture
def asked():
    """This process is asked to stop, until the test ends."""
    interruption.request(signal.SIGTERM)
    yield
    interruption._received = 0


def test_a_request_is_heard_once_and_has_the_exit_code_of_its_signal(asked):
    assert interruption.requested() == 143
    with pytest.raises(Interrupted) as stop:
        interruption.stop_if_requested()
    assert stop.value.code == 143


def test_without_a_request_nothing_stops():
    assert interruption.requested() == 0
    interruption.stop_if_requested()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "number"),
    [(TRAIN, signal.SIGTERM), (BENCH, signal.SIGTERM), (BENCH, signal.SIGINT)],
    ids=["train", "workers", "workers and Ctrl-C"],
)
def test_a_signal_leaves_a_snapshot_and_the_run_ends_in_the_same_bytes(tmp_path, words, number):
    broken, straight = tmp_path / "broken", tmp_path / "straight"
    for folder in (broken, straight):
        folder.mkdir()
    with started(broken, *words, STEPS) as process:
        wait_until(lambda: list(broken.glob("runs/*/progress.json")), process=process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + number
    assert errors.strip().splitlines()[-1] == "stopped; run the same command again to continue"
    assert "Traceback" not in errors
    assert "semaphore" not in errors
    assert list(broken.glob("runs/*/snapshot.pt"))
    assert not list(broken.glob("runs/*/failure.json"))
    assert not list(broken.glob("runs/*/*.part"))
    assert_no_claim_is_left(broken)
    for folder in (broken, straight):
        with started(folder, *words, STEPS) as process:
            _, errors = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0, errors
    assert weights(broken) == weights(straight)


@pytest.mark.slow
def test_a_second_signal_ends_at_once_without_a_traceback(tmp_path):
    """The first one waits for a checkpoint that would not come for a day."""
    with started(tmp_path, *TRAIN, "100000000") as process:
        wait_until(lambda: list(tmp_path.glob("runs/*/progress.json")), process=process)
        process.terminate()
        while not process.stderr.readline().startswith("stopped"):
            assert process.poll() is None
        process.terminate()
        _, errors = process.communicate(timeout=interruption.GRACE_SECONDS)
    assert process.returncode == 143
    assert errors == ""


@pytest.mark.slow
def test_a_worker_that_is_stopped_alone_is_no_failed_run(tmp_path):
    """As when a cluster sends SIGTERM to every process of a job."""
    with started(tmp_path, *BENCH, "1000000") as process:
        wait_until(lambda: list(tmp_path.glob("runs/*/progress.json")), process=process)
        (progress, *_) = Store(tmp_path / "runs").progress()
        os.kill(progress.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("runs/*/failure.json"))
