"""Tables in every format: what is marked, escaped and left out."""

import io
import math
import re
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from afield.errors import AfieldError
from afield.reporting.claims import all_claims
from afield.reporting.formats import (
    FORMATS,
    abbreviate,
    as_csv,
    as_latex,
    as_markdown,
    as_power_table,
    as_rich,
    choose_columns,
)
from afield.reporting.table import tabulate
from afield.runs.selection import RULES
from tests.reporting.tables import DOMAINS, benchmark, held_out, markdown_rows, trusting
from tests.stores import HOSTILE, benchmark_records, noisy

TOLD = RULES["sources"].description


def shown(frame: pd.DataFrame) -> str:
    console = Console(width=200, file=StringIO())
    for table in as_rich(frame):
        console.print(table)
    # A title is broken where the table is narrow; that is not what is looked for here.
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("form", [*FORMATS, "terminal"])
def test_one_trial_has_no_spread(form):
    frame = tabulate(benchmark([[0.9, 0.5, 0.7]]))
    assert frame["stderr"].isna().all()
    text = shown(frame) if form == "terminal" else FORMATS[form](frame)
    assert "±" not in text
    assert r"\pm" not in text
    assert form != "terminal" or "1 trial, no standard error" in text


def test_nothing_gives_an_empty_table_in_every_form():
    frame = tabulate([])
    assert frame.empty
    assert as_markdown(frame) == as_latex(frame) == ""
    assert as_rich(frame) == []
    assert as_csv(frame) == ",".join(frame.columns.drop(["sees", "pretrained"]))


def test_a_missing_pick_is_a_dash():
    records = benchmark([[0.9, 0.5, 0.7]]) + benchmark([[0.8, 0.6, 0.4]], method="vrex")
    frame = tabulate(records, rules=["sources"])
    gap = (frame["method"] == "erm") & (frame["domain"] == "photo")
    frame.loc[gap, ["accuracy", "stderr"]] = math.nan
    assert markdown_rows(as_markdown(frame))["erm"][1] == "–"
    assert " & – & " in as_latex(frame)
    assert "–" in shown(frame)


def test_markdown_has_percent_with_errors_and_the_two_best_marked():
    frame = tabulate(
        benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]])
        + benchmark([[0.95, 0.4, 0.7], [0.95, 0.5, 0.7]], method="vrex")
        + benchmark([[0.1, 0.4, 0.6], [0.1, 0.4, 0.6]], method="groupdro"),
        rules=["sources"],
    )
    text = as_markdown(frame)
    assert text.startswith(f"**things**, {TOLD}: accuracy (%) on unseen domains, ± standard error")
    rows = markdown_rows(text)
    assert rows["method"] == [*DOMAINS, "mean", "worst", "in-domain"]
    assert rows["erm"][:3] == ["*85.0 ± 5.0*", "**55.0 ± 5.0**", "**70.0 ± 0.0**"]
    # Equal bests are both best, and the next value is the second.
    assert rows["vrex"][:3] == ["**95.0 ± 0.0**", "*45.0 ± 5.0*", "**70.0 ± 0.0**"]
    assert rows["groupdro"][:3] == ["10.0 ± 0.0", "40.0 ± 0.0", "*60.0 ± 0.0*"]


@pytest.mark.parametrize("methods", [["erm"], ["erm", "vrex"]])
def test_where_all_are_equal_nothing_is_marked(methods):
    records = [r for method in methods for r in benchmark([[0.9, 0.5, 0.7]], method=method)]
    frame = tabulate(records, rules=["sources"])
    assert markdown_rows(as_markdown(frame))["erm"][:5] == ["90.0", "50.0", "70.0", "70.0", "50.0"]
    assert "textbf" not in as_latex(frame)
    assert "underline" not in as_latex(frame)


def test_latex_marks_only_what_is_more_than_chance():
    plain = [[0.51, 0.6, 0.55], [0.5, 0.6, 0.56], [0.52, 0.62, 0.55], [0.51, 0.61, 0.57]]
    better = [[0.72, 0.79, 0.75], [0.7, 0.81, 0.75], [0.71, 0.82, 0.76], [0.73, 0.8, 0.77]]
    clear = (plain, better)
    records = benchmark(clear[0]) + benchmark(clear[1], method="vrex")
    frame = tabulate(records, rules=["sources"])
    assert "textbf" not in as_latex(frame)
    text = as_latex(frame, tested=all_claims(records, frame), caption="Mine & yours.")
    erm, vrex = (next(x for x in text.splitlines() if x.startswith(m)) for m in ("erm", "vrex"))
    assert "textbf" not in erm
    assert "^{*}" not in erm
    assert vrex.count(r"\textbf") == vrex.count("$^{*}$") == 1
    assert r"\caption{Mine \& yours. $^{*}$: differs from plain training" in text
    assert "underline" not in text
    # The same means from trials that vary too much.
    noisy = benchmark([[0.9, 0.5, 0.7], [0.5, 0.6, 0.7]])
    noisy += benchmark([[0.95, 0.4, 0.7], [0.95, 0.5, 0.7]], method="vrex")
    frame = tabulate(noisy, rules=["sources"])
    text = as_latex(frame, tested=all_claims(noisy, frame))
    assert "textbf" not in text
    assert "^{*}" not in text


