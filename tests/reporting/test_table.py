"""From records to tables, against numbers computed by hand."""

import math
import re
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from afield.experiments.record import Record, Run
from afield.experiments.selection import RULES
from afield.reporting.results import row_label
from afield.reporting.table import FORMATS, as_csv, as_latex, as_markdown, as_rich, tabulate
from afield.training.evaluation import Checkpoint, Score, Scores

DOMAINS = ("art", "photo", "sketch")
TOLD = RULES["sources"].told


def score(accuracy: float) -> Score:
    return Score(accuracy, accuracy, 1.0, 10)


def checkpoint(target: str, accuracy: float, *, domains=DOMAINS, step: int = 6, on_sources=0.9):
    """A checkpoint that both simple rules can read; the target's probe part tells nothing new."""
    scores = {
        name: Scores(main=score(accuracy), probe=score(accuracy))
        if name == target
        else Scores(probe=score(on_sources))
        for name in domains
    }
    return Checkpoint(step, scores, {})


def record(target: str, accuracy: float, *, domains=DOMAINS, checkpoints=None, **fields) -> Record:
    run = Run(
        **{
            "dataset": "things",
            "method": "erm",
            "sources": tuple(name for name in domains if name != target),
            **fields,
        }
    )
    done = checkpoints or (checkpoint(target, accuracy, domains=domains),)
    return Record(run, tuple(done), 1.0, {}, "cpu")


def benchmark(accuracies, *, domains=DOMAINS, **fields) -> list[Record]:
    """Records of one method: a row of accuracies for each trial, a column for each domain."""
    return [
        record(target, accuracy, domains=domains, trial=trial, **fields)
        for trial, row in enumerate(accuracies)
        for target, accuracy in zip(domains, row, strict=True)
    ]


def numbers(frame: pd.DataFrame, method: str = "erm", rule: str = "sources") -> pd.DataFrame:
    chosen = frame[(frame["method"] == method) & (frame["rule"] == rule)]
    return chosen.set_index("domain")[["accuracy", "stderr", "trials"]]


def markdown_rows(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def shown(frame: pd.DataFrame) -> str:
    console = Console(width=200, file=StringIO())
    for table in as_rich(frame):
        console.print(table)
    # A title is broken where the table is narrow; that is not what is looked for here.
    return " ".join(console.file.getvalue().split())


def test_means_errors_and_the_worst_are_those_computed_by_hand():
    accuracies = np.array([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4], [0.7, 0.8, 0.5], [0.95, 0.3, 0.9]])
    found = numbers(tabulate(benchmark(accuracies)))
    columns = {name: accuracies[:, i] for i, name in enumerate(DOMAINS)}
    # The worst domain of each trial, not the domain that is worst on average.
    columns |= {"mean": accuracies.mean(axis=1), "worst": np.array([0.5, 0.4, 0.5, 0.3])}
    columns["in-domain"] = np.full(4, 0.9)
    assert list(found.index) == list(columns)
    for name, values in columns.items():
        assert found.loc[name, "accuracy"] == pytest.approx(values.mean())
        assert found.loc[name, "stderr"] == pytest.approx(np.std(values, ddof=1) / 2)
        assert found.loc[name, "trials"] == 4


def test_the_order_of_the_records_is_nothing():
    records = benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4]])
    pd.testing.assert_frame_equal(tabulate(records[::-1]), tabulate(records))


@pytest.mark.parametrize("form", FORMATS)
def test_one_trial_has_no_spread(form):
    frame = tabulate(benchmark([[0.9, 0.5, 0.7]]))
    assert frame["stderr"].isna().all()
    assert "±" not in FORMATS[form](frame)
    assert r"\pm" not in FORMATS[form](frame)


def test_one_trial_is_announced_on_the_terminal():
    text = shown(tabulate(benchmark([[0.9, 0.5, 0.7]])))
    assert "1 trial: no spread known" in text
    assert "±" not in text


def test_each_rule_reports_its_own_pick():
    early = checkpoint("art", 0.3, step=2, on_sources=0.8)
    late = checkpoint("art", 0.6, step=4, on_sources=0.7)
    frame = tabulate([record("art", 0, checkpoints=(early, late))])
    assert numbers(frame, rule="sources").loc["art", "accuracy"] == 0.3
    assert numbers(frame, rule="target").loc["art", "accuracy"] == 0.6


