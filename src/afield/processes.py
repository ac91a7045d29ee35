"""Processes that work for another one."""

import multiprocessing
import os
import signal
import threading

__all__ = ["end_with_parent", "usable_cores"]


def end_with_parent() -> None:
    """A worker ends when its parent does, however that ends; Ctrl-C is the parent's to handle.

    Without this, the workers of a process that is killed would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def usable_cores() -> int:
    """How many cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
