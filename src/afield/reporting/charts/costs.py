"""Costs of methods: time and memory of their runs, and relative to erm on the same domains.

A merged model also costs what its base and its experts cost, and a model that starts from another
or adapts it costs what that one costs, where the store has their records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from afield.reporting.charts.axes import Mark
from afield.reporting.comparison import references
from afield.reporting.results import Results
from afield.runs.record import Record

BASE_METHOD = "base"


@dataclass(frozen=True)
class Cost:
    """The cost of a method.

    Attributes
    ----------
    method
        The label of its row.
    runs
        The number of its runs.
    seconds
        The median time of a run.
    memory
        The peak memory of any run in bytes; 0 if unknown.
    time_ratio, min_time_ratio, max_time_ratio
        Median and range of the time relative to the matching run of erm; None without any.
    memory_ratio
        Median of the memory relative to the matching run of erm; None without any.
    """

    method: str
    runs: int
    seconds: float
    memory: int
    time_ratio: float | None = None
    min_time_ratio: float | None = None
    max_time_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class CostRow:
    """A method, its cost, and the length of its bar in percent."""

    method: Mark
    cost: Cost
    bar: float


def cost_rows(
    results: Results, records: Sequence[Record], marks: Mapping[str, Mark]
) -> tuple[list[CostRow], float]:
    """The costs with a bar each, the most expensive last, and where bars of the reference end."""
    costs = method_costs(results, records)
    longest = max((cost.time_ratio for cost in costs if cost.time_ratio), default=1.0)
    # Costs without a ratio come last.
    costs.sort(key=lambda c: (c.time_ratio is None, c.time_ratio or 0.0, c.seconds))
    bars = [round(100 * c.time_ratio / longest, 2) if c.time_ratio else 0 for c in costs]
    rows = [CostRow(marks[c.method], c, bar) for c, bar in zip(costs, bars, strict=True)]
    return rows, round(100 / max(longest, 1.0), 2)


def method_costs(results: Results, records: Iterable[Record]) -> list[Cost]:
    """The cost of every method; `records` are all of the store, with bases and experts."""
    by_key = {record.run.key: record for record in records}
    against = references(results)
    costs = []
    for method, method_records in results.methods.items():
        if not results.rows[method].is_bound:
            # The reference is compared with itself.
            other = against.get(method, method if method in against.values() else "")
            costs.append(_cost(method, method_records, results.methods.get(other, []), by_key))
    return costs


def _cost(
    method: str,
    records: Sequence[Record],
    reference: Sequence[Record],
    by_key: Mapping[str, Record],
) -> Cost:
    by_task = {_task(record): record for record in reference}
    pairs = [(each, by_task[_task(each)]) for each in records if _task(each) in by_task]
    times = [_seconds(one, by_key) / _seconds(two, by_key) for one, two in pairs if two.seconds > 0]
    memory_ratios = [
        _memory(one) / _memory(two) for one, two in pairs if _memory(one) and _memory(two)
    ]
    return Cost(
        method=method,
        runs=len(records),
        seconds=median(_seconds(record, by_key) for record in records),
        memory=max((_memory(record) for record in records), default=0),
        time_ratio=median(times) if times else None,
        min_time_ratio=min(times, default=None),
        max_time_ratio=max(times, default=None),
        memory_ratio=median(memory_ratios) if memory_ratios else None,
    )


def _task(record: Record) -> tuple[object, ...]:
    """The task of a run; runs of different methods can be compared on the same task."""
    run = record.run
    # The draws of a merge are of its own settings, with the same experts.
    return run.sources, run.trial, 0 if run.experts else run.draw


def _seconds(record: Record, by_key: Mapping[str, Record]) -> float:
    """The time of a run and of the runs that it is made of."""
    run = record.run
    # The row of the base is the base itself, although its record names the experts as well; the
    # base of an adapted run has counted them already.
    alone = run.method == BASE_METHOD or run.adaptation
    made_of = (run.base,) if alone else (run.base, *run.experts)
    known = [by_key[key] for key in made_of if key in by_key]
    if run.adaptation:
        return record.seconds + sum(_seconds(other, by_key) for other in known)
    return record.seconds + sum(other.seconds for other in known)


def _memory(record: Record) -> int:
    return int(getattr(record, "memory", 0))