def test_of_several_draws_in_a_row_the_pick_alone_counts():
    draws = [
        record("art", 0, draw=draw, checkpoints=(checkpoint("art", 0.1 * draw, on_sources=value),))
        for draw, value in enumerate([0.5, 0.9, 0.7])
    ]
    frame = tabulate(draws)
    assert numbers(frame).loc["art", ["accuracy", "trials"]].tolist() == [0.1, 1]


def test_only_the_rules_that_are_asked_for_and_suffice_have_rows():
    records = benchmark([[0.9, 0.5, 0.7]])
    assert set(tabulate(records)["rule"]) == {"sources", "target"}
    assert set(tabulate(records, rules=["target"])["rule"]) == {"target"}
    assert tabulate(records, rules=["left-out-source"]).empty


def test_nothing_gives_an_empty_table_in_every_form():
    frame = tabulate([])
    assert frame.empty
    assert as_markdown(frame) == as_latex(frame) == ""
    assert as_rich(frame) == []
    assert as_csv(frame) == ",".join(frame.columns)


def test_a_trial_with_a_domain_missing_counts_for_the_others_only():
    records = benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4]])[:-1]
    found = numbers(tabulate(records))
    columns = ["art", "photo", "sketch", "mean", "worst", "in-domain"]
    assert found["trials"].to_dict() == dict(zip(columns, (2, 2, 1, 1, 1, 1), strict=True))
    assert found.loc["art", "accuracy"] == pytest.approx(0.85)
    assert found.loc["sketch", "accuracy"] == 0.7
    assert found.loc["mean", "accuracy"] == pytest.approx(0.7)
    assert found.loc["worst", "accuracy"] == 0.5


def test_a_missing_pick_is_a_dash():
    records = benchmark([[0.9, 0.5, 0.7]]) + benchmark([[0.8, 0.6, 0.4]], method="vrex")
    frame = tabulate(records, rules=["sources"])
    gap = (frame["method"] == "erm") & (frame["domain"] == "photo")
    frame.loc[gap, ["accuracy", "stderr"]] = math.nan
    assert markdown_rows(as_markdown(frame))["erm"][1] == "–"
    assert " & – & " in as_latex(frame)
    assert "–" in shown(frame)


def test_twins_of_the_second_rule_fill_no_column():
    twin = record("art", 0.5)
    pair = Record(
        Run("things", "erm", ("sketch",)),
        (Checkpoint(6, {n: Scores(main=score(0.1), probe=score(0.1)) for n in DOMAINS}, {}),),
        1.0,
        {},
        "cpu",
    )
    frame = tabulate([twin, pair], rules=["sources"]).set_index("domain")
    assert frame.loc["art", "accuracy"] == 0.5
    assert frame.drop(index="art")["accuracy"].isna().all()


def test_a_target_that_nobody_finished_is_a_dash_and_leaves_no_mean():
    records = [r for r in benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]]) if r.unseen != ("art",)]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["method"] == ["art", "photo", "sketch", "mean", "worst", "in-domain"]
    assert [cell for cell in rows["erm"] if cell == "–"] == ["–"] * 4


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


def test_latex_has_the_best_in_bold_and_the_second_underlined():
    frame = tabulate(
        benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]])
        + benchmark([[0.95, 0.4, 0.7], [0.95, 0.5, 0.7]], method="vrex"),
        rules=["sources"],
    )
    lines = as_latex(frame).splitlines()
    erm = r"erm & \underline{85.0 $\pm$ 5.0} & \textbf{55.0 $\pm$ 5.0} & 70.0 $\pm$ 0.0 & "
    vrex = r"vrex & \textbf{95.0 $\pm$ 0.0} & \underline{45.0 $\pm$ 5.0} & 70.0 $\pm$ 0.0 & "
    assert sum(line.startswith(erm) for line in lines) == 1
    assert sum(line.startswith(vrex) for line in lines) == 1
    assert all(line.endswith(r" \\") for line in lines if " & " in line)
    assert r"\begin{tabular}{lcccccc}" in lines
    (caption,) = [line for line in lines if r"\caption" in line]
    assert caption.startswith(r"\caption{things, picked on the sources' probe parts: accuracy (\%)")
    assert r"$\pm$ standard error over 2 trials; in-domain: on the sources' " in caption


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
    bars = [line.replace(r"\|", "").count("|") for line in lines]
    assert bars == [7] * 4


