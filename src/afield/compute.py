"""Processes: those that work for another one, whether one lives, and what memory it took."""

import multiprocessing
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

__all__ = [
    "end_with_parent",
    "hostname",
    "is_alive",
    "peak_memory",
    "reset_peak_memory",
    "usable_cores",
]

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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


def hostname() -> str:
    """The name of this machine."""
    return socket.gethostname()


def is_alive(machine: str, pid: int) -> bool | None:
    """Whether a process is there; of another machine's nothing is known, or on Windows."""
    if machine != hostname() or os.name == "nt":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def reset_peak_memory() -> None:
    """Let `peak_memory` be that from here on, where the system can do so (Linux)."""
    with suppress(OSError):
        _REFERENCES.write_text("5")


def peak_memory() -> int:
    """The most memory that this process has had, in bytes; 0 where the system does not say."""
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0
