"""How far a long job is, told to whoever listens: the library itself shows nothing."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["Advance", "Listener", "progress", "repeat_every", "report_progress_to", "track"]

T = TypeVar("T")
Advance = Callable[[int], None]
Listener = Callable[[str, int | None], AbstractContextManager[Advance]]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress_to(listener: Listener) -> Iterator[None]:
    """Let this listener show all progress of the block; other threads stay silent."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def progress(what: str, total: int | None = None) -> AbstractContextManager[Advance]:
    """Yields a function that takes how much is done so far, of a total if that is known."""
    listener = _listener.get()
    return listener(what, total) if listener else nullcontext(lambda _: None)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, one by one; each counts as done when the next is asked for."""
    with progress(what, total) as advance:
        for done, item in enumerate(items, start=1):
            yield item
            advance(done)


@contextmanager
def repeat_every(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something again and again, beside the block, with so many seconds between."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