def test_rows_are_labelled_by_what_was_chosen_by_hand():
    usual = ("backbone", "steps")
    assert row_label(Run("d", "vrex", ("a",)), exclude=usual) == "vrex"
    chosen = Run("d", "vrex", ("a",), given={"vrex.penalty": 3.0, "lr": 0.1}, average="ema")
    assert row_label(chosen, exclude=usual) == "vrex + ema penalty=3.0 lr=0.1"
    assert row_label(chosen, exclude=[*usual, "lr"]) == "vrex + ema penalty=3.0"


def test_settings_common_to_all_rows_are_not_repeated():
    shared = {"steps": 50}
    records = (
        benchmark([[0.9, 0.5, 0.7]], given=shared)
        + benchmark([[0.8, 0.5, 0.7]], method="vrex", given={**shared, "vrex.penalty": 1.0})
        + benchmark([[0.7, 0.5, 0.7]], method="vrex", given={**shared, "vrex.penalty": 9.0})
    )
    frame = tabulate(records, rules=["sources"])
    labels = ["erm", "vrex penalty=1.0", "vrex penalty=9.0"]
    assert list(dict.fromkeys(frame["method"])) == labels
    assert numbers(frame, "vrex penalty=9.0").loc["art", "accuracy"] == 0.7


def test_a_setting_that_differs_is_told_in_every_row():
    records = [
        r for steps in (50, 90) for r in benchmark([[0.9, 0.5, 0.7]], given={"steps": steps})
    ]
    assert set(tabulate(records)["method"]) == {"erm steps=50", "erm steps=90"}


def test_two_averages_of_one_method_are_two_rows():
    records = benchmark([[0.9, 0.5, 0.7]]) + benchmark([[0.8, 0.5, 0.7]], average="ema")
    assert set(tabulate(records)["method"]) == {"erm", "erm + ema"}


def test_every_dataset_has_its_own_table():
    other = ("first", "second")
    records = benchmark([[0.9, 0.5, 0.7]])
    records += benchmark([[0.2, 0.1]], domains=other, dataset="/data/mine.npz", data="1234567890")
    frame = tabulate(records, rules=["sources"])
    assert list(dict.fromkeys(frame["dataset"])) == ["things", "mine"]
    first, second = as_markdown(frame).split("\n\n**")
    assert "| method | art | photo | sketch | mean | worst | in-domain |" in first
    assert "| method | first | second | mean | worst | in-domain |" in second
    assert len(as_rich(frame)) == 2


def test_own_data_that_have_changed_are_not_averaged_with_what_they_were():
    records = [
        r
        for data, accuracy in (("1111111", 0.2), ("2222222", 0.8))
        for r in benchmark([[accuracy] * 3], dataset="/data/mine.npz", data=data)
    ]
    found = tabulate(records, rules=["sources"])
    assert set(found["dataset"]) == {"/data/mine.npz [111111]", "/data/mine.npz [222222]"}
    unseen = found[found["domain"] != "in-domain"]
    assert unseen["accuracy"].tolist() == pytest.approx([0.2] * 5 + [0.8] * 5)


def test_the_terminal_shows_rules_methods_and_numbers():
    records = benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.7]], given={"note": "[bold]x"})
    records += benchmark([[0.7, 0.5, 0.7], [0.7, 0.6, 0.7]], method="vrex")
    text = shown(tabulate(records))
    assert "± standard error over 2 trials" in text
    assert re.search("85.0 ± ?5.0", text)
    # What looks like markup in a name is part of the name.
    assert "erm note=[bold]x" in text
    for rule in ("sources", "target"):
        assert f"{rule}: {RULES[rule].told}" in text


def test_csv_comes_back_through_pandas_as_it_was():
    records = benchmark([[0.9, 1 / 3, 0.7], [0.8, 0.6, 2 / 3]], given={"note": 'a, "b"'})
    records += benchmark([[0.7, 0.5, 0.7]], method="vrex")
    frame = tabulate(records)
    again = pd.read_csv(StringIO(as_csv(frame)))
    pd.testing.assert_frame_equal(again, frame)


def test_a_domain_that_a_method_never_finished_is_a_dash():
    records = benchmark([[0.9, 0.5, 0.7]])[:2] + benchmark([[0.8, 0.6, 0.4]], method="vrex")
    frame = tabulate(records, rules=["sources"])
    assert markdown_rows(as_markdown(frame))["erm"] == ["**90.0**", "*50.0*"] + ["–"] * 4