def test_columns_are_chosen_in_their_order():
    frame = tabulate(benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]]), rules=["sources"])
    first = next(name for name in frame["domain"] if name not in ("mean", "worst"))
    text = as_latex(choose_columns(frame, ["mean", first]))
    assert rf"method & mean & {first} \\" in text
    with pytest.raises(AfieldError, match="no column 'meen'; did you mean 'mean'"):
        choose_columns(frame, ["meen"])


def test_latex_escapes_names():
    domains = ("art_painting", "50%", "R&D", "{~^$#\\}")
    records = benchmark([[0.9, 0.5, 0.7, 0.6]], domains=domains, dataset="my_data")
    records += benchmark(
        [[0.8, 0.6, 0.7, 0.6]], domains=domains, dataset="my_data", given={"a_b": "5%&"}
    )
    text = as_latex(tabulate(records, rules=["sources"]))
    special = r"\{\textasciitilde{}\textasciicircum{}\$\#\textbackslash{}\}"
    assert (
        rf"method & art\_painting & 50\% & R\&D & {special} & mean & worst & in-domain \\" in text
    )
    assert r"\caption{my\_data, " in text
    assert "\nerm a\\_b=5\\%\\& & " in text


def test_markdown_escapes_the_bar_in_names():
    domains = ("a|b", "c")
    records = benchmark([[0.9, 0.5]], domains=domains)
    records += benchmark([[0.8, 0.5]], domains=domains, given={"x": "1|2"})
    lines = as_markdown(tabulate(records, rules=["sources"])).splitlines()[2:]
    assert lines[0] == r"| method | a\|b | c | mean | worst | in-domain |"
    assert lines[3].startswith(r"| erm x=1\|2 | ")
    assert [line.replace(r"\|", "").count("|") for line in lines] == [7] * 4


def test_the_terminal_shows_rules_methods_and_numbers():
    records = benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]], given={"note": "[bold]x"})
    records += benchmark([[0.7, 0.5, 0.7], [0.7, 0.6, 0.7]], method="vrex")
    text = shown(tabulate(records))
    assert "± standard error over 2 trials" in text
    assert re.search("85.0 ± ?5.0", text)
    # What looks like markup in a name is part of the name.
    assert "erm note=[bold]x" in text
    for rule in ("sources", "target"):
        assert f"{rule}: {RULES[rule].description}" in text


def test_csv_comes_back_through_pandas_as_it_was():
    records = benchmark([[0.9, 1 / 3, 0.7], [0.8, 0.6, 2 / 3]], given={"note": 'a, "b"'})
    records += benchmark([[0.7, 0.5, 0.7]], method="vrex")
    frame = tabulate(records)
    again = pd.read_csv(StringIO(as_csv(frame)))
    pd.testing.assert_frame_equal(again, frame.drop(columns=["sees", "pretrained"]))


def test_the_title_on_the_terminal_has_the_fingerprint():
    records = [
        r
        for data in ("abcdef12", "fedcba21")
        for r in benchmark([[0.9, 0.5, 0.7]], dataset="/data/mine.npz", data=data)
    ]
    assert "mine (60 samples, abcdef): " in shown(tabulate(records))


def test_what_looks_equal_is_marked_alike():
    records = benchmark([[0.3, 0.2, 0.1]]) + benchmark([[0.2, 0.2, 0.2]], method="vrex")
    records += benchmark([[0.1, 0.1, 0.1]], method="groupdro")
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["erm"][3] == rows["vrex"][3] == "**20.0**"


def test_the_number_of_draws_is_reported():
    records = benchmark([[0.9, 0.5, 0.7]])
    more = [replace(r, run=replace(r.run, draw=1)) for r in records]
    assert set(tabulate([*records, *more])["draws"]) == {2}
    assert "best of 2 hyperparameter samples" in shown(tabulate([*records, *more]))
    vrex = benchmark([[0.9, 0.5, 0.7]], method="vrex")
    assert "best of 1–2 hyperparameter samples" in shown(tabulate([*records, *more, *vrex]))
    assert "hyperparameter" not in shown(tabulate(records))


@pytest.mark.parametrize("form", FORMATS)
def test_held_out_shares_are_reported_in_every_form(form):
    text = FORMATS[form](tabulate([held_out({"w00": 0.9, "w01": 0.5})]))
    assert "things, 2 domains held out" in text
    assert "w00" not in text


def printed(frame, width):
    console = Console(width=width, file=StringIO())
    console.print(*as_rich(frame, width))
    return console.file.getvalue()


