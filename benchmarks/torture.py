"""Kills, crowds and full disks: runs end in the same bytes, and nothing is left behind.

    PYTHONPATH=. python benchmarks/torture.py            # 100 kills
    PYTHONPATH=. python benchmarks/torture.py --kills 20 --seed 1

Prints one line for each group and exits with 1 if one of them failed:

    kills       runs of every method and every weight average, killed (kill -9) at random moments
                and started again, until they end; their weights must be those of a straight run
    crowd       four processes work on one store at the same time; every run is done once
    containers  four processes with process numbers of their own (unshare) start a benchmark on one
                store; all end well, and nothing temporary is left anywhere in the store
    full disk   the disk fills up in the middle of a benchmark; what was finished stays, no part of
                a file is left, and the benchmark goes on when there is room again
"""

import argparse
import hashlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import torch

from afield import registry
from afield.errors import AfieldError
from afield.runs import execute
from afield.runs.pools.local import Local
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.protocols import leave_one_out

SETTINGS = {"steps": 24, "every": 4}
# For methods that need images: fewer samples, so that a run takes a second.
IMAGES = {**SETTINGS, "limit": 4, "batch": 4}
DISK_BYTES = 3 * 2**20


def in_child(work: Callable[[], object]) -> int:
    """Start work in a forked process and return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  printed, since the process ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended_well(pid: int) -> bool:
    """Wait for a child and return whether it ended without an error."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fingerprint(store: Store, run: Run) -> str:
    """Digest of all weights of a run, and of its scores."""
    digest = hashlib.sha256(repr(store.get(run).checkpoints).encode())  # type: ignore[union-attr]
    for file in sorted(store.folder(run).glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def planned(method: str, average: str) -> Run | None:
    """A short run, on images if the method needs them; None if it needs pretrained weights."""
    tries = (("spirals", "turn0", SETTINGS), ("rotated_digits", "0deg", IMAGES))
    for dataset, target, settings in tries:
        try:
            return plan_run(dataset, method, target=target, average=average, settings=settings)
        except AfieldError:
            continue
    return None


def kill_runs(folder: Path, kills: int, draw: random.Random) -> tuple[str, bool]:
    """Kill runs at random moments; compare what they end in with straight runs."""
    averages = [name for name in registry.names("averages") if name != "last"]
    pairs = [(name, "last") for name in registry.names("methods")]
    pairs += [("erm", name) for name in averages]
    runs = [run for pair in pairs if (run := planned(*pair))]
    done = same = total = 0
    straight = Store(folder / "straight")
    for number in count():
        run = runs[number % len(runs)]
        if done >= kills and number >= len(runs):
            break
        started = time.monotonic()
        assert ended_well(in_child(partial(execute, run, straight)))
        seconds = time.monotonic() - started if number < len(runs) else 1.0
        killed = Store(folder / f"killed{number // len(runs)}")
        for _ in range(2 if kills > len(runs) else 1):
            pid = in_child(partial(execute, run, killed, snapshot_seconds=0.0))
            time.sleep(draw.uniform(0, max(0.2, seconds)))
            os.kill(pid, signal.SIGKILL)
            done += not ended_well(pid)
        assert ended_well(in_child(partial(execute, run, killed, snapshot_seconds=0.0)))
        total += 1
        same += fingerprint(straight, run) == fingerprint(killed, run)
        same -= any(path.is_relative_to(killed.folder(run)) for path in leftovers(killed.root))
    line = f"{done} kills of {total} runs ({len(runs)} methods and averages): {same} of {total} "
    return line + "ended in the same bytes and left nothing behind", same == total


class CountingStore(Store):
    """A store that notes every run that is finished."""

    def put(self, record: Record, *weights: object, **options: object) -> None:
        """Write a record, and a line with its key."""
        super().put(record, *weights, **options)  # type: ignore[arg-type]
        with (self.root / "finished.txt").open("a") as file:
            file.write(record.run.key + "\n")


def crowd(folder: Path) -> tuple[str, bool]:
    """Let four processes complete the same runs in one store."""
    from afield.data.lookup import find_dataset

    runs = leave_one_out(find_dataset("spirals"), ["erm", "vrex"], trials=3, settings=SETTINGS)
    store = CountingStore(folder / "crowd")

    def work() -> None:
        list(complete(runs, store, pool=Local(1)))

    children = [in_child(work) for _ in range(4)]
    endings = [ended_well(pid) for pid in children]
    finished = (store.root / "finished.txt").read_text().split()
    once = len(finished) == len(set(finished)) == len(runs)
    return f"4 processes, {len(runs)} runs: {len(finished)} trainings", all(endings) and once


def containers(folder: Path) -> tuple[str, bool]:
    """Let processes of different PID namespaces run one benchmark in one store."""
    store = folder / "containers"
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        return "skipped: unshare needs root", True
    command = [*alone, sys.executable, "-c", "from afield.cli.app import main; main()", "bench"]
    command += ["spirals", "--methods", "erm,vrex", "--trials", "2", "--steps", "24", "--quiet"]
    command += ["--workers", "1", "--store", str(store)]
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    errors = [process.communicate()[1] for process in started]
    codes = [process.returncode for process in started]
    left = leftovers(store)
    records = len(list(store.glob("*/record.json")))
    line = f"4 namespaces, {records} runs: exit codes {codes}, {len(left)} temporary files left"
    good = not any(codes) and not left and records > 0 and (store / "report.html").exists()
    return line + "".join(f"; {text.strip()[-200:]}" for text in errors if text and not good), good


def leftovers(store: Path) -> list[Path]:
    """What only a running process may have in a store."""
    temporary = ("progress.json", "snapshot.pt")
    return [
        path
        for path in store.rglob("*")
        if path.suffix in (".part", ".old") or path.name in temporary
    ]


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path, Callable[[], None], str]]:
    """A folder that fills up, and a function that makes room; a limit where none can be mounted."""
    place = folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode == 0:
        grow = ["mount", "-o", "remount,size=1g", str(place)]
        try:
            yield place, lambda: subprocess.run(grow, check=True) and None, "tmpfs"
        finally:
            subprocess.run(["umount", str(place)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before), "file-size limit"


def full_disk(folder: Path) -> tuple[str, bool]:
    """Run a benchmark on a disk that is too small, then with room."""
    command = [sys.executable, "-c", "from afield.cli.app import main; main()", "bench", "spirals"]
    command += ["--methods", "erm,dann", "--steps", "24", "--workers", "1", "--quiet"]
    command += ["--set", "every=4", "--set", "backbone=small:mlp", "--trials", "6"]
    with small_disk(folder) as (place, make_room, how):
        store = place / "runs"
        filled = subprocess.run(
            [*command, "--store", str(store)], capture_output=True, text=True, check=False
        )
        parts = [*place.rglob("*.part"), *place.rglob("*.old")]
        finished = len(list(store.glob("*/record.json")))
        make_room()
        again = subprocess.run(
            [*command, "--store", str(store)], capture_output=True, text=True, check=False
        )
        complete_after = len(list(store.glob("*/record.json")))
    good = filled.returncode in (1, 2) and again.returncode == 0 and not parts
    good = good and "Traceback" not in filled.stderr + again.stderr and finished < complete_after
    return (
        f"{how}: {finished} runs finished, {len(parts)} parts left, {complete_after} runs after "
        "there was room",
        good,
    )


def main() -> None:
    """Run all groups and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kills, crowd, containers or full disk")
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    wrong = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        groups = {
            "kills": partial(kill_runs, folder, asked.kills, random.Random(asked.seed)),
            "crowd": partial(crowd, folder),
            "containers": partial(containers, folder),
            "full disk": partial(full_disk, folder),
        }
        for title, group in groups.items():
            if asked.only not in ("", title):
                continue
            line, good = group()
            print(f"{title}: {'ok' if good else 'FAILED'}: {line}", flush=True)
            wrong |= not good
    sys.exit(wrong)


if __name__ == "__main__":
    main()