def test_the_title_on_the_terminal_has_the_fingerprint():
    records = [
        r
        for data in ("abcdef12", "fedcba21")
        for r in benchmark([[0.9, 0.5, 0.7]], dataset="/data/mine.npz", data=data)
    ]
    assert "mine.npz [abcdef]" in shown(tabulate(records))


def test_a_copy_of_ones_data_elsewhere_does_not_double_the_cells():
    records = [
        r
        for d in ("/a/mine.npz", "/b/mine.npz")
        for r in benchmark([[0.9, 0.5, 0.7]], dataset=d, data="1234567")
    ]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert len(rows["erm"]) == len(rows["method"])


def test_a_file_named_like_a_dataset_is_told_apart_from_it():
    records = benchmark([[0.9, 0.5, 0.7]]) + benchmark(
        [[0.9, 0.5, 0.7]], dataset="/a/things.npz", data="1234567"
    )
    assert set(tabulate(records)["dataset"]) == {"things", "/a/things.npz [123456]"}


def test_what_looks_equal_is_marked_alike():
    records = benchmark([[0.3, 0.2, 0.1]]) + benchmark([[0.2, 0.2, 0.2]], method="vrex")
    records += benchmark([[0.1, 0.1, 0.1]], method="groupdro")
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["erm"][3] == rows["vrex"][3] == "**20.0**"


def test_records_of_unequal_length_are_different_rows_though_nothing_was_given():
    first, *rest = benchmark([[0.9, 0.5, 0.7]])
    longer = [replace(r, run=replace(r.run, steps=9999)) for r in (first, *rest)]
    frame = tabulate([first, *rest, *longer], rules=["sources"])
    steps = first.run.steps
    assert list(dict.fromkeys(frame["method"])) == [f"erm steps={steps}", "erm steps=9999"]


def test_the_number_of_draws_is_told():
    records = benchmark([[0.9, 0.5, 0.7]])
    more = [replace(r, run=replace(r.run, draw=1)) for r in records]
    assert set(tabulate([*records, *more])["draws"]) == {2}
    assert "best of 2 draws" in shown(tabulate([*records, *more]))
    vrex = benchmark([[0.9, 0.5, 0.7]], method="vrex")
    assert "best of 1–2 draws" in shown(tabulate([*records, *more, *vrex]))
    assert "draw" not in shown(tabulate(records))


MANY = tuple(f"w{i:02}" for i in range(26))
# The accuracy on all sources.
AT_HOME = 0.9


def held_out(accuracies: dict[str, float], **fields) -> Record:
    """One record that tests on the named domains; of the others the last two validate."""
    others = [name for name in MANY if name not in accuracies]
    scores = {name: Scores(probe=score(AT_HOME)) for name in others[:-2]}
    scores |= {name: Scores(main=score(0.6), probe=score(0.6)) for name in others[-2:]}
    scores |= {name: Scores(main=score(a), probe=score(a)) for name, a in accuracies.items()}
    run = Run(
        **{
            "dataset": "things",
            "method": "erm",
            "sources": tuple(others[:-2]),
            "tested": tuple(accuracies),
            **fields,
        }
    )
    done = Checkpoint(6, {name: scores[name] for name in MANY}, {})
    return Record(run, (done,), 1.0, {}, "cpu")


def test_held_out_shares_have_a_mean_a_worst_tenth_and_a_spread_over_their_domains():
    generator = np.random.default_rng(0)
    trials = [generator.uniform(size=20) for _ in range(3)]
    names = [MANY[:20], MANY[6:], MANY[3:23]]
    records = [
        held_out(dict(zip(names[i], values.tolist(), strict=True)), trial=i)
        for i, values in enumerate(trials)
    ]
    frame = tabulate(records)
    # The rule sources would pick a checkpoint that was not read: domains validate here.
    assert set(frame["rule"]) == {"validation", "target"}
    for rule in ("validation", "target"):
        found = numbers(frame, rule=rule)
        columns = {
            "mean": [values.mean() for values in trials],
            "worst 10 %": [np.sort(values)[:2].mean() for values in trials],
            "spread": [np.std(values) for values in trials],
            "in-domain": [AT_HOME] * 3,
        }
        assert list(found.index) == list(columns)
        for name, values in columns.items():
            assert found.loc[name, "accuracy"] == pytest.approx(np.mean(values))
            assert found.loc[name, "stderr"] == pytest.approx(np.std(values, ddof=1) / 3**0.5)
            assert found.loc[name, "trials"] == 3


