"""The fuzzer can fail: hangs, growths, leaks, crashes and tracebacks that are planted are found."""

import importlib.util
import itertools
import json
import mmap
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from afield.errors import DataError

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fuzz"]


@pytest.fixture
def problems(fuzz, tmp_path):
    """The problems that are found when a reader reads a few mutations."""
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"a": [1, 2, {"b": "text"}], "c": 0.5}))
    sizes = {"memory": 60 * MEGABYTE, "kept": 20 * MEGABYTE}
    limits = fuzz.Limits(seconds=0.5, wall=4.0, grace=3.0, warm_up=2, **sizes)

    def find(read, count=3):
        form = fuzz.Format(file, read, is_json=True)
        before = file.read_bytes()
        found = fuzz.fuzz(form, "planted", count=count, limits=limits)
        assert file.read_bytes() == before
        return found

    return find


def refuse(path):
    raise DataError(f"{path}: not what it should be")


def test_what_is_read_or_refused_in_one_line_is_no_problem(problems):
    assert problems(Path.read_bytes, 10) == []
    assert problems(refuse, 10) == []


def test_a_hang_is_found_although_readers_refuse_on_any_exception(problems):
    def hang(path):
        try:
            while True:
                pass
        except Exception:  # noqa: BLE001  as readers of broken files do
            refuse(path)

    found = problems(hang)
    assert len(found) == 3
    assert all("no answer after" in line for line in found)


def test_a_hang_in_native_code_is_killed_and_named(problems):
    def hang(path):
        sum(itertools.repeat(0))  # does not return to Python, so no signal is handled

    assert problems(hang, 1) == ["mutation 0: hangs in native code"]


def test_a_reader_that_waits_for_ever_is_found(problems, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert problems(lambda path: (tmp_path / "pipe").read_bytes(), 1) == [
        "mutation 0: no answer after 4 seconds"
    ]


def test_a_hang_that_swallows_even_the_interruption_is_found(problems):
    def slow(path):
        with suppress(BaseException):
            while True:
                pass

    assert len(problems(slow)) == 3


def test_a_growth_is_found_after_a_larger_one_that_was_allowed(problems, fuzz):
    def grow(path):
        # Not from the heap, which may hold as much that is free already.
        with mmap.mmap(-1, 100 * MEGABYTE) as block:
            block.write(bytes(100 * MEGABYTE))

    found = problems(grow)
    assert len(found) == 3
    assert all("MB of memory" in line for line in found)


def test_a_leak_is_found_although_every_file_takes_little(problems):
    kept = []

    def leak(path):
        kept.append(bytearray(os.urandom(3 * MEGABYTE)))

    found = problems(leak, 20)
    assert 1 <= len(found) <= 3
    assert "MB of memory stay" in found[0]
    assert problems(lambda path: bytearray(os.urandom(3 * MEGABYTE)), 20) == []


def test_a_crash_is_found_and_the_others_are_still_read(problems, tmp_path):
    log = tmp_path / "log"

    def crash(path):
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    (found,) = problems(crash, 5)
    assert found.startswith("mutation 1: the process ended with")
    assert log.stat().st_size == 5


def test_tracebacks_and_messages_of_several_lines_are_found(problems):
    def several(path):
        raise DataError("one\ntwo")

    assert problems(lambda path: {}[1], 1) == ["mutation 0: KeyError: 1"]
    assert problems(several, 1) == ["mutation 0: several lines: 'one\\ntwo'"]
    assert problems(lambda path: sys.exit(0), 1) == ["mutation 0: SystemExit: 0"]


def test_mutations_repeat_themselves_and_differ(fuzz):
    content = b'{"a": [1, 2], "b": {"c": "text"}}'
    for is_json in (True, False):
        made = [
            [fuzz.mutate(content, random.Random(n), is_json=is_json) for n in range(30)]
            for _ in range(2)
        ]
        assert made[0] == made[1]
        assert len(set(made[0])) > 15
