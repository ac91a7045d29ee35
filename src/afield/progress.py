"""Progress of long jobs, reported to a listener; without one, nothing is shown."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Advance = Callable[[int], None]
Listener = Callable[[str, int | None], AbstractContextManager[Advance]]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def report_progress_to(listener: Listener) -> Iterator[None]:
    """Send all progress of the block to this listener; other threads report nothing."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def progress(task: str, total: int | None = None) -> AbstractContextManager[Advance]:
    """Yield a function to call with the amount done so far; `total` is None if unknown."""
    listener = _listener.get()
    return listener(task, total) if listener else nullcontext(lambda _: None)


@contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[None]:
    """Show bars in a notebook or on a terminal inside the block, unless there is a listener.

    With `quiet`, nothing is shown, not even by functions that show their progress themselves.
    """
    if quiet:
        with report_progress_to(lambda *_: nullcontext(lambda _: None)):
            yield
    elif _listener.get() is None and _has_reader():
        with report_progress_to(_bar):
            yield
    else:
        yield


def _has_reader() -> bool:
    """Whether somebody reads what is shown now: in a notebook, or on a terminal."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


@contextmanager
def _bar(task: str, total: int | None) -> Iterator[Advance]:
    import warnings

    with warnings.catch_warnings():
        # Without ipywidgets, the bars of notebooks are lines of text.
        warnings.filterwarnings("ignore", message="IProgress not found")
        from tqdm.auto import tqdm

        bar = tqdm(desc=task, total=total, leave=False)

    def advance(done: int) -> None:
        bar.update(done - bar.n)

    with bar:
        yield advance


def track(items: Iterable[T], task: str, total: int | None = None) -> Iterator[T]:
    """Iterate over the items and report progress; an item is done when the next is requested."""
    with progress(task, total) as advance:
        for done, item in enumerate(items, start=1):
            yield item
            advance(done)


@contextmanager
def repeat_every(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` seconds in another thread while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