def test_two_trials_with_different_test_domains_are_those_computed_by_hand():
    records = [
        held_out({"w00": 0.9, "w01": 0.5, "w02": 0.7}, trial=0),
        held_out({"w02": 0.2, "w24": 0.4, "w25": 0.6}, trial=1),
    ]
    found = numbers(tabulate(records, rules=["validation"]), rule="validation")
    # Of fewer than fifteen domains the worst tenth is the worst one.
    assert found["accuracy"].to_dict() == pytest.approx(
        {
            "mean": (0.7 + 0.4) / 2,
            "worst 10 %": (0.5 + 0.2) / 2,
            "spread": (0.08 / 3) ** 0.5,
            "in-domain": AT_HOME,
        }
    )
    assert found["stderr"].to_dict() == pytest.approx(
        {"mean": 0.15, "worst 10 %": 0.15, "spread": 0.0, "in-domain": 0.0}, abs=1e-9
    )


@pytest.mark.parametrize(("count", "worst"), [(4, 1), (14, 1), (16, 2), (21, 2)])
def test_the_worst_tenth_is_a_rounded_number_of_domains_but_at_least_one(count, worst):
    values = [(i + 1) / 100 for i in range(count)]
    frame = tabulate([held_out(dict(zip(MANY, values, strict=False)))], rules=["target"])
    found = numbers(frame, rule="target")
    assert found.loc["worst 10 %", "accuracy"] == pytest.approx(sum(values[:worst]) / worst)


def test_of_a_spread_the_least_is_best():
    steady = held_out({"w00": 0.5, "w01": 0.6})
    wide = held_out({"w00": 0.4, "w01": 0.9}, method="vrex")
    wider = held_out({"w00": 0.0, "w01": 1.0}, method="groupdro")
    rows = markdown_rows(as_markdown(tabulate([steady, wide, wider], rules=["validation"])))
    assert rows["method"] == ["mean", "worst 10 %", "spread", "in-domain"]
    assert rows["erm"][:3] == ["*55.0*", "**50.0**", "**5.0**"]
    assert rows["vrex"][:3] == ["**65.0**", "*40.0*", "*25.0*"]
    assert rows["groupdro"][:3] == ["50.0", "0.0", "50.0"]


def test_leaving_one_out_and_holding_out_a_share_give_two_tables():
    records = benchmark([[0.9, 0.5, 0.7]])
    records += [held_out({"w00": 0.9, "w01": 0.5}), held_out({"w00": 0.3, "w01": 0.5, "w02": 0.1})]
    frame = tabulate(records, rules=["target"])
    columns = {title: list(part["domain"]) for title, part in frame.groupby("dataset")}
    shares = ["mean", "worst 10 %", "spread", "in-domain"]
    assert columns == {
        "things": [*DOMAINS, "mean", "worst", "in-domain"],
        "things, 2 domains held out, 2 validating": shares,
        "things, 3 domains held out, 2 validating": shares,
    }
    assert len(as_rich(frame)) == 3
    means = frame[frame["domain"] == "mean"].set_index("dataset")["accuracy"]
    assert means.tolist() == pytest.approx([0.7, 0.7, 0.3])


def test_a_trial_that_is_not_finished_leaves_the_others():
    records = [held_out({"w00": 0.9, "w01": 0.5}, trial=trial) for trial in (0, 1)]
    unread = replace(
        records[1].checkpoints[0],
        scores={
            name: Scores(probe=scores.probe)
            for name, scores in records[1].checkpoints[0].scores.items()
        },
    )
    records[1] = replace(records[1], checkpoints=(unread,))
    found = numbers(tabulate(records, rules=["target"]), rule="target")
    assert found["trials"].to_dict() == {"mean": 1, "worst 10 %": 1, "spread": 1, "in-domain": 1}


@pytest.mark.parametrize("form", FORMATS)
def test_held_out_shares_are_told_in_every_form(form):
    text = FORMATS[form](tabulate([held_out({"w00": 0.9, "w01": 0.5})]))
    assert "things, 2 domains held out" in text
    assert "w00" not in text


def test_a_file_of_weights_is_told_by_its_name_and_contents():
    given = {"weights": "/far/away/net.safetensors"}
    run = Run("d", "erm", ("a",), given=given, weights=given["weights"], start="123456789a")
    assert row_label(run, exclude=("backbone", "steps")) == "erm weights=net.safetensors [123456]"


