"""The progress of benchmarks, read from their store, on this or another machine.

>>> format_duration(75)
'1 min'
>>> format_duration(7500)
'2 h 5 min'
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from afield.compute import is_alive
from afield.runs.record import Failure, Plan, Progress
from afield.runs.store import Store


@dataclass(frozen=True)
class Status:
    """The progress of a plan: how many runs are done, and which are running or have failed.

    `stopped` runs were started by a process that has ended; they continue when the command is
    started again. `process_alive` tells whether the process of the plan is running; None means
    unknown.
    """

    plan: Plan
    done: int
    running: tuple[Progress, ...]
    stopped: tuple[Progress, ...]
    failed: tuple[Failure, ...]
    process_alive: bool | None

    @property
    def total(self) -> int:
        """The number of runs."""
        return len(self.plan.keys)

    @property
    def remaining(self) -> int:
        """The number of runs that have neither finished nor failed."""
        return self.total - self.done - len(self.failed)

    @property
    def has_started(self) -> bool:
        """Whether any run has started since the plan was made."""
        ended = self.done + len(self.failed) - self.plan.known
        return bool(ended or self.running or self.stopped)

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end, from the speed so far; None at first."""
        parts = sum(progress.step / progress.run.steps for progress in self.running)
        new = self.done + len(self.failed) - self.plan.known + parts
        rest = self.total - self.plan.known - new
        # Before a run is finished, the time is mostly that of starting up.
        if new < 1:
            return None
        return (time.time() - self.plan.started) * max(0.0, rest) / new


@dataclass(frozen=True)
class _Contents:
    """What a store holds about the progress of runs, from one scan."""

    done: set[str]
    progress: Sequence[Progress]
    failures: Sequence[Failure]


class PlanWatcher:
    """Reads the progress of a plan again and again, which is cheap also in a large store.

    It looks at the runs of the plan only, and no more at those that were finished the last time.
    """

    def __init__(self, store: Store, plan: Plan) -> None:
        self.store, self.plan = store, plan
        self._done: set[str] = set()

    def read(self) -> Status:
        """The present progress."""
        begun = self.store.begun(self.plan.keys)
        # The folder of a finished run may have been removed.
        known = self._done & begun
        self._done = known | self.store.done(begun - known)
        others = begun - self._done
        contents = _Contents(self._done, self.store.progress(others), self.store.failures(others))
        return _status(self.plan, contents)


def plan_status(store: Store, plan: Plan) -> Status:
    """The present progress of a plan."""
    return PlanWatcher(store, plan).read()


def _status(plan: Plan, contents: _Contents) -> Status:
    keys = set(plan.keys)
    done = contents.done & keys
    unfinished = keys - done
    begun = [each for each in contents.progress if each.run.key in unfinished]
    # Runs that failed before the plan was made are repeated, so they count as waiting.
    waiting = unfinished - {each.run.key for each in begun}
    failed = [
        each for each in contents.failures if each.run.key in waiting and each.at >= plan.started
    ]
    running = [is_alive(each.host, each.pid) is not False for each in begun]
    return Status(
        plan=plan,
        done=len(done),
        running=tuple(each for each, runs in zip(begun, running, strict=True) if runs),
        stopped=tuple(each for each, runs in zip(begun, running, strict=True) if not runs),
        failed=tuple(failed),
        process_alive=is_alive(plan.host, plan.pid),
    )


def statuses(store: Store) -> list[Status]:
    """The progress of every plan in a store, the latest last."""
    contents = _Contents(store.done(), store.progress(), store.failures())
    return [_status(plan, contents) for plan in store.plans()]


def format_duration(seconds: float) -> str:
    """A duration as text, rounded as an estimate deserves.

    >>> [format_duration(each) for each in (0.2, 42, 61, 3599, 3600, 100_000)]
    ['1 s', '42 s', '1 min', '59 min', '1 h', '27 h 46 min']
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" + f" {minutes % 60} min" * bool(minutes % 60)
