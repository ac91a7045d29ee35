"""From records to tables, against numbers computed by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from afield.data.domains import RESERVED_NAMES
from afield.errors import SpecError, UnknownNameError
from afield.reporting.charts.samples import describe_groups
from afield.reporting.formats import as_csv, as_markdown, as_rich
from afield.reporting.page import render_page, write_report
from afield.reporting.results import Results, group_records
from afield.reporting.table import (
    ALL_DATASETS,
    COLUMNS,
    find_column,
    format_value,
    lower_is_better,
    ranks,
    tabulate,
)
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.store import Store
from afield.training.metrics import find_metric
from afield.training.scores import Checkpoint, Scores
from tests.reporting.tables import (
    AT_HOME,
    DOMAINS,
    MANY,
    benchmark,
    checkpoint,
    held_out,
    markdown_rows,
    measured,
    numbers,
    record,
    score,
    trusting,
    with_groups,
)
from tests.stores import kept


def test_means_errors_and_the_worst_are_those_computed_by_hand():
    accuracies = np.array([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4], [0.7, 0.8, 0.5], [0.95, 0.3, 0.9]])
    scores = numbers(tabulate(benchmark(accuracies)))
    columns = {name: accuracies[:, i] for i, name in enumerate(DOMAINS)}
    # The worst domain of each trial, not the domain that is worst on average.
    columns |= {"mean": accuracies.mean(axis=1), "worst": np.array([0.5, 0.4, 0.5, 0.3])}
    columns["in-domain"] = np.full(4, 0.9)
    assert list(scores.index) == list(columns)
    for name, values in columns.items():
        assert scores.loc[name, "accuracy"] == pytest.approx(values.mean())
        assert scores.loc[name, "stderr"] == pytest.approx(np.std(values, ddof=1) / 2)
        assert scores.loc[name, "trials"] == 4


def test_the_order_of_the_records_is_nothing():
    records = benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4]])
    pd.testing.assert_frame_equal(tabulate(records[::-1]), tabulate(records))


def test_whether_lower_is_better_depends_on_the_column_and_the_metric():
    nll, accuracy = find_metric("nll"), find_metric("accuracy")
    mean, spread, calibration, confident = (
        find_column(name) for name in ("mean", "spread", "calibration error", "accuracy at 90 %")
    )
    for column in (None, mean):
        assert lower_is_better(column, nll)
        assert not lower_is_better(column, accuracy)
        assert format_value(0.5, column, nll) == "0.500"
        assert format_value(0.5, column, accuracy) == "50.0"
    for metric in (nll, accuracy):
        assert lower_is_better(spread, metric)
        assert lower_is_better(calibration, metric)
        assert not lower_is_better(confident, metric)
        assert format_value(0.5, calibration, metric) == "50.0"
        assert format_value(math.nan, None, metric) == "–"


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


def test_a_trial_with_a_domain_missing_counts_for_the_others_only():
    scores = numbers(tabulate(benchmark([[0.9, 0.5, 0.7], [0.8, 0.6, 0.4]])[:-1]))
    columns = ["art", "photo", "sketch", "mean", "worst", "in-domain"]
    assert scores["trials"].to_dict() == dict(zip(columns, (2, 2, 1, 1, 1, 1), strict=True))
    assert scores.loc["art", "accuracy"] == pytest.approx(0.85)
    assert scores.loc["sketch", "accuracy"] == 0.7
    assert scores.loc["mean", "accuracy"] == pytest.approx(0.7)
    assert scores.loc["worst", "accuracy"] == 0.5


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


def test_a_setting_that_differs_is_reported_in_every_row():
    records = [
        r for steps in (50, 90) for r in benchmark([[0.9, 0.5, 0.7]], given={"steps": steps})
    ]
    assert set(tabulate(records)["method"]) == {"erm steps=50", "erm steps=90"}


def test_two_averages_are_two_rows_and_a_file_named_like_a_dataset_is_another_table():
    records = benchmark([[0.9, 0.5, 0.7]])
    averaged = benchmark([[0.8, 0.5, 0.7]], average="ema")
    assert set(tabulate(records + averaged)["method"]) == {"erm", "erm + ema"}
    own = benchmark([[0.9, 0.5, 0.7]], dataset="/a/things.npz", data="1234567")
    assert set(tabulate(records + own)["dataset"]) == {"things", "a/things"}


def versions(*times, **words):
    """Records of one dataset whose content changed, with the time of each version."""
    return [
        replace(r, at=at)
        for number, at in enumerate(times)
        for r in benchmark([[0.9, 0.5, 0.7]], data=f"{number}" * 9, **words)
    ]


def test_versions_of_a_folder_have_its_name_a_size_and_a_day_and_the_newest_is_first():
    day = 86_400.0
    cache = "/home/ada/.cache/afield/features/0123/Kliniken.npz"
    words = {"dataset": cache, "folder": "Kliniken", "encoder": "timm:resnet18"}
    old, new = group_records(versions(20_000 * day, 20_001 * day, **words))[::-1]
    assert (new.name, old.name) == (
        "Kliniken (60 images, 5 October)",
        "Kliniken (60 images, 4 October)",
    )
    assert (new.is_older, old.is_older) == (False, True)
    titles = [each.name for each in group_records(versions(20_000 * day, 20_400 * day, **words))]
    assert titles == [
        "Kliniken (60 images, 8 November 2025)",
        "Kliniken (60 images, 4 October 2024)",
    ]


def test_features_of_two_networks_are_told_apart_by_the_networks():
    words = {"dataset": "/cache/Kliniken.npz", "folder": "Kliniken"}
    records = benchmark([[0.9, 0.5, 0.7]], data="1", encoder="timm:resnet18", **words)
    records += benchmark([[0.9, 0.5, 0.7]], data="2", encoder="timm:resnet50", **words)
    names = [(each.name, each.is_older) for each in group_records(records)]
    assert names == [("Kliniken (timm:resnet18)", False), ("Kliniken (timm:resnet50)", False)]


def test_a_table_has_the_name_of_its_file_without_its_columns():
    (found,) = group_records(
        benchmark([[0.9, 0.5, 0.7]], dataset="/a/heart.csv?domain=x", data="1")
    )
    assert found.name == "heart.csv"


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
    table = tabulate(records, rules=["sources"])
    assert set(table["dataset"]) == {"mine (60 samples, 111111)", "mine (60 samples, 222222)"}
    unseen = table[table["domain"] != "in-domain"]
    assert unseen["accuracy"].tolist() == pytest.approx([0.2] * 5 + [0.8] * 5)


def test_a_domain_that_a_method_never_finished_is_a_dash():
    records = benchmark([[0.9, 0.5, 0.7]])[:2] + benchmark([[0.8, 0.6, 0.4]], method="vrex")
    frame = tabulate(records, rules=["sources"])
    assert markdown_rows(as_markdown(frame))["erm"] == ["**90.0**", "*50.0*"] + ["–"] * 4


def test_a_copy_of_ones_data_elsewhere_does_not_double_the_cells():
    records = [
        r
        for d in ("/a/mine.npz", "/b/mine.npz")
        for r in benchmark([[0.9, 0.5, 0.7]], dataset=d, data="1234567")
    ]
    rows = markdown_rows(as_markdown(tabulate(records, rules=["sources"])))
    assert len(rows["erm"]) == len(rows["method"])


def test_records_of_unequal_length_are_different_rows_though_nothing_was_given():
    first, *rest = benchmark([[0.9, 0.5, 0.7]])
    longer = [replace(r, run=replace(r.run, steps=9999)) for r in (first, *rest)]
    frame = tabulate([first, *rest, *longer], rules=["sources"])
    steps = first.run.steps
    assert list(dict.fromkeys(frame["method"])) == [f"erm steps={steps}", "erm steps=9999"]


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
        scores = numbers(frame, rule=rule)
        columns = {
            "mean": [values.mean() for values in trials],
            "worst 10 %": [np.sort(values)[:2].mean() for values in trials],
            "spread": [np.std(values) for values in trials],
            "in-domain": [AT_HOME] * 3,
        }
        assert list(scores.index) == list(columns)
        for name, values in columns.items():
            assert scores.loc[name, "accuracy"] == pytest.approx(np.mean(values))
            assert scores.loc[name, "stderr"] == pytest.approx(np.std(values, ddof=1) / 3**0.5)
            assert scores.loc[name, "trials"] == 3


def test_two_trials_with_different_test_domains_are_those_computed_by_hand():
    records = [
        held_out({"w00": 0.9, "w01": 0.5, "w02": 0.7}, trial=0),
        held_out({"w02": 0.2, "w24": 0.4, "w25": 0.6}, trial=1),
    ]
    scores = numbers(tabulate(records, rules=["validation"]), rule="validation")
    # Of fewer than fifteen domains the worst tenth is the worst one.
    assert scores["accuracy"].to_dict() == pytest.approx(
        {
            "mean": (0.7 + 0.4) / 2,
            "worst 10 %": (0.5 + 0.2) / 2,
            "spread": (0.08 / 3) ** 0.5,
            "in-domain": AT_HOME,
        }
    )
    assert scores["stderr"].to_dict() == pytest.approx(
        {"mean": 0.15, "worst 10 %": 0.15, "spread": 0.0, "in-domain": 0.0}, abs=1e-9
    )


@pytest.mark.parametrize(("count", "worst"), [(4, 1), (14, 1), (16, 2), (21, 2)])
def test_the_worst_tenth_is_a_rounded_number_of_domains_but_at_least_one(count, worst):
    values = [(i + 1) / 100 for i in range(count)]
    frame = tabulate([held_out(dict(zip(MANY, values, strict=False)))], rules=["target"])
    scores = numbers(frame, rule="target")
    assert scores.loc["worst 10 %", "accuracy"] == pytest.approx(sum(values[:worst]) / worst)


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
    result = numbers(tabulate(records, rules=["target"]), rule="target")
    assert result["trials"].to_dict() == {"mean": 1, "worst 10 %": 1, "spread": 1, "in-domain": 1}


def at_home(target: str, probe: dict[str, float], known: dict[str, float], **fields) -> Record:
    """A record whose checkpoint was read on its sources, also with the domain label given."""
    scores = {target: Scores(main=score(0.5), probe=score(0.5))}
    for name in probe:
        with_label = score(known[name]) if known else None
        scores[name] = Scores(probe=score(probe[name]), known=with_label)
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
    result = numbers(tabulate(records)).loc["in-domain"]
    means = probes.mean(axis=(1, 2))
    assert result["accuracy"] == pytest.approx(means.mean())
    assert result["stderr"] == pytest.approx(means.std(ddof=1) / 2**0.5)


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
    assert "1 trial, no standard error" in as_markdown(tabulate(records, rules=["sources"]))


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
        scores = numbers(frame, rule="validation")
        assert scores.loc["mean", "accuracy"] == pytest.approx((0.7 + 0.3) / 2)
        assert scores.loc["mean", "stderr"] == pytest.approx(0.2)
        assert scores.loc["worst 10 %", "accuracy"] == pytest.approx((0.5 + 0.2) / 2)
        assert scores.loc["spread", "accuracy"] == pytest.approx((0.2 + 0.1) / 2)
        assert set(scores["trials"]) == {2}


def test_every_number_of_domains_is_a_row_of_one_table():
    whole = held_out({"w00": 0.9, "w01": 0.7})
    few = smaller(held_out({"w00": 0.5, "w01": 0.3}), ("w05", "w06", "w07"))
    everything = replace(whole, run=replace(whole.run, given={"domains": 22}))
    rows = markdown_rows(as_markdown(tabulate([few, everything], rules=["validation"])))
    assert [row for row in rows if row.startswith("erm")] == ["erm domains=22", "erm domains=3"]
    assert (rows["erm domains=3"][0], rows["erm domains=22"][0]) == ("*40.0*", "**80.0**")
    plain = markdown_rows(as_markdown(tabulate([few, whole], rules=["validation"])))
    assert [row for row in plain if row.startswith("erm")] == ["erm", "erm domains=3"]


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
    assert set(tabulate(rows)["method"]) == {"score"}
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
        ]
    )
    rows = markdown_rows(as_markdown(frame[frame["rule"] == "sources"]))
    (bound,) = [row for name, row in rows.items() if name.startswith("target_expert")]
    assert bound[:3] == ["90.0"] * 3
    assert rows["score"][:3] == ["**80.0**"] * 3
    assert rows["ties"][:3] == ["*70.0*"] * 3
    assert rows["base"][:3] == ["60.0"] * 3


def test_a_rule_has_no_table_if_only_the_upper_bound_has_numbers_under_it(monkeypatch):
    picks = Results.picks

    def only_the_bound(results, rule):
        result = picks(results, rule)
        return {
            m: p if rule == "sources" or m == "target_expert" else {} for m, p in result.items()
        }

    monkeypatch.setattr(Results, "picks", only_the_bound)
    bound = benchmark([[0.9, 0.9, 0.9]], method="target_expert")
    frame = tabulate([*bound, *benchmark([[0.8, 0.8, 0.8]], method="score")])
    assert set(frame["rule"]) == {"sources"}
    assert set(frame["method"]) == {"score", "target_expert"}


def test_a_bound_as_good_as_the_best_leaves_that_marked():
    accuracies = {"target_expert": 0.8, "score": 0.8, "ties": 0.7}
    frame = tabulate([r for m, a in accuracies.items() for r in benchmark([[a] * 3], method=m)])
    rows = markdown_rows(as_markdown(frame[frame["rule"] == "sources"]))
    assert rows["target_expert"][0] == "80.0"
    assert rows["score"][0] == "**80.0**"


def test_confidence_has_two_columns_means_over_unseen_domains():
    scores = numbers(tabulate(trusting(0.2, 0.8, trials=2)))
    assert list(scores.index)[-3:] == ["in-domain", "calibration error", "accuracy at 90 %"]
    for name, value in (("calibration error", 0.2), ("accuracy at 90 %", 0.8)):
        assert scores.loc[name, "accuracy"] == pytest.approx(value)
        assert scores.loc[name, "stderr"] == pytest.approx(0.01)
        assert scores.loc[name, "trials"] == 2


def test_records_from_before_have_a_dash_beside_others_and_no_column_alone():
    old = list(trusting(None, None, method="vrex"))
    assert not set(tabulate(old)["domain"]) & {"calibration error", "accuracy at 90 %"}
    assert "calibration" not in as_markdown(tabulate(old))
    rows = markdown_rows(as_markdown(tabulate([*trusting(0.1, 0.8), *old], rules=["sources"])))
    assert rows["erm"][-2:] == ["10.0", "80.0"]
    assert rows["vrex"][-2:] == ["–", "–"]
    assert "1 trial, no standard error" in as_markdown(tabulate([*trusting(0.1, 0.8), *old]))


def test_a_trial_that_was_read_in_part_is_in_no_mean_of_confidence():
    first = list(trusting(0.1, 0.8))
    second = [*trusting(0.3, 0.6), *trusting(None, None)]
    second = [replace(r, run=replace(r.run, trial=1)) for r in (second[0], second[4], second[5])]
    scores = numbers(tabulate([*first, *second]))
    assert scores.loc["calibration error", ["accuracy", "trials"]].tolist() == pytest.approx(
        [0.1, 1]
    )
    assert scores.loc["mean", "trials"] == 2


def test_of_many_domains_confidence_is_a_mean_over_those_that_were_tested():
    frames = []
    for trial, (a, b) in enumerate([("w00", "w01"), ("w01", "w02")]):
        row = held_out({a: 0.9, b: 0.5}, trial=trial)
        scores = dict(row.checkpoints[0].scores)
        for name, error in ((a, 0.1), (b, 0.3)):
            main = replace(scores[name].main, calibration_error=error, accuracy_at_90=0.9)
            scores[name] = replace(scores[name], main=main)
        frames.append(replace(row, checkpoints=(replace(row.checkpoints[0], scores=scores),)))
    result = numbers(tabulate(frames), rule="validation").loc["calibration error"]
    assert result.tolist() == pytest.approx([0.2, 0.0, 2])


def test_no_domain_may_have_the_name_of_a_column():
    assert set(RESERVED_NAMES) == {column.name for column in COLUMNS}


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
    assert markdown_rows(as_markdown(overall))["vrex"] == ["60.0 ± 10.0", "–", "–"]
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