def test_a_table_that_is_too_wide_for_the_terminal_has_its_domains_as_rows():
    frame = tabulate(benchmark([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]]), rules="sources")

    def first_words(width: int) -> dict[str, str]:
        console = Console(width=200, file=StringIO())
        console.print(*as_rich(frame, width))
        lines = console.file.getvalue().splitlines()
        return {line.split()[0]: line for line in lines if line.split()}

    assert "erm" in first_words(100)
    narrow = first_words(30)
    assert narrow["domain"].split() == ["domain", "erm"]
    assert narrow["art"].split() == ["art", "20.0", "±10.0"]
    assert narrow["worst"].split() == ["worst", "20.0", "±10.0"]


def at_home(target: str, probe: dict[str, float], known: dict[str, float], **fields) -> Record:
    """A record whose checkpoint was read on its sources, also with the domain told."""
    scores = {target: Scores(main=score(0.5), probe=score(0.5))}
    for name in probe:
        told = score(known[name]) if known else None
        scores[name] = Scores(probe=score(probe[name]), known=told)
    done = Checkpoint(6, {name: scores[name] for name in DOMAINS}, {})
    return record(target, 0.5, checkpoints=(done,), **fields)


def test_in_domain_is_the_mean_over_sources_then_over_targets_then_over_trials():
    probes = np.array([[[0.9, 0.7], [0.6, 0.8], [0.5, 0.5]], [[0.1, 0.3], [0.2, 0.4], [0.3, 0.5]]])
    records = [
        at_home(target, dict(zip(others, probes[trial, i].tolist(), strict=True)), {}, trial=trial)
        for trial in range(2)
        for i, target in enumerate(DOMAINS)
        for others in [[name for name in DOMAINS if name != target]]
    ]
    found = numbers(tabulate(records)).loc["in-domain"]
    means = probes.mean(axis=(1, 2))
    assert found["accuracy"] == pytest.approx(means.mean())
    assert found["stderr"] == pytest.approx(means.std(ddof=1) / 2**0.5)


def test_a_known_domain_has_a_column_where_a_method_can_use_it_and_others_a_dash():
    sources = {t: [name for name in DOMAINS if name != t] for t in DOMAINS}
    records = benchmark([[0.9, 0.5, 0.7]])
    records += [
        at_home(t, dict.fromkeys(own, 0.6), dict.fromkeys(own, 0.8), method="dmg")
        for t, own in sources.items()
    ]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["method"][-2:] == ["in-domain", "known domain"]
    assert rows["dmg"][-2:] == ["*60.0*", "80.0"]
    assert rows["erm"][-2:] == ["**90.0**", "–"]
    # The dash is no reason to say that some have no trial.
    assert "1 trial: no spread known" in as_markdown(tabulate(records, rules=["sources"]))


def smaller(record: Record, sources: tuple[str, ...]) -> Record:
    """The record as if only these of its sources had been trained on."""
    unused = tuple(name for name in record.run.sources if name not in sources)
    run = replace(record.run, sources=sources, unused=unused, given={"domains": len(sources)})
    checkpoints = [
        replace(each, scores={name: s for name, s in each.scores.items() if name not in unused})
        for each in record.checkpoints
    ]
    return replace(record, run=run, checkpoints=tuple(checkpoints))


def test_a_domain_that_is_unused_in_one_trial_and_tested_in_another_is_in_the_mean():
    # What is unused in the first trial is tested in the second, and the other way round.
    first = smaller(held_out({"w00": 0.9, "w01": 0.5}, trial=0), ("w05", "w06"))
    second = smaller(held_out({"w02": 0.2, "w03": 0.4}, trial=1), ("w05", "w06", "w07"))
    second = replace(second, run=replace(second.run, given=first.run.given))
    assert "w02" in first.run.unused
    assert "w00" in second.run.unused
    for records in ([first, second], [second, first]):
        frame = tabulate(records, rules=["validation"])
        assert set(frame["dataset"]) == {"things, 2 domains held out, 2 validating"}
        found = numbers(frame, rule="validation")
        assert found.loc["mean", "accuracy"] == pytest.approx((0.7 + 0.3) / 2)
        assert found.loc["mean", "stderr"] == pytest.approx(0.2)
        assert found.loc["worst 10 %", "accuracy"] == pytest.approx((0.5 + 0.2) / 2)
        assert found.loc["spread", "accuracy"] == pytest.approx((0.2 + 0.1) / 2)
        assert set(found["trials"]) == {2}


