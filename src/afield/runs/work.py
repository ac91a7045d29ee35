"""Workers: do what is missing in the plans of a store, and end.

A plan keeps its runs beside it (``plans/<number>.runs.jsonl.gz``), so a worker needs nothing but
the store, the data and, if runs use it, the user's own code. Any number of workers may use one
store, on any machines: a run is done by the first that claims it. A run that has failed since its
plan was written is left alone; the command that wrote the plan tries it again.

Workers find what is missing again and again. One that finds only runs that others are doing ends,
unless further runs start from the weights of these.
"""

import gzip
import json
import logging
import os
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from afield import own_code
from afield.data.frames import split_spec
from afield.data.listing import current_listing, dataset_path, listed_once
from afield.errors import AfieldError, DataError, SpecError
from afield.files import check_regular_file
from afield.runs.record import Failure, Plan, Record
from afield.runs.run import Run
from afield.runs.run_files import parse_json
from afield.runs.store import Store
from afield.runs.sweep import attempt

log = logging.getLogger(__name__)
_RUN = TypeAdapter(Run)
# A longer line is not a run, and would exhaust the memory.
MAX_LINE = 2**24
# Seconds between two looks at runs that others are doing and that further runs start from.
POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Job:
    """A run that a plan lacks."""

    run: Run
    plan: Plan

    @property
    def place(self) -> tuple[int, int, int]:
        """Where the run comes in the order of a benchmark."""
        return self.run.order, self.run.trial, self.run.draw


@dataclass
class Worker:
    """Does missing runs one after another.

    Attributes
    ----------
    store
        The store of the plans and records.
    runs, seconds
        The worker starts no run after so many, or after so long; None means without limit.
    """

    store: Store
    runs: int | None = None
    seconds: float | None = None
    _begun: float = field(default_factory=time.monotonic)
    _count: int = 0

    def work(self) -> Iterator[Record | Failure]:
        """Yield the outcomes of the runs that this worker does."""
        self.store.prepare()
        with listed_once():
            yield from self._work()

    def _work(self) -> Iterator[Record | Failure]:
        waiting = {job.run.key: job for job in missing_jobs(self.store)}
        while waiting and not self._is_over():
            before = len(waiting)
            yield from self._pass(waiting)
            if len(waiting) == before:
                if not any(waiting.keys() & _needed(job.run) for job in waiting.values()):
                    return
                time.sleep(POLL_SECONDS)

    def _pass(self, waiting: dict[str, Job]) -> Iterator[Record | Failure]:
        """Do what is free and ready, and take out what is done or has failed."""
        for key, job in list(waiting.items()):
            if self._is_over():
                return
            outcome: Record | Failure | Run = job.run
            if self._is_settled(job):
                del waiting[key]
            elif not waiting.keys() & _needed(job.run):
                outcome = _attempt(job, self.store)
            if not isinstance(outcome, Run):
                del waiting[key]
                self._count += 1
                yield outcome

    def _is_over(self) -> bool:
        if self.runs is not None and self._count >= self.runs:
            return True
        return self.seconds is not None and time.monotonic() - self._begun >= self.seconds

    def _is_settled(self, job: Job) -> bool:
        """Whether another worker has finished the run meanwhile, or has failed."""
        return self.store.get(job.run) is not None or has_failed(job, self.store)


def _attempt(job: Job, store: Store) -> Record | Failure | Run:
    options = {"threads": job.plan.threads, "device": job.plan.device or None}
    listing = current_listing()
    codes = own_code.registered()
    return attempt(job.run, store=store, options=options, codes=codes, listing=listing, wait=False)


def _needed(run: Run) -> set[str]:
    """The keys of the runs from whose weights a run starts."""
    return {*filter(None, [run.base]), *run.made_of}


def has_failed(job: Job, store: Store) -> bool:
    """Whether a run has failed since its plan was written."""
    return any(each.at >= job.plan.started for each in store.failures({job.run.key}))


def missing_jobs(store: Store) -> list[Job]:
    """The runs that plans of a store lack, in the order in which a benchmark does them.

    Plans that cannot be done here are logged; if there are no others, the first reason is raised.
    """
    jobs: dict[str, Job] = {}
    reasons: list[AfieldError] = []
    for plan in store.plans():
        try:
            runs = _missing_runs(plan, store)
            _check_here(plan, runs)
        except AfieldError as error:
            reasons.append(error)
            continue
        for run in runs:
            jobs[run.key] = Job(_joined(run, jobs.get(run.key)), plan)
    if reasons and not jobs:
        raise reasons[0]
    for reason in reasons:
        log.warning("%s", reason)
    found = list(jobs.values())
    if not store.has_claims:
        # Where nobody can claim a run, workers that start together begin with different ones.
        random.SystemRandom().shuffle(found)
    return sorted(found, key=lambda job: job.place)


def _joined(run: Run, job: Job | None) -> Run:
    """The run with all rules for which several plans ask."""
    if job is None:
        return run
    rules = tuple(dict.fromkeys((*job.run.rules, *run.rules)))
    return replace(run, rules=rules, group=run.group or job.run.group)


def _missing_runs(plan: Plan, store: Store) -> list[Run]:
    """The runs of a plan that have no record."""
    if len(store.done(plan.keys)) == len(plan.keys) == plan.known:
        return []
    runs = planned_runs(plan, store)
    return [run for run, record in zip(runs, store.known(runs), strict=True) if record is None]


def _check_here(plan: Plan, runs: Sequence[Run]) -> None:
    """Raise an error if the runs of a plan cannot be done by this process."""
    where = f"`{plan.command}`"
    if runs and plan.threads > (os.cpu_count() or 1):
        raise SpecError(f"{where}: needs {plan.threads} threads; this machine has {os.cpu_count()}")
    for data in {run.dataset for run in runs if run.data and ":" not in run.dataset}:
        path = split_spec(data)[0]
        if dataset_path(path) is None:
            raise DataError(f"{where}: {path} is not here; start in the folder of that command")
    for code in {tuple(run.code.items()) for run in runs if run.code}:
        own_code.check(dict(code), where)


def put_plan(plan: Plan, runs: Sequence[Run], store: Store) -> None:
    """Write a plan, and beside it its runs if any is missing."""
    if plan.known < len(runs):
        lines = b"".join(_line(run) for run in runs)
        store.put_file(_file_name(plan), gzip.compress(lines, compresslevel=1, mtime=0))
    store.put_plan(plan)


def _line(run: Run) -> bytes:
    return json.dumps(_RUN.dump_python(run), separators=(",", ":")).encode() + b"\n"


def planned_runs(plan: Plan, store: Store) -> list[Run]:
    """The runs of a plan."""
    path = store.get_file(_file_name(plan))
    again = f"start `{plan.command}` again"
    if not path.exists():
        raise DataError(f"{path}: this plan is from an earlier version; {again}")
    runs = list(_read_runs(path, again))
    if {run.key for run in runs} != set(plan.keys):
        raise DataError(f"{path}: not the runs of its plan; {again}")
    return runs


def _read_runs(path: Path, advice: str) -> Iterator[Run]:
    try:
        check_regular_file(path)
        with gzip.open(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
                yield parse_json(_RUN, line, f"{path}, line {number}", advice)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: not readable ({reason}); {advice}") from None


def _file_name(plan: Plan) -> str:
    return f"plans/{plan.number}.runs.jsonl.gz"
