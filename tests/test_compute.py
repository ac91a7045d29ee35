"""Computations leave the state of torch unchanged, and live processes are distinguished."""

import gc
import mmap
import os
import platform
import subprocess
import sys
from functools import partial

import pytest
import torch

from afield.compute import (
    default_device,
    deterministic,
    find_device,
    hostname,
    is_alive,
    keep_freed_memory,
    pause_cycle_search,
    preserve_torch_state,
    track_peak_memory,
    usable_cores,
    visible_gpus,
)
from afield.errors import SpecError
from tests.waiting import wait_until


def torch_state():
    return (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "guard", [preserve_torch_state, partial(preserve_torch_state, cuda=False), deterministic]
)
def test_threads_type_and_random_state_are_restored(guard, dtype):
    def work():
        assert torch.get_num_threads() == 2
        # Deterministic work is in float32 whatever the caller uses.
        assert torch.ones(1).dtype == (torch.float32 if guard is deterministic else dtype)
        torch.manual_seed(3)
        raise ValueError("stop")

    torch.set_default_dtype(dtype)
    try:
        before = torch_state()
        with pytest.raises(ValueError, match="stop"), guard(2):
            work()
        assert torch_state() == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_a_number_of_threads_it_stays():
    before = torch.get_num_threads()
    with preserve_torch_state():
        assert torch.get_num_threads() == before


def test_a_caller_who_is_strict_stays_so():
    torch.use_deterministic_algorithms(mode=True)
    try:
        with deterministic(1):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_inexact_work_may_use_the_fastest_kernels_and_restores_the_settings():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    is_named = hasattr(matmul, "fp32_precision")
    name, on = ("fp32_precision", "tf32") if is_named else ("allow_tf32", True)
    before = cudnn.benchmark, getattr(matmul, name)
    with deterministic(1, inexact=True):
        assert (cudnn.benchmark, getattr(matmul, name)) == (True, on)
        assert not torch.are_deterministic_algorithms_enabled()
    assert (cudnn.benchmark, getattr(matmul, name)) == before
    with deterministic(1):
        assert not cudnn.benchmark


def test_a_device_that_is_not_here_is_refused_in_one_line():
    assert find_device("cpu") == torch.device("cpu")
    with pytest.raises(SpecError, match="device=gpu7: no such device; use cpu, cuda"):
        find_device("gpu7")
    with pytest.raises(SpecError, match="device=cuda:99: this machine has no such GPU; use cpu"):
        find_device("cuda:99")


def test_gpus_are_named_as_this_process_sees_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")
    assert visible_gpus() == ("4", "GPU-7")


def test_a_process_is_alive_until_it_ends_and_unknown_on_another_machine():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(hostname(), process.pid) is True
    assert is_alive("elsewhere", process.pid) is None
    process.communicate(b"\n")
    assert is_alive(hostname(), process.pid) is False
    assert is_alive(hostname(), os.getpid()) is True


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it")
def test_the_peak_of_memory_is_counted_from_the_start_of_the_block():
    with track_peak_memory(torch.device("cpu")) as peak:
        before = peak()
        # Not from malloc, which may hold freed memory of other tests.
        with mmap.mmap(-1, 64 * 2**20) as block:
            for page in range(0, len(block), mmap.PAGESIZE):
                block[page] = 1
            assert peak() - before > 32 * 2**20


STEPS = """
import hashlib, resource, sys, torch
from afield.compute import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 64)
for step in range(8):
    if step == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print(kept, faults, hashlib.sha256(weights).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_kept_memory_is_used_again_and_changes_no_bytes():
    def trained(how):
        command = [sys.executable, "-c", STEPS, how]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    (kept, few, bytes_kept), (_, many, bytes_before) = trained("keep"), trained("leave")
    assert kept == "True"
    assert bytes_kept == bytes_before
    assert 4 * int(few) < int(many)


def test_another_c_library_is_left_alone(monkeypatch):
    class Musl:
        """Without glibc's functions."""

    def no_handle(_):
        raise TypeError("Windows has no handle of the program itself")

    for library in (lambda _: Musl(), no_handle):
        monkeypatch.setattr("ctypes.CDLL", library)
        assert keep_freed_memory() is False


def test_there_is_a_device_and_a_core():
    assert default_device() in ("cpu", "cuda")
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 10**30])
def test_an_impossible_process_is_not_alive(pid):
    """On POSIX, a signal to -1 would address every process."""
    assert is_alive(hostname(), pid) is False


ORPHAN = """
import multiprocessing, time
from concurrent.futures import ProcessPoolExecutor
from afield.compute import end_with_parent

fork = multiprocessing.get_context("fork")
pool = ProcessPoolExecutor(1, mp_context=fork, initializer=end_with_parent)
pool.submit(time.sleep, 10_000)
print(*pool._processes, flush=True)
time.sleep(10_000)
"""


@pytest.mark.slow
def test_a_worker_ends_with_its_parent():
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    assert is_alive(hostname(), worker)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_alive(hostname(), worker))
    parent.stdout.close()


def test_the_search_for_cycles_is_paused_and_resumed():
    @pause_cycle_search()
    def fail():
        with pause_cycle_search():
            pass
        raise ZeroDivisionError(gc.isenabled())

    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError, match="False"):
        fail()
    assert gc.isenabled()
