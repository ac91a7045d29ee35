"""Does a broken file ever end in a traceback, a hang or a full memory? Mutate files and read them.

    PYTHONPATH=. python benchmarks/fuzz.py                # 2,000 mutations of each format
    PYTHONPATH=. python benchmarks/fuzz.py --count 200 --only wav   # fewer, of one format

For each format of `fuzz_formats.py`, a valid file is written by afield or by the usual library,
changed at random (bytes flipped, cut, inserted and repeated; values of JSON exchanged) and read by
the same functions as by the command line. A reader may accept the file, or refuse it with one of
afield's errors, in one line. Anything else is printed with the seed that repeats it, and the exit
code is 1.

Files are read in a process of their own. A file that takes too long is interrupted by an exception
that no reader can mistake for a broken file, or killed from outside if it hangs in native code. The
peak of the memory is measured for every file, and the memory that stays for every format.
"""

import argparse
import contextlib
import ctypes
import gc
import io
import json
import logging
import os
import random
import resource
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afield.errors import AfieldError

ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 2, 10**6, 10**9, 10**30, 1e308, float("nan"), "", "x", "\x1b[2J"),
    *([], {}, [[]], {"a": 1}, "../../x", "a" * 10_000),
]
# Linux: end this process when its parent ends.
PR_SET_PDEATHSIG = 1
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
Read = Callable[[Path], object]


class Hang(BaseException):
    """A file takes too long; not an Exception, because readers turn those into refusals."""


@dataclass(frozen=True)
class Format:
    """A file that is mutated, the function that reads it, and the errors it may raise."""

    file: Path
    read: Read
    errors: tuple[type[Exception], ...] = (AfieldError,)
    is_json: bool = False


@dataclass(frozen=True)
class Limits:
    """What one file may take: seconds, and bytes of memory; `kept` is what may stay of all files.

    `seconds` are of the processor, because the machine may be busy, and `wall` of the clock, for
    readers that wait. A process that does not answer for `grace` more seconds is killed. Memory is
    limited to `address` bytes more than the process has, to protect the machine.
    """

    seconds: float = 5.0
    wall: float = 60.0
    grace: float = 60.0
    memory: int = 2**30
    kept: int = 2**28
    address: int = 6 * 2**30
    warm_up: int = 50


def mutate(content: bytes, draw: random.Random, *, is_json: bool) -> bytes:
    """Change a few places of a file."""
    if is_json and draw.random() < 0.7:
        tree = json.loads(content)
        for _ in range(draw.randint(1, 2)):
            exchange_value(tree, draw)
        return json.dumps(tree).encode()
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = draw.randrange(256)
        elif kind == 1:
            del changed[place : place + draw.choice((1, 4, 1000, len(changed)))]
        elif kind == 2:
            changed[place:place] = draw.randbytes(draw.choice((1, 4, 64)))
        else:
            changed[place:place] = changed[place : place + draw.choice((4, 64, 1000))]
    return bytes(changed)


def exchange_value(tree: Any, draw: random.Random) -> None:
    """Replace or remove one value somewhere in a tree of JSON."""
    while isinstance(tree, dict | list) and tree:
        key = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        if draw.random() < 0.3 or not isinstance(tree[key], dict | list) or not tree[key]:
            if draw.random() < 0.2:
                del tree[key]
            else:
                tree[key] = draw.choice(ODD_VALUES)
            return
        tree = tree[key]


@contextlib.contextmanager
def time_limit(limits: Limits) -> Iterator[list[str]]:
    """Raise `Hang` after the seconds of a file, and again if it is swallowed; yield the reasons."""
    raised: list[str] = []

    def stop(number: int, frame: object) -> None:
        del frame
        seconds = limits.seconds if number == signal.SIGPROF else limits.wall
        raised.append(f"no answer after {seconds:g} seconds")
        raise Hang(raised[0])

    timers = {
        signal.ITIMER_PROF: (signal.SIGPROF, limits.seconds),
        signal.ITIMER_REAL: (signal.SIGALRM, limits.wall),
    }
    for timer, (number, seconds) in timers.items():
        signal.signal(number, stop)
        signal.setitimer(timer, seconds, 0.2)
    try:
        yield raised
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)


