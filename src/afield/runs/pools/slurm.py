"""Jobs of a Slurm cluster.

A benchmark is planned where the command is started. One array job then runs ``afield work`` on the
store, which all nodes share: each task does missing runs until none is left. No process stays
behind, and nothing is pickled. Before its time limit, and before it is preempted, a task gets
SIGTERM, writes a snapshot and ends.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afield import own_code
from afield.errors import SpecError
from afield.runs.pool import Item, Result
from afield.runs.record import Plan
from afield.runs.store import RemoteStore, Store

__all__ = ["Slurm"]

# What the value of an option may consist of: it becomes a line of a script.
VALUE = re.compile(r"[\w.:,/=@+*\[\]%&|()-]*")
# Seconds before the time limit at which a task is asked to stop.
WARNING_SECONDS = 60
# Seconds to wait for an answer of Slurm.
ANSWER_SECONDS = 60
# Options whose names in Slurm are others.
NAMES = {"cpus": "cpus-per-task"}


@dataclass(frozen=True)
class Slurm:
    """An array job of Slurm.

    Parameters
    ----------
    partition, account, qos, constraint, time, mem, gpus
        Options of ``sbatch`` of the same names, for each task; empty leaves them to the cluster.
    cpus
        CPUs per task; by default the threads of a run.
    array
        The largest number of tasks, which work at the same time.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    time: str = ""
    mem: str = ""
    gpus: str = ""
    cpus: int = 1
    array: int = 8

    def __post_init__(self) -> None:
        if min(self.cpus, self.array) < 1:
            raise SpecError(f"slurm: cpus={self.cpus}, array={self.array}: must be at least 1")
        for name, value in vars(self).items():
            if not VALUE.fullmatch(str(value)):
                raise SpecError(f"slurm: {name}={value!r}: not an option of sbatch")

    @classmethod
    def suited(
        cls, *, threads: int, workers: int | None, cpus: float | None, gpus: float, **_: Any
    ) -> dict[str, Any]:
        """By default as many CPUs per task as a run has threads."""
        if workers is not None:
            raise SpecError("--workers is for processes of this machine; use --on slurm:array=N")
        if gpus != int(gpus) or (cpus is not None and cpus != int(cpus)):
            raise SpecError("--cpus and --gpus are whole numbers on Slurm")
        return {"cpus": int(cpus or threads), "gpus": str(int(gpus)) if gpus else ""}

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Raise `SpecError` if there is anything to do: jobs return nothing to this process."""
        del function, on_lost
        if list(items):
            raise SpecError(
                "--on slurm is for `afield bench` and `afield recipe run`, which return with the "
                "number of a job; leave out --on to train here"
            )
        yield from ()

    def script(self, store: Store, plan: Plan, active: int = 0) -> str:
        """The script of an array job that does what the plan lacks, beside `active` tasks."""
        tasks = min(self.array, len(plan.keys) - plan.known) - active
        given = {name: value for name, value in vars(self).items() if value and name != "array"}
        lines = {
            "job-name": job_name(plan),
            "array": f"0-{tasks - 1}",
            **{NAMES.get(name, name): value for name, value in given.items()},
            "chdir": shlex.quote(str(Path.cwd())),
            "output": shlex.quote(f"{_log_folder(store)}/slurm-%A_%a.log"),
            "open-mode": "append",
            "signal": f"B:TERM@{WARNING_SECONDS}",
        }
        directives = [f"#SBATCH --{name}={value}" for name, value in lines.items()]
        head = ["#!/bin/bash", *directives, "#SBATCH --requeue"]
        return "\n".join([*head, f"exec {_work_command(store)}", ""])

    def write_script(self, store: Store, plan: Plan, active: int = 0) -> str:
        """Write the script into the store, beside which the tasks write their logs; return it."""
        script = self.script(store, plan, active)
        store.put_file(f"slurm/{plan.number}.sh", script.encode())
        return script

    def submit(self, store: Store, plan: Plan) -> str:
        """Submit a job for what the plan lacks, and say so; not more tasks than there are runs."""
        missing = len(plan.keys) - plan.known
        active = sum(active_tasks(plan).values())
        tasks = min(self.array, missing) - active
        if active and tasks <= 0:
            return f"{active} tasks of {job_name(plan)} are queued or running; nothing to submit"
        script = self.write_script(store, plan, active)
        answer = _ask("sbatch", "--parsable", content=script)
        job = answer.strip().partition(";")[0]
        return (
            f"submitted job {job}: {tasks} tasks for {missing} runs; follow it with "
            f"`afield status {store.where()}`, stop it with `scancel {job}`"
        )


def job_name(plan: Plan) -> str:
    """The name of the jobs of a plan."""
    return f"afield-{plan.number}"


def active_tasks(plan: Plan) -> Counter[str]:
    """The number of tasks of a plan's jobs by their state, such as RUNNING or PENDING."""
    lines = _ask(
        *("squeue", "--me", "--array", "--noheader", "--format=%T", f"--name={job_name(plan)}")
    )
    return Counter(lines.split())


def describe_tasks(store: Store, plan: Plan) -> str:
    """The tasks of a plan that Slurm knows, as text; empty without any."""
    if not store.get_file(f"slurm/{plan.number}.sh").exists() or shutil.which("squeue") is None:
        return ""
    try:
        tasks = active_tasks(plan)
    except SpecError as error:
        return str(error)
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(tasks.items()))
    return f"tasks on Slurm: {counts or 'none'}; logs in {_log_folder(store)}"


def _ask(*words: str, content: str = "") -> str:
    """The answer of a command of Slurm."""
    try:
        done = subprocess.run(
            words, input=content, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
    except FileNotFoundError:
        raise SpecError(
            f"{words[0]} is not on this machine; start the command on a node of a Slurm cluster"
        ) from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"{words[0]}: no answer within {ANSWER_SECONDS} seconds") from None
    except subprocess.CalledProcessError as error:
        reason = " ".join((error.stderr or error.stdout).split())[:300]
        raise SpecError(f"{words[0]} refused ({reason})") from None
    return done.stdout


def _log_folder(store: Store) -> Path:
    """The folder of the logs: in the store, or here if the store is at an address."""
    return Path.cwd() if isinstance(store, RemoteStore) else (store.root / "slurm").absolute()


def _work_command(store: Store) -> str:
    place = store.where() if isinstance(store, RemoteStore) else str(store.root.absolute())
    start = "from afield.cli.app import main; main()"
    return shlex.join([sys.executable, "-c", start, *_code_words(), "work", place])


def _code_words() -> Sequence[str]:
    """The user's own code, as the tasks need it."""
    codes = [code for code in own_code.registered() if code.origin]
    return [word for code in codes for word in ("--code", code.origin)]
