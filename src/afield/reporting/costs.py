"""What methods cost: time and memory of their runs, over those of erm's on the same domains.

A merged model costs what its base and its experts have cost as well, where their records are there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from afield.experiments.record import Record
from afield.reporting.comparison import references
from afield.reporting.results import UPPER_BOUND, Results

__all__ = ["Cost", "method_costs"]

BASE_METHOD = "base"


@dataclass(frozen=True)
class Cost:
    """The median run of a method: its seconds, its bytes at the most (0: unknown), its ratios.

    Ratios are medians over the runs that erm has done as well; None where there is none.
    """

    method: str
    runs: int
    seconds: float
    memory: int
    times: float | None = None
    min_time_ratio: float | None = None
    most: float | None = None
    memory_ratio: float | None = None


def method_costs(results: Results, records: Iterable[Record]) -> list[Cost]:
    """The cost of every method; `records` are all of the store, with bases and experts."""
    known = {record.run.key: record for record in records}
    against = references(results)
    found = []
    for method, own in results.methods.items():
        if not method.startswith(UPPER_BOUND):
            # The reference is weighed against itself.
            other = against.get(method, method if method in against.values() else "")
            found.append(_cost(method, own, results.methods.get(other, []), known))
    return found


def _cost(
    method: str, own: Sequence[Record], other: Sequence[Record], known: Mapping[str, Record]
) -> Cost:
    rivals = {_task(record): record for record in other}
    pairs = [(each, rivals[_task(each)]) for each in own if _task(each) in rivals]
    times = [_seconds(one, known) / _seconds(two, known) for one, two in pairs if two.seconds > 0]
    room = [_memory(one) / _memory(two) for one, two in pairs if _memory(one) and _memory(two)]
    memory = [_memory(record) for record in own if _memory(record)]
    return Cost(
        method=method,
        runs=len(own),
        seconds=median(_seconds(record, known) for record in own),
        memory=max(memory, default=0),
        times=median(times) if times else None,
        min_time_ratio=min(times, default=None),
        most=max(times, default=None),
        memory_ratio=median(room) if room else None,
    )


def _task(record: Record) -> tuple[object, ...]:
    """What two runs of different methods share when one can be weighed against the other."""
    run = record.run
    # A merge has draws of its own settings, with the same experts.
    return run.sources, run.trial, 0 if run.experts else run.draw


def _seconds(record: Record, known: Mapping[str, Record]) -> float:
    """The time of a run, and of the runs that it is made of."""
    run = record.run
    # The row of the base is the base itself; its experts stand in its record all the same.
    made_of = (run.base,) if run.method == BASE_METHOD else (run.base, *run.experts)
    return record.seconds + sum(known[key].seconds for key in made_of if key in known)


def _memory(record: Record) -> int:
    return int(getattr(record, "memory", 0))