def memory(name: str) -> int:
    """A line of the process's status in bytes: VmRSS is the memory now, VmHWM its peak."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def attempt(form: Format, content: bytes, limits: Limits) -> str:
    """Read a mutated file; return what went wrong, or nothing."""
    # A new file, because a reader may still have the last one mapped into memory.
    form.file.unlink(missing_ok=True)
    form.file.write_bytes(content)
    CLEAR_REFS.write_text("5")
    before, problem, raised = memory("VmRSS"), "", list[str]()
    try:
        with time_limit(limits) as raised, contextlib.redirect_stderr(io.StringIO()):
            form.read(form.file)
    except Hang:
        pass
    except form.errors as error:
        if isinstance(error, AfieldError) and "\n" in str(error):
            problem = f"several lines: {str(error)[:100]!r}"
    except BaseException as error:  # noqa: BLE001  this is what is looked for
        problem = f"{type(error).__name__}: {error}"
    grown = memory("VmHWM") - before
    # Also if the reader has swallowed the exception.
    problem = raised[0] if raised else problem
    if not problem and grown > limits.memory:
        problem = f"took {grown / 2**20:.0f} MB of memory"
    return " ".join(problem.split())


def work(form: Format, name: str, seed: int, numbers: range, limits: Limits, pipe: int) -> None:
    """Read the mutations of these numbers; write a line before and after each."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    total = memory("VmSize") + limits.address
    resource.setrlimit(resource.RLIMIT_AS, (total, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # What was there before the first file is not looked at again.
    gc.freeze()
    original, kept = form.file.read_bytes(), 0
    for number in numbers:
        draw = random.Random(f"{seed} {name} {number}")
        os.write(pipe, f"{number}\n".encode())
        problem = attempt(form, mutate(original, draw, is_json=form.is_json), limits)
        if number - numbers.start == limits.warm_up:
            kept = _settled_memory()
        elif kept and not problem and memory("VmRSS") > kept + limits.kept:
            now = _settled_memory()
            if now > kept + limits.kept:
                problem, kept = f"{(now - kept) / 2**20:.0f} MB of memory stay", now
        os.write(pipe, f"{number}\t{problem[:300]}\n".encode(errors="replace"))
    form.file.write_bytes(original)


def _settled_memory() -> int:
    """Memory of the process, without what is only waiting to be freed."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return memory("VmRSS")


def fuzz(
    form: Format, name: str, *, count: int, seed: int = 0, limits: Limits | None = None
) -> list[str]:
    """Read mutations of a format in another process; return a line for every problem."""
    limits, problems, start = limits or Limits(), [], 0
    original = form.file.read_bytes()
    while start < count:
        reading, writing = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.close(reading)
            with contextlib.suppress(BaseException):
                work(form, name, seed, range(start, count), limits, writing)
                os._exit(0)
            os._exit(1)
        os.close(writing)
        number, ending = _follow(reading, problems, limits)
        if ending == "hang":
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reading)
        start = count if number is None else number + 1
        if ending == "hang":
            problems.append(f"mutation {number}: hangs in native code")
        elif status and number is not None:
            problems.append(f"mutation {number}: the process ended with {status}")
        form.file.unlink(missing_ok=True)
        form.file.write_bytes(original)
    return problems


def _follow(pipe: int, problems: list[str], limits: Limits) -> tuple[int | None, str]:
    """Collect problems until the process ends or hangs; return the number that it was at."""
    buffer, current = b"", None
    while True:
        ready, _, _ = select.select([pipe], [], [], limits.wall + limits.grace)
        if not ready:
            return current, "hang"
        chunk = os.read(pipe, 2**16)
        if not chunk:
            return current, "end"
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            number, tab, problem = line.decode(errors="replace").partition("\t")
            current = None if tab else int(number)
            if problem:
                problems.append(f"mutation {number}: {problem}")


def main() -> None:
    """Mutate every format and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="formats, separated by commas")
    asked = parser.parse_args()
    import torch
    from fuzz_formats import formats

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = {name for name in asked.only.split(",") if name}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AFIELD_CACHE"] = f"{folder}/cache"
        every = formats(Path(folder))
        unknown = chosen - every.keys()
        if unknown:
            parser.error(f"no format {', '.join(sorted(unknown))}; there are {', '.join(every)}")
        for name, form in every.items():
            if chosen and name not in chosen:
                continue
            problems = fuzz(form, name, count=asked.count, seed=asked.seed)
            print(f"{name}: {asked.count} mutations, {len(problems)} problems")
            print("".join(f"  {line}\n" for line in problems[:5]), end="", flush=True)
            wrong += len(problems)
    print(f"{wrong} problems")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