def test_every_number_of_domains_is_a_row_of_one_table():
    whole = held_out({"w00": 0.9, "w01": 0.7})
    few = smaller(held_out({"w00": 0.5, "w01": 0.3}), ("w05", "w06", "w07"))
    everything = replace(whole, run=replace(whole.run, given={"domains": 22}))
    rows = markdown_rows(as_markdown(tabulate([few, everything], rules=["validation"])))
    assert [row for row in rows if row.startswith("erm")] == ["erm domains=3", "erm domains=22"]
    assert (rows["erm domains=3"][0], rows["erm domains=22"][0]) == ("*40.0*", "**80.0**")
    plain = markdown_rows(as_markdown(tabulate([few, whole], rules=["validation"])))
    assert [row for row in plain if row.startswith("erm")] == ["erm domains=3", "erm"]


def test_one_number_of_domains_is_not_repeated_in_every_row():
    few = smaller(held_out({"w00": 0.5, "w01": 0.3}), ("w05", "w06"))
    other = smaller(held_out({"w00": 0.5, "w01": 0.3}, method="vrex"), ("w05", "w06"))
    assert set(tabulate([few, other])["method"]) == {"erm", "vrex"}


def test_bases_and_experts_have_no_row():
    """They are trained on one domain, or for a short time, to be merged."""
    rows = [
        *benchmark([[0.9, 0.5, 0.7]], method="score", role="merged", experts=("x", "y")),
        *benchmark([[0.8, 0.6, 0.7]], method="erm", role="expert", base="z", steps=7),
        *benchmark([[0.8, 0.6, 0.7]], method="erm", role="base", steps=3),
    ]
    frame = tabulate(rows)
    assert set(frame["method"]) == {"score"}
    assert tabulate(rows[3:]).empty
    # Nor do their settings label the others.
    together = tabulate([*rows, *benchmark([[0.1, 0.1, 0.1]])])
    assert set(together["method"]) == {"score", "erm"}


@pytest.mark.parametrize("more", [{}, {"given": {"lr": 0.1}}])
def test_the_upper_bound_is_not_marked_and_takes_no_place(more):
    frame = tabulate(
        [
            *benchmark([[0.9, 0.9, 0.9]], method="target_expert", **more),
            *benchmark([[0.8, 0.8, 0.8]], method="score"),
            *benchmark([[0.7, 0.7, 0.7]], method="ties"),
            *benchmark([[0.6, 0.6, 0.6]], method="base"),
        ],
    )
    rows = markdown_rows(as_markdown(frame[frame["rule"] == "sources"]))
    (bound,) = [row for name, row in rows.items() if name.startswith("target_expert")]
    assert bound[:3] == ["90.0"] * 3
    assert rows["score"][:3] == ["**80.0**"] * 3
    assert rows["ties"][:3] == ["*70.0*"] * 3
    assert rows["base"][:3] == ["60.0"] * 3


def test_a_bound_as_good_as_the_best_leaves_that_marked():
    accuracies = {"target_expert": 0.8, "score": 0.8, "ties": 0.7}
    frame = tabulate([r for m, a in accuracies.items() for r in benchmark([[a] * 3], method=m)])
    rows = markdown_rows(as_markdown(frame[frame["rule"] == "sources"]))
    assert rows["target_expert"][0] == "80.0"
    assert rows["score"][0] == "**80.0**"