def test_mean_and_worst_come_first_and_a_narrow_terminal_abbreviates_domains():
    domains = ("art_painting", "cartoon", "photograph", "sketch")
    rows = [[0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.5, 0.6]]
    frame = tabulate(benchmark(rows, domains=domains), rules="sources")
    wide, narrow, tiny = (printed(frame, width) for width in (120, 66, 35))
    assert re.search(r"method +mean +worst +art_painting +cartoon", wide)
    assert "not shown" not in wide
    assert re.search(r"method +mean +worst +art +car +pho +ske", narrow)
    assert "art: art_painting, car: cartoon" in narrow
    assert re.search(r"erm +35.0 ±10.0 +20.0 ±10.0 +20.0 +30.0", narrow)
    assert "not shown: in-domain, ± of the other columns" in " ".join(narrow.split())
    assert "not shown: in-domain, the 4 domains" in " ".join(tiny.split())
    for text, width in ((wide, 120), (narrow, 66), (tiny, 35)):
        assert max(len(line) for line in text.splitlines()) <= width


def test_names_with_the_same_beginning_are_numbered():
    assert abbreviate(["hospital_1", "hospital_2"]) == {"hospital_1": "ho1", "hospital_2": "ho2"}
    assert abbreviate(["a", "b"]) == {"a": "a", "b": "b"}


def test_of_calibration_errors_the_least_is_best_of_accuracies_the_greatest():
    records = [
        *trusting(0.3, 0.7),
        *trusting(0.1, 0.6, method="vrex"),
        *trusting(0.2, 0.8, method="dmg"),
    ]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["method"][-2:] == ["calibration error", "accuracy at 90 %"]
    note = "; calibration error: lower is better; accuracy at 90 %: on the most confident"
    assert note in as_markdown(tabulate(records, rules=["sources"]))
    assert rows["erm"][-2:] == ["30.0", "*70.0*"]
    assert rows["vrex"][-2:] == ["**10.0**", "60.0"]
    assert rows["dmg"][-2:] == ["*20.0*", "**80.0**"]
    latex = as_latex(tabulate(records, rules=["sources"]))
    assert r"calibration error & accuracy at 90 \% \\" in latex
    assert r"10.0 & 60.0 \\" in latex


def test_a_terminal_without_room_leaves_out_confidence_and_says_so():
    records = [r for i in range(6) for r in trusting(0.1, 0.8, method=f"method{i}")]
    frame = tabulate(records, rules=["sources"])
    assert re.search(r"calibration +accuracy *\n.* in-domain +error +at 90 %", printed(frame, 100))
    narrow = " ".join(printed(frame, 52).split())
    assert "not shown: calibration error, accuracy at 90 %" in narrow
    assert "lower is better" not in narrow


def test_names_cannot_break_markdown_latex_or_csv():
    records = benchmark([[0.9, 0.5]], domains=("a\nb", "<script>"), dataset="=1+1")
    frame = tabulate(records, rules=["sources"])
    header = as_markdown(frame).splitlines()[2]
    assert header.startswith("| method | a b | &lt;script&gt; | ")
    assert "method & a b & <script> & " in as_latex(frame)
    cells = pd.read_csv(StringIO(as_csv(frame)))["dataset"]
    assert set(cells.str[:2]) == {"'="}


def printed_power(records, *options):
    console = Console(file=io.StringIO(), width=80)
    for part in as_power_table(records, *options):
        console.print(part)
    return console.file.getvalue()


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
BAD = benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad")


def test_every_comparison_has_a_row_and_every_dataset_a_sentence():
    other = benchmark_records(noisy(0.5, 3, 3), dataset="others")
    rival = benchmark_records(noisy(0.6, 3, 3, seed=9), dataset="others", method="dann")
    text = printed_power([*ERM, *GOOD, *BAD, *other, *rival])
    rows = [line.split() for line in text.splitlines() if " erm " in line]
    assert [row[:2] for row in rows] == [["good", "erm"], ["bad", "erm"], ["dann", "erm"]]
    assert all(
        float(row[2].replace("−", "-")) * sign > 5
        for row, sign in zip(rows, (1, -1, 1), strict=False)
    )
    assert text.count("With 3 trials") == 2
    assert "things, training-domain validation" in text
    assert "others, training-domain validation" in text


def test_rules_and_the_difference_can_be_chosen():
    text = printed_power([*ERM, *GOOD], ["sources", "target"], 0.025)
    assert text.count("With 3 trials") == 2
    assert text.count("2.5 points") == 4
    assert "1 point" not in printed_power([*ERM, *GOOD], ["sources"], 0.5)


def test_no_name_acts_on_the_terminal():
    text = printed_power([*ERM, *benchmark_records(noisy(0.8, 3, 3), method=HOSTILE[2])])
    assert "\u202e" not in text
    assert "\\u202e" in text.replace("\n", "").replace(" ", "")
