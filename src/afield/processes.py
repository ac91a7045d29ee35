"""Processes that work for another one."""

import multiprocessing
import os
import signal
import threading

__all__ = ["end_with_parent"]


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
