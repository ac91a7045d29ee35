"""The numbers of a paper beside ours: what is compared with what, and what is marked."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from afield.reporting.benchmarking import bench
from afield.reporting.page import write_report
from afield.reporting.paper import (
    FIELDS,
    _lines,
    _mean_estimate,
    compare_with_paper,
    keep_comparison,
    kept_comparisons,
    paper_markdown,
    paper_tables,
)
from afield.reporting.table import tabulate
from afield.runs.store import Store
from afield.studies.recipe import Changes, Numbers, read_recipe
from tests.files import arrays, npz
from tests.reporting.tables import benchmark, with_groups

TOML = """
title = "spirals"
reproduces = "approximate"
differs = "the network"
[options]
dataset = "spirals"
methods = ["erm", "vrex"]
steps = 20
trials = 2
[[parts]]
name = "net, one"
[[parts.numbers]]
columns = ["turn0", "mean"]
rows.erm = [99.9, 1.0]
rows.quoted = [50.0, nan]
[[parts.numbers]]
relative_to = "erm"
title = "gain"
columns = ["mean"]
rows.vrex = [0.0]
[[numbers]]
over = "net,"
columns = ["mean"]
rows.erm = [1.0]
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "spirals.toml"
    path.write_text(TOML)
    return read_recipe(path)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return bench("spirals", ["erm", "vrex"], trials=2, steps=20, store=folder, workers=1)


@pytest.fixture(scope="module")
def frame(recipe, records):
    return compare_with_paper(recipe, [records])


def find(frame, **words):
    for name, value in words.items():
        frame = frame[frame[name] == value]
    (line,) = frame.to_dict("records")
    return line


def test_ours_are_the_numbers_of_the_table(frame, records):
    table = tabulate(records, rules="sources")
    for column in ("turn0", "mean"):
        line = find(frame, part="net, one", row="erm", column=column)
        expected = find(table, method="erm", domain=column)
        assert line["ours"] == pytest.approx(100 * expected["accuracy"])
        assert line["stderr"] == pytest.approx(100 * expected["stderr"])
        assert line["difference"] == pytest.approx(line["ours"] - line["paper"])


def test_only_clearly_lower_numbers_are_marked(frame):
    assert find(frame, part="net, one", row="erm", column="turn0")["lower"]
    assert not find(frame, part="net, one", row="erm", column="mean")["lower"]
    assert not find(frame, part="net, one", row="quoted", column="turn0")["lower"]


def test_data_in_place_of_a_dataset_are_compared_with_no_other_column(records):
    changes = Changes(datasets=("pacs",), data={"pacs": "spirals"}, methods=("erm",))
    frame = compare_with_paper(read_recipe("arith_table4", changes=changes), [records, records])
    trials = frame[(frame.part == "with SWAD") & (frame.row == "erm")].set_index("column").trials
    assert trials["pacs"] == 2
    assert trials.drop("pacs").tolist() == [0] * 5
    score = read_recipe("score_table1", changes=Changes(datasets=("pacs",)))
    frame = compare_with_paper(score, [[] for _ in score.parts])
    assert set(frame.column) == {"pacs"}


def test_every_column_has_the_numbers_of_the_data_in_place_of_its_dataset(tmp_path, records):
    folders = [tmp_path / name for name in ("first", "second")]
    paths = [folder.mkdir() or npz(folder, **arrays(24)) for folder in folders]
    done = [
        replace(record, run=replace(record.run, dataset=str(path), data=path.parent.name))
        for path, shift in zip(paths, (0, 1), strict=True)
        for record in records
        if record.run.trial <= shift
    ]
    changes = Changes(
        datasets=("pacs", "vlcs"), data={"vlcs": str(paths[0]), "pacs": str(paths[1])}
    )
    recipe = read_recipe("arith_table4", changes=changes)
    trials = compare_with_paper(recipe, [done, []]).query("part == 'without SWAD' and row == 'erm'")
    assert trials.set_index("column").trials.to_dict() == {
        "pacs": 2, "vlcs": 1, "office_home": 0, "terra_incognita": 0, "domain_net": 0, "mean": 0
    }  # fmt: skip
    # The other dataset failed: its column stays empty.
    second = [record for record in done if record.run.data == "second"]
    frame = compare_with_paper(recipe, [second, []]).query("part == 'without SWAD'")
    assert frame.query("row == 'erm' and trials > 0").column.tolist() == ["pacs"]


