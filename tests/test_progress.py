"""Progress is reported to the listener that is there, and to nobody else."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from afield.cli import console
from afield.progress import Advance, progress, report_progress_to, track

Reports = list[tuple[str, int | None] | int | str]


def listening_to(reports: Reports):
    @contextmanager
    def listener(what: str, total: int | None) -> Iterator[Advance]:
        reports.append((what, total))
        try:
            yield reports.append
        finally:
            reports.append("end")

    return listener


@pytest.fixture
def reports() -> Reports:
    return []


def test_items_pass_unchanged_when_nobody_listens(capsys):
    assert list(track(iter("abc"), "letters", 3)) == ["a", "b", "c"]
    with progress("bytes") as advance:
        advance(7)
    assert capsys.readouterr() == ("", "")


def test_a_listener_hears_what_how_many_and_how_far(reports):
    with report_progress_to(listening_to(reports)):
        assert list(track("ab", "letters", 2)) == ["a", "b"]
        with progress("bytes", None) as advance:
            advance(1 << 20)
    assert reports == [("letters", 2), 1, 2, "end", ("bytes", None), 1 << 20, "end"]


def test_an_item_counts_as_done_only_after_its_turn(reports):
    with report_progress_to(listening_to(reports)):
        items = track("ab", "letters", 2)
        next(items)
        assert reports == [("letters", 2)]
        next(items)
        assert reports == [("letters", 2), 1]


def test_a_failure_on_the_way_ends_the_showing(reports):
    with report_progress_to(listening_to(reports)), pytest.raises(ZeroDivisionError):
        list(track((1 // n for n in (1, 0)), "quotients", 2))
    assert reports == [("quotients", 2), 1, "end"]


def test_after_the_block_the_former_listener_is_back():
    outer: Reports = []
    inner: Reports = []
    with report_progress_to(listening_to(outer)):
        with report_progress_to(listening_to(inner)), progress("one", 1):
            pass
        with progress("two", 2):
            pass
    with progress("three", 3):
        pass
    assert inner == [("one", 1), "end"]
    assert outer == [("two", 2), "end"]


def test_other_threads_do_not_disturb_the_listener(reports):
    with report_progress_to(listening_to(reports)):
        thread = Thread(target=lambda: list(track("ab", "letters", 2)))
        thread.start()
        thread.join()
    assert reports == []


def test_the_bar_of_the_command_line_is_a_listener():
    with report_progress_to(console.progress_bar):
        assert list(track("ab", "letters", 2)) == ["a", "b"]
        with progress("bytes") as advance:
            advance(5)
