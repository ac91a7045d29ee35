"""Waiting for other processes and threads, however busy the machine is."""

import subprocess
import time
from collections.abc import Callable

# Only what hangs takes so long.
HANG_SECONDS = 600.0


def wait_until(
    is_done: Callable[[], object], *, process: subprocess.Popen[str] | None = None
) -> None:
    """Return as soon as `is_done` does; a process that it depends on must not end before."""
    end = time.monotonic() + HANG_SECONDS
    while not is_done():
        assert process is None or process.poll() is None, "the process ended too early"
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
