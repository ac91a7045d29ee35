"""The same run in DomainBed and in afield: CPU time, processes and memory of both.

    python benchmarks/domainbed.py PATH_OF_DOMAINBED [--dataset ColoredMNIST] [--steps 200]
        [--data FOLDER] [--python PYTHON_OF_DOMAINBED] [--threads 1]

PATH_OF_DOMAINBED is a clone of github.com/facebookresearch/DomainBed; it is not installed here.
Both train ERM with the same network, batch size, learning rate, number of steps, checkpoints and
threads, and leave out the same domain. The data are in one folder, as DomainBed expects them
(--data, AFIELD_DATA by default). DomainBed's ResNet starts from the weights of torchvision, which
it downloads, and ours from random ones; that does not change what a step costs.

CPU time is that of all processes. Memory is the sum over all processes of what belongs to each
(proportional set size), at its peak; it is sampled every fifth of a second, like the number of
processes. The last line is DomainBed over afield.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from afield.data.lookup import find_dataset

SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Case:
    """A dataset in both programs, with settings that are equal in both."""

    name: str
    backbone: str
    batch: int
    lr: float
    target: int
    hparams: tuple[tuple[str, object], ...] = ()


CASES = {
    "ColoredMNIST": Case("colored_mnist", "small:mnist_cnn", 64, 1e-3, 2),
    "RotatedMNIST": Case("rotated_mnist", "small:mnist_cnn", 64, 1e-3, 0),
    "PACS": Case("pacs", "torchvision:resnet18", 32, 5e-5, 3, (("resnet18", True),)),
}


@dataclass
class Usage:
    """What a program and its children used."""

    seconds: float = 0.0
    wall: float = 0.0
    processes: int = 0
    memory: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.seconds:8.1f} CPU s {self.wall:8.1f} s {self.processes:3} processes "
            f"{self.memory:6.2f} GB"
        )


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in family(int(child)))]


def memory(pid: int) -> float:
    """The share of memory that belongs to a process, in GB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("Pss:")), 0.0)


def observe(command: list[str], folder: Path, threads: int) -> Usage:
    """Run a program to its end and watch it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    usage, started = Usage(), time.monotonic()
    with (Path(tempfile.gettempdir()) / "domainbed-benchmark.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        while True:
            pid, status, resources = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            pids = family(process.pid)
            usage.processes = max(usage.processes, len(pids))
            usage.memory = max(usage.memory, sum(map(memory, pids)))
            time.sleep(SAMPLE_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{command[0]}: ended with status {process.returncode}; see {log.name}")
    usage.seconds = resources.ru_utime + resources.ru_stime
    usage.wall = time.monotonic() - started
    return usage


def domainbed_command(args: argparse.Namespace, case: Case, out: Path) -> list[str]:
    """The run in DomainBed."""
    hparams = {"batch_size": case.batch, "lr": case.lr, "weight_decay": 0.0, **dict(case.hparams)}
    hparams |= json.loads(args.hparams)
    words = {
        "data_dir": args.data,
        "output_dir": out,
        "algorithm": "ERM",
        "dataset": args.dataset,
        "test_envs": case.target,
        "steps": args.steps,
        "checkpoint_freq": args.every,
        "hparams": json.dumps(hparams),
    }
    options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    return [args.python, "-m", "domainbed.scripts.train", *options]


def afield_command(args: argparse.Namespace, case: Case, out: Path) -> list[str]:
    """The run in afield."""
    target = find_dataset(case.name, Path(args.data)).domains[case.target]
    settings = {
        "steps": args.steps,
        "every": args.every,
        "batch": case.batch,
        "lr": case.lr,
        "weight_decay": 0.0,
        "backbone": case.backbone,
        "weights": "none",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    words += ["--target", target, "--store", str(out), "--threads", str(args.threads)]
    script = "import sys; sys.argv[0] = 'afield'; from afield.cli import main; main()"
    return [sys.executable, "-c", script, "train", case.name, "erm", *words]


def main() -> None:
    """Run both and print what they used."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("domainbed", type=Path, help="A clone of DomainBed.")
    parser.add_argument("--dataset", choices=CASES, default="ColoredMNIST")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=100, help="Steps between checkpoints.")
    parser.add_argument("--data", default=os.environ.get("AFIELD_DATA", "data"))
    parser.add_argument("--python", default=sys.executable, help="Python with DomainBed's needs.")
    parser.add_argument("--hparams", default="{}", help="More hyperparameters for DomainBed.")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if not (args.domainbed / "domainbed" / "scripts" / "train.py").exists():
        parser.error(f"{args.domainbed}: no domainbed/scripts/train.py; give a clone of DomainBed")
    args.data = str(Path(args.data).resolve())
    # Programs start in other folders. A link is not followed: it may be that of an environment.
    args.python = os.path.abspath(shutil.which(args.python) or args.python)  # noqa: PTH100
    os.environ["AFIELD_DATA"] = args.data
    case = CASES[args.dataset]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        # The first run decodes the images, which a sweep does once.
        observe(afield_command(args, case, out / "first"), out, args.threads)
        theirs = observe(
            domainbed_command(args, case, out / "theirs"), args.domainbed, args.threads
        )
        print(f"DomainBed {theirs}", flush=True)
        ours = observe(afield_command(args, case, out / "ours"), out, args.threads)
        print(f"afield    {ours}")
    print(
        f"DomainBed over afield: CPU time {theirs.seconds / ours.seconds:.2f}, "
        f"memory {theirs.memory / ours.memory:.2f}"
    )


if __name__ == "__main__":
    main()