def trusting(error: float | None, covered: float | None, *, trials: int = 1, **fields):
    """Records of one method whose confidence was looked at, or (None) was not."""
    rows = benchmark([[0.9, 0.5, 0.7]] * trials, **fields)
    for i, row in enumerate(rows):
        (target,) = row.unseen
        scores = dict(row.checkpoints[0].scores)
        if error is not None:
            # A little other for every domain and trial, the same on average.
            shift = (-0.02, 0.0, 0.02)[i % 3] + (0.01 if i // 3 % 2 else -0.01) * (trials > 1)
            main = replace(
                scores[target].main, calibration_error=error + shift, accuracy_at_90=covered + shift
            )
            scores[target] = replace(scores[target], main=main)
        yield replace(row, checkpoints=(replace(row.checkpoints[0], scores=scores),))


def test_confidence_has_two_columns_means_over_unseen_domains():
    found = numbers(tabulate(trusting(0.2, 0.8, trials=2)))
    assert list(found.index)[-3:] == ["in-domain", "calibration error", "accuracy at 90 %"]
    for name, value in (("calibration error", 0.2), ("accuracy at 90 %", 0.8)):
        assert found.loc[name, "accuracy"] == pytest.approx(value)
        assert found.loc[name, "stderr"] == pytest.approx(0.01)
        assert found.loc[name, "trials"] == 2


def test_of_calibration_errors_the_least_is_best_of_accuracies_the_greatest():
    records = [
        *trusting(0.3, 0.7),
        *trusting(0.1, 0.6, method="vrex"),
        *trusting(0.2, 0.8, method="dmg"),
    ]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert rows["method"][-2:] == ["calibration error", "accuracy at 90 %"]
    told = "no spread known, with calibration error (least is best) and accuracy at 90 % coverage;"
    assert told in as_markdown(tabulate(records, rules=["sources"]))
    assert rows["erm"][-2:] == ["30.0", "*70.0*"]
    assert rows["vrex"][-2:] == ["**10.0**", "60.0"]
    assert rows["dmg"][-2:] == ["*20.0*", "**80.0**"]
    latex = as_latex(tabulate(records, rules=["sources"]))
    assert r"calibration error & accuracy at 90 \% \\" in latex
    assert r"\textbf{10.0} & 60.0 \\" in latex


def test_records_from_before_have_a_dash_beside_others_and_no_column_alone():
    old = list(trusting(None, None, method="vrex"))
    assert not set(tabulate(old)["domain"]) & {"calibration error", "accuracy at 90 %"}
    assert "calibration" not in as_markdown(tabulate(old))
    rows = markdown_rows(as_markdown(tabulate([*trusting(0.1, 0.8), *old], rules=["sources"])))
    assert rows["erm"][-2:] == ["10.0", "80.0"]
    assert rows["vrex"][-2:] == ["–", "–"]
    assert "1 trial: no spread known" in as_markdown(tabulate([*trusting(0.1, 0.8), *old]))


def test_a_trial_that_was_read_in_part_is_in_no_mean_of_confidence():
    first = list(trusting(0.1, 0.8))
    second = [*trusting(0.3, 0.6), *trusting(None, None)]
    second = [replace(r, run=replace(r.run, trial=1)) for r in (second[0], second[4], second[5])]
    found = numbers(tabulate([*first, *second]))
    assert found.loc["calibration error", ["accuracy", "trials"]].tolist() == pytest.approx(
        [0.1, 1]
    )
    assert found.loc["mean", "trials"] == 2


def test_of_many_domains_confidence_is_a_mean_over_those_that_were_tested():
    frames = []
    for trial, (a, b) in enumerate([("w00", "w01"), ("w01", "w02")]):
        row = held_out({a: 0.9, b: 0.5}, trial=trial)
        scores = dict(row.checkpoints[0].scores)
        for name, error in ((a, 0.1), (b, 0.3)):
            main = replace(scores[name].main, calibration_error=error, accuracy_at_90=0.9)
            scores[name] = replace(scores[name], main=main)
        frames.append(replace(row, checkpoints=(replace(row.checkpoints[0], scores=scores),)))
    found = numbers(tabulate(frames), rule="validation").loc["calibration error"]
    assert found.tolist() == pytest.approx([0.2, 0.0, 2])


def test_a_terminal_without_room_leaves_out_confidence_and_says_so():
    records = [r for i in range(6) for r in trusting(0.1, 0.8, method=f"method{i}")]
    frame = tabulate(records, rules=["sources"])

    def shown_at(width: int) -> str:
        console = Console(width=width, file=StringIO())
        console.print(*as_rich(frame, width))
        return console.file.getvalue()

    assert "–" not in shown_at(100)
    assert re.search(r"calibration +accuracy *\n.* in-domain +error +at 90 %", shown_at(100))
    narrow = shown_at(70)
    assert re.search(r"mean +worst +in-domain *\n", narrow)
    assert "wider, or with --format md: calibration error and accuracy at 90 %" in " ".join(
        narrow.split()
    )


def test_few_methods_on_a_narrow_terminal_have_confidence_as_rows():
    console = Console(width=60, file=StringIO())
    console.print(*as_rich(tabulate(trusting(0.1, 0.8), rules=["sources"]), 60))
    assert re.search(r"calibration error +10.0", console.file.getvalue())
