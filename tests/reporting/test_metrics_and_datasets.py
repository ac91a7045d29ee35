"""Tables of another metric, and tables of several datasets with their mean."""

import math

import pytest

from afield.errors import SpecError, UnknownNameError
from afield.reporting.charts.samples import describe_groups
from afield.reporting.formats import as_csv, as_markdown
from afield.reporting.page import render_page, write_report
from afield.reporting.table import ALL_DATASETS, ranks, tabulate
from afield.runs.store import Store
from tests.reporting.tables import benchmark, markdown_rows, measured, numbers, with_groups
from tests.stores import kept

RECORDS = [
    *measured(benchmark([[0.9, 0.5, 0.7]]), macro_f1=0.25, loss=0.5),
    *measured(benchmark([[0.8, 0.4, 0.6]], method="vrex"), macro_f1=0.75, loss=2.0),
]


def test_another_metric_takes_the_place_of_the_accuracy():
    frame = tabulate(RECORDS, metric="macro_f1")
    assert set(frame["metric"]) == {"macro_f1"}
    of_erm = numbers(frame)["accuracy"]
    assert [of_erm[name] for name in ("art", "mean", "worst", "in-domain")] == [0.25] * 4
    assert ranks(frame[frame["rule"] == "sources"])["vrex", "mean"] == 1
    assert "macro F1 (%) on unseen domains" in as_markdown(frame)
    assert "metric" not in tabulate(RECORDS).columns


def test_a_lower_loss_is_better_and_is_not_shown_in_percent():
    frame = tabulate(RECORDS, metric="nll", rules="sources")
    assert ranks(frame)["erm", "mean"] == 1
    rows = markdown_rows(as_markdown(frame))
    assert rows["erm"][0] == "**0.500**"
    assert rows["vrex"][0] == "*2.000*"
    assert "negative log-likelihood on unseen domains" in as_markdown(frame)
    assert "lower is better" in as_markdown(frame)
    assert as_csv(frame).splitlines()[0].endswith("metric")


def test_the_worst_loss_is_the_highest():
    first, *others = measured(benchmark([[0.9, 0.5, 0.7]]), loss=0.5)
    frame = tabulate([*measured([first], loss=3.0), *others], metric="nll", rules="sources")
    assert numbers(frame)["accuracy"]["worst"] == 3.0


def test_a_metric_that_records_lack_is_a_dash_with_a_reason():
    old = benchmark([[0.9, 0.5, 0.7]])
    frame = tabulate(old, metric="macro_f1", rules="sources")
    assert numbers(frame)["accuracy"].isna().all()
    text = as_markdown(frame)
    assert set(markdown_rows(text)["erm"]) == {"–"}
    assert "–: not in records of an earlier version; repeat the runs" in text
    mixed = as_markdown(tabulate([*old, *RECORDS[3:]], metric="macro_f1", rules="sources"))
    assert markdown_rows(mixed)["erm"][0] == "–"
    assert markdown_rows(mixed)["vrex"][0] == "75.0"


def test_an_unknown_metric_is_refused():
    with pytest.raises(UnknownNameError, match="no metric 'f1'"):
        tabulate(RECORDS, metric="f1")


def test_a_table_of_all_datasets_has_their_means_and_the_mean_of_these():
    rows = [[0.9, 0.5, 0.7], [0.7, 0.3, 0.5]]
    records = [
        *benchmark(rows, dataset="pacs"),
        *benchmark(rows, dataset="pacs", method="vrex"),
        *benchmark([[0.4, 0.4, 0.4], [0.2, 0.2, 0.2]], dataset="vlcs"),
    ]
    frame = tabulate(records, rules="sources", over_datasets=True)
    overall = frame[frame["dataset"] == ALL_DATASETS]
    erm = numbers(overall)
    assert erm["accuracy"].to_dict() == pytest.approx({"pacs": 0.6, "vlcs": 0.3, "mean": 0.45})
    # Standard errors of 0.7 and 0.5, and of 0.4 and 0.2: 0.1 each.
    assert erm["stderr"].to_dict() == pytest.approx(
        {"pacs": 0.1, "vlcs": 0.1, "mean": math.sqrt(0.02) / 2}
    )
    vrex = numbers(overall, "vrex")["accuracy"]
    assert vrex["pacs"] == pytest.approx(0.6)
    assert math.isnan(vrex["vlcs"])
    assert math.isnan(vrex["mean"])
    text = as_markdown(overall)
    assert markdown_rows(text)["vrex"] == ["60.0 ± 10.0", "–", "–"]
    assert tabulate(records, rules="sources").equals(frame[frame["dataset"] != ALL_DATASETS])


def test_one_dataset_has_no_table_of_all():
    assert ALL_DATASETS not in set(tabulate(RECORDS, over_datasets=True)["dataset"])


def test_a_report_shows_another_metric_and_several_stores(tmp_path):
    stores = [Store(tmp_path / name) for name in ("pacs", "vlcs")]
    kept(stores[0], RECORDS)
    kept(stores[1], [*benchmark([[0.4, 0.4, 0.4]], dataset="vlcs")])
    with pytest.raises(SpecError, match="several stores needs a place; give --out FILE"):
        write_report(stores)
    path = write_report(stores, tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    assert path.endswith("all.html")
    assert "All datasets" in page
    # Mean of 70 and 40 percent.
    assert ">55.0<" in page
    other = render_page(RECORDS, metric="macro_f1")
    assert "Macro F1 on unseen domains" in other
    assert "Macro F1 on unseen domains minus that of erm" in other
    assert "Numbers are macro F1; curves" in other
    assert "vrex\u2069 leads on the unseen domains" in other
    assert "All datasets" not in other
    with pytest.raises(SpecError, match="use `afield table --metric nll`"):
        write_report(stores[0], metric="nll")


def test_groups_are_described_by_their_number_and_sizes():
    assert describe_groups(map(with_groups, benchmark([[0.9, 0.5, 0.7]])[:2])) == [
        "groups of things by slide: art 2 of 4 to 9 samples; photo 2 of 4 to 9 samples"
    ]
    assert describe_groups(RECORDS) == []
