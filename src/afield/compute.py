"""Processes, devices, and the global state of torch that a computation must not disturb.

Functions import torch themselves, so that processes and files can be looked at without it.
"""

import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from afield.errors import SpecError

if TYPE_CHECKING:
    import torch


MAX_PID = 2**31 - 1
# Options of glibc's allocator, and their values in bytes. Freed memory up to the first value stays
# with the process. Blocks up to the second value come from the heap, so that the next step reuses
# them, and the heap grows by at least the third.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
MALLOC_OPTIONS = {
    _M_TRIM_THRESHOLD: 2**31 - 1,
    _M_MMAP_THRESHOLD: 64 * 2**20,
    _M_TOP_PAD: 16 * 2**20,
}
# Linux only: the peak of this process's memory, and where writing "5" resets it.
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def end_with_parent() -> None:
    """End this worker when its parent process ends, and leave Ctrl-C to the parent.

    Without this, the workers of a killed process would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def pause_cycle_search() -> Iterator[None]:
    """Pause Python's search for unused objects that refer to each other (`gc`).

    While the records of a large store are read, it finds nothing and takes a sixth of the time.
    All other objects are freed as usual.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_freed_memory() -> bool:
    """Let glibc keep the memory that a training step frees; return whether it does so.

    As it is, glibc returns large tensors to the system after a step, and the system clears the
    same pages again in the next one. This is for processes that are afield's own: its commands
    and workers. Without glibc, nothing happens.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  absent in other C libraries
        return all(library.mallopt(option, value) for option, value in MALLOC_OPTIONS.items())
    except (AttributeError, OSError, TypeError):
        return False


def usable_cores() -> int:
    """Number of cores this process may use; all of them if the system sets no limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hostname() -> str:
    """Name of this machine."""
    return socket.gethostname()


def is_alive(machine: str, pid: int) -> bool | None:
    """Whether a process is alive; None if it runs on another machine or on Windows."""
    if machine != hostname() or os.name == "nt":
        return None
    if not 0 < pid <= MAX_PID:  # 0 and negative numbers would address groups of processes
        return False
    try:
        # Signal 0 is not delivered; it only reports whether the process exists.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def default_device() -> str:
    """Name of the fastest device available: cuda or cpu."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def find_device(name: str | None) -> "torch.device":
    """The device of a name, by default the fastest one; one that is not here is refused."""
    import torch

    try:
        device = torch.device(name or default_device())
    except RuntimeError:
        raise SpecError(f"device={name}: no such device; use cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SpecError(f"device={name}: this machine has no such GPU; use cpu")
    return device


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, each as a value of CUDA_VISIBLE_DEVICES."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",")] if given else map(str, range(count))
    return tuple(names)[:count]


@contextmanager
def preserve_torch_state(threads: int | None = None, *, cuda: bool = True) -> Iterator[None]:
    """Run with `threads` threads; restore the caller's RNG state and thread count afterwards.

    None keeps the number of threads. ``cuda=False`` is for work on the CPU: it leaves the
    generators of GPUs alone, because reading their state would initialize every GPU.
    """
    import torch

    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if cuda else 0)):
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads is not None:
                torch.set_num_threads(before)


@contextmanager
def deterministic(threads: int, *, inexact: bool = False) -> Iterator[None]:
    """Run with `threads` threads, deterministic kernels and float32; restore all of it afterwards.

    The caller's RNG state is restored too. If `inexact` is true, a GPU may use its fastest kernels,
    which do not repeat bit for bit.
    """
    import torch

    dtype, strict = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    has_cuda = torch.cuda.device_count() > 0
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with preserve_torch_state(threads):
        torch.set_default_dtype(torch.float32)
        # Without a GPU there is nothing to do, and the call would import torch's compiler.
        exact = has_cuda and not inexact and not strict
        if exact:
            torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            with _fastest_kernels() if inexact else nullcontext():
                yield
        finally:
            torch.set_default_dtype(dtype)
            if exact:
                torch.use_deterministic_algorithms(mode=False)


@contextmanager
def _fastest_kernels() -> Iterator[None]:
    """Let cuDNN try its kernels and keep the fastest, and multiply matrices in TF32."""
    import torch

    cudnn = torch.backends.cudnn
    before, cudnn.benchmark = cudnn.benchmark, True
    try:
        with matrix_products(tf32=True):
            yield
    finally:
        cudnn.benchmark = before


@contextmanager
def matrix_products(*, tf32: bool) -> Iterator[None]:
    """Multiply float32 matrices on a GPU in TF32, or in float32."""
    import torch

    matmul = torch.backends.cuda.matmul
    # Early versions of torch have a switch instead of names.
    is_named = hasattr(matmul, "fp32_precision")
    name, values = (
        ("fp32_precision", ("ieee", "tf32")) if is_named else ("allow_tf32", (False, True))
    )
    before = getattr(matmul, name)
    setattr(matmul, name, values[tf32])
    try:
        yield
    finally:
        setattr(matmul, name, before)


def machine_memory() -> int:
    """Memory of this machine in bytes; 16 GB if the system does not report it."""
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 16 * 2**30


@contextmanager
def track_peak_memory(device: "torch.device") -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak memory since then, in bytes; 0 if unknown."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: torch.cuda.max_memory_allocated(device)
    else:
        with suppress(OSError):
            _CLEAR_REFS.write_text("5")
        yield _peak_process_memory


def _peak_process_memory() -> int:
    """Peak memory of this process in bytes; 0 if the system does not report it."""
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0
