"""The picture of accuracy against cost has a point for each row whose cost is known."""

from dataclasses import replace
from pathlib import Path

from afield.reporting.charts.network_costs import build_network_costs
from afield.reporting.page import write_report
from afield.reporting.results import group_records
from afield.reporting.sections import make_marks
from afield.reporting.table import tabulate_results
from afield.runs.store import Store
from tests.reporting.tables import benchmark

SMALL, LARGE, UNKNOWN = "small:cnn", "small:mlp", "small:vit"


def records(costs):
    """Records of networks with an accuracy and a cost each."""
    return [
        replace(each, parameters=10 * macs, macs=macs)
        for name, (accuracy, macs) in costs.items()
        for each in benchmark([[accuracy] * 3], backbone=name, given={"backbone": name})
    ]


def built(costs):
    (results,) = group_records(records(costs))
    frame = tabulate_results(results)
    return build_network_costs(results, frame, "sources", make_marks(results, frame, "sources"))


def test_rows_go_from_the_cheapest_to_the_most_expensive_and_unknown_ones_are_named():
    costs = {LARGE: (0.75, 4 * 10**9), SMALL: (0.5, 2 * 10**8), UNKNOWN: (0.6, 0)}
    shown = built(costs)
    assert [(row.network, row.gmacs, row.millions, row.percent) for row in shown.rows] == [
        (SMALL, "0.2", "2,000.00", "50.0"),
        (LARGE, "4", "40,000.00", "75.0"),
    ]
    assert [mark.name for mark in shown.unknown] == [f"erm backbone={UNKNOWN}"]
    small, large = shown.panel.points
    assert 0 <= small.x < large.x <= 100
    assert 0 <= small.y < large.y <= 100


def test_one_cost_makes_no_picture():
    assert built({SMALL: (0.5, 100), LARGE: (0.6, 100)}) is None
    assert built({SMALL: (0.5, 100), LARGE: (0.6, 0)}) is None


def test_the_page_has_the_picture_and_its_numbers(tmp_path):
    store = Store(tmp_path)
    for each in records({LARGE: (0.75, 4 * 10**9), SMALL: (0.5, 2 * 10**8)}):
        store.prepare()
        store.folder(each.run).mkdir()
        store.put(each, {}, inputs={})
    page = Path(write_report(store.root)).read_text(encoding="utf-8")
    assert "Accuracy against cost" in page
    assert "50.0 %, 0.2 GMACs, 2,000.00 M parameters" in page