def test_rows_that_were_not_asked_for_are_left_out_and_the_title_says_so(records):
    changes = Changes(methods=("erm", "arith"))
    recipe = read_recipe("dmg_table2", changes=Changes(methods=("dmg",)))
    assert set(compare_with_paper(recipe, [[] for _ in recipe.parts]).row) == {"dmg"}
    assert recipe.full_title.endswith("[methods dmg only]")
    recipe = read_recipe("arith_table4", changes=changes)
    assert set(compare_with_paper(recipe, [[], []]).row) == {"erm", "arith"}


def test_one_trial_has_no_mark(recipe, records):
    first = [record for record in records if record.run.trial == 0]
    frame = compare_with_paper(recipe, [first])
    line = find(frame, part="net, one", row="erm", column="turn0")
    assert math.isnan(line["stderr"])
    assert not line["lower"]


def test_gains_are_differences_within_a_trial(frame, records):
    table = tabulate(records, rules="sources")
    gain = find(frame, part="net, one, gain", row="vrex")["ours"]
    means = {m: find(table, method=m, domain="mean")["accuracy"] for m in ("erm", "vrex")}
    assert gain == pytest.approx(100 * (means["vrex"] - means["erm"]))


def test_numbers_over_parts_are_means_over_their_datasets(frame):
    line = find(frame, part="net", row="erm", column="mean")
    assert line["ours"] == find(frame, part="net, one", row="erm", column="mean")["ours"]


def test_a_column_may_be_a_group_of_samples(tmp_path):
    path = tmp_path / "groups.toml"
    head = TOML[: TOML.index("[[parts.numbers]]")]
    numbers = '[[parts.numbers]]\nvalue = "group"\ncolumns = ["s1", "s3"]\nrows.erm = [60.0, 1.0]'
    path.write_text(f"{head}{numbers}\n")

    records = [with_groups(record) for record in benchmark([[0.9, 0.5, 0.7]])]
    lines = compare_with_paper(read_recipe(path), [records])
    assert find(lines, column="s1")["ours"] == pytest.approx(75.0)
    assert math.isnan(find(lines, column="s3")["ours"])


def test_without_records_the_paper_stands_alone(recipe):
    frame = compare_with_paper(recipe, [[]])
    assert frame["ours"].isna().all()
    assert "99.9 → –" in paper_markdown(recipe, frame)


def test_cells_read_paper_arrow_ours(recipe, frame):
    tables = list(paper_tables(frame))
    title, header, rows = tables[0]
    assert (title, header) == ("net, one; rule sources", ["row", "turn0", "mean"])
    line = find(frame, part="net, one", row="erm", column="turn0")
    shown = f"99.9 → {line['ours']:.1f} ± {line['stderr']:.1f} ({line['difference']:+.1f}▼)"
    assert rows[0][:2] == ["erm", shown]
    assert "Differs: the network." in paper_markdown(recipe, frame)


def test_the_report_of_a_store_shows_the_kept_comparison(recipe, records, frame, tmp_path):
    bench("spirals", ["erm"], trials=1, steps=20, store=tmp_path, workers=1)
    before = Path(write_report(tmp_path)).read_text()
    keep_comparison(Store(tmp_path), recipe, frame)
    after = Path(write_report(tmp_path)).read_text()
    assert "The paper beside ours" not in before
    assert "The paper beside ours" in after
    assert f"<td>{next(paper_tables(frame))[2][0][1]}</td>" in after
    assert "Differs: the network." in after


def test_a_broken_comparison_is_left_out(tmp_path, caplog):
    (tmp_path / "paper.json").write_text('{"title": 3}')
    assert kept_comparisons([tmp_path]) == []
    assert "cannot be read" in caplog.text


def test_the_error_of_a_mean_over_datasets_is_that_of_independent_means():
    mean, error, trials = _mean_estimate([(0.5, 0.03, 3), (0.7, 0.04, 2)])
    assert (mean, error, trials) == pytest.approx((0.6, 0.05 / 2, 2))
    assert math.isnan(_mean_estimate([(0.5, 0.03, 3), (math.nan, math.nan, 0)])[0])


def test_a_number_is_marked_from_two_standard_errors_below_the_papers_on():
    numbers = Numbers(("a", "b", "c"), {"erm": (51.9, 52.1, 40.0)})
    lines = _lines("part", numbers, "sources", lambda *_: (0.5, 0.01, 3))
    assert [line[FIELDS.index("lower")] for line in lines] == [False, True, False]
    alone = _lines("part", numbers, "sources", lambda *_: (0.5, math.nan, 1))
    assert not any(line[FIELDS.index("lower")] for line in alone)
