"""Costs over those of erm on the same domains and trials."""

import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.results import group_records
from afield.reporting.sections import cost_rows, method_costs
from tests.stores import DOMAINS, record, weighed


def costs(records):
    (benchmark,) = group_records(records)
    return {cost.method: cost for cost in method_costs(benchmark, records)}


def test_times_are_medians_of_ratios_on_the_same_task():
    erm = [record(t, [0.5], seconds=s) for t, s in zip(DOMAINS, (1.0, 2.0, 4.0), strict=True)]
    slow = [
        record(t, [0.5], seconds=s, method="slow")
        for t, s in zip(DOMAINS, (2.0, 6.0, 20.0), strict=True)
    ]
    cost = costs([*erm, *slow])["slow"]
    assert (cost.time_ratio, cost.min_time_ratio, cost.max_time_ratio) == (3.0, 2.0, 5.0)
    assert (cost.seconds, cost.runs, cost.memory) == (6.0, 3, 0)
    assert costs([*erm, *slow])["erm"].time_ratio == 1.0


def test_without_erm_there_is_time_but_no_ratio():
    cost = costs([record("art", [0.5], method="vrex", seconds=3.0)])["vrex"]
    assert cost.seconds == 3.0
    assert cost.time_ratio is None


def test_a_merged_model_costs_its_base_and_its_experts():
    base = record("art", [0.5], role="base", seconds=1.0)
    expert = record("art", [0.5], role="expert", base=base.run.key, seconds=10.0)
    fields = {"role": "merged", "base": base.run.key, "experts": (expert.run.key,)}
    merged = record("art", [0.5], method="score", seconds=0.5, **fields)
    alone = record("art", [0.5], method="base", seconds=0.1, **fields)
    by_method = costs([record("art", [0.5], seconds=2.0), base, expert, merged, alone])
    assert by_method["score"].seconds == pytest.approx(11.5)
    assert by_method["score"].time_ratio == pytest.approx(5.75)
    assert by_method["base"].seconds == pytest.approx(1.1)


def test_memory_is_compared_where_it_is_known():
    records = [
        weighed(record("art", [0.5]), 100),
        weighed(record("art", [0.5], method="large"), 300),
        record("photo", [0.5], method="large"),
    ]
    cost = costs(records)["large"]
    assert (cost.memory, cost.memory_ratio) == (300, 3.0)


def test_what_has_seen_the_target_has_no_cost():
    bound = record("art", [0.5], method="target_expert", role="merged", experts=("x",))
    assert set(costs([record("art", [0.5]), bound])) == {"erm"}


def test_bars_are_in_proportion_and_the_most_expensive_is_last():
    seconds = {"slow": 8.0, "erm": 2.0, "quick": 1.0}
    records = [record("art", [0.5], seconds=s, method=m) for m, s in seconds.items()]
    (results,) = group_records(records)
    marks = {name: Mark(name, number) for number, name in enumerate(seconds)}
    rows, reference = cost_rows(results, records, marks)
    assert [(row.method.name, row.bar) for row in rows] == [
        ("quick", 12.5),
        ("erm", 25.0),
        ("slow", 100.0),
    ]
    assert reference == 25.0
    alone = [record("art", [0.5], method="vrex")]
    (results,) = group_records(alone)
    rows, reference = cost_rows(results, alone, {"vrex": Mark("vrex", 0)})
    assert ([row.bar for row in rows], reference) == ([0], 100.0)
