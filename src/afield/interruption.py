"""Signals that ask a command to stop, and training that stops at a checkpoint with a snapshot.

The first SIGTERM or SIGINT ends most work at once. Training is left alone until its next checkpoint
(`postponed`), where it writes a snapshot and raises `Interrupted`; if the checkpoint does not come
within `GRACE_SECONDS`, the run will continue from its last snapshot. A second signal ends the
process in any case. Without `handle_signals`, as in a notebook, Python's own handlers stay.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long to wait for the next checkpoint, and for workers that wait for theirs.
GRACE_SECONDS = 6.0
WORKER_SECONDS = GRACE_SECONDS + 2.0

# The signal that asked this process to stop, or 0; and whether training will look at it.
_received = 0
_postponed = False


class Interrupted(SystemExit):
    """The process was asked to stop; the exit code is 128 and the number of the signal."""


def requested() -> int:
    """The exit code of a process that was asked to stop, or 0."""
    return _received and 128 + _received


def stop_if_requested() -> None:
    """Raise `Interrupted` if this process was asked to stop."""
    if _received:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Interrupted(requested())


def request(number: int = signal.SIGTERM) -> None:
    """Ask this process to stop, as the signal of this number does."""
    global _received  # noqa: PLW0603  signals are those of the process
    _received = number


@contextmanager
def postponed() -> Iterator[None]:
    """Let signals wait inside the block, which calls `stop_if_requested` when it can stop."""
    global _postponed  # noqa: PLW0603
    outer, _postponed = _postponed, threading.current_thread() is threading.main_thread()
    try:
        yield
    finally:
        _postponed = outer


def handle_signals(announce: Callable[[], None]) -> None:
    """Stop this process at SIGINT and SIGTERM; `announce` says so, once."""

    def stop(number: int, _: FrameType | None) -> None:
        if _received:
            # Workers notice that this process has ended, and end as well.
            os._exit(128 + number)
        request(number)
        announce()
        if _postponed:
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        else:
            stop_if_requested()

    for number in SIGNALS:
        signal.signal(number, stop)
    signal.signal(signal.SIGALRM, lambda *_: stop_if_requested())


def handle_signals_in_worker() -> None:
    """Stop the training of a worker at SIGTERM; its parent ends what is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: request(number))
