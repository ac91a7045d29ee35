"""Records as benchmarks; what tables make of them is tested with tables."""

import math
from dataclasses import replace

import pytest

from afield.reporting.results import group_records
from afield.reporting.table import tabulate
from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import Checkpoint, Scores
from tests.stores import DOMAINS, benchmark_records, held_out, record, score


def test_records_are_grouped_by_dataset_and_by_how_many_domains_are_held_out():
    groups = group_records([*benchmark_records([[0.5] * 3]), held_out("erm", [0.5, 0.6])])
    assert [(each.name, each.many_held_out) for each in groups] == [
        ("things", False),
        ("many", True),
    ]
    assert groups[1].title == "many, 2 domains held out, 2 validating"
    assert list(groups[0].domains) == list(DOMAINS)


def test_bases_and_experts_are_no_rows():
    rows = [record("art", [0.5], role=role) for role in ("", "base", "expert")]
    (group,) = group_records(rows)
    assert group.methods == {"erm": [rows[0]]}


def test_every_trial_and_domain_has_its_pick_or_none():
    (group,) = group_records(benchmark_records([[0.5, 0.6, 0.7], [0.1, 0.2, 0.3]])[:5])
    picks = group.picks("sources")["erm"]
    accuracies = {
        (trial, domain): pick and pick.accuracy
        for trial, own in picks.items()
        for domain, pick in own.items()
    }
    assert accuracies[0, "art"] == 0.5
    assert accuracies[1, "photo"] == 0.2
    assert accuracies[1, "sketch"] is None


def test_only_runs_that_leave_one_domain_out_test_on_all_domains():
    twin = record("art", [0.5])
    twin = replace(twin, run=replace(twin.run, sources=twin.run.sources[:1]))
    assert len(twin.unseen) == 2
    (group,) = group_records([twin])
    assert list(group.domains) == []
    (group,) = group_records([twin, record("art", [0.5])])
    assert list(group.domains) == list(DOMAINS)


def test_one_domain_is_held_out_and_several_are():
    titles = [group_records([held_out("erm", [0.5] * n)])[0].title for n in (1, 2)]
    assert [title.partition(" held")[0] for title in titles] == [
        "many, 1 domain",
        "many, 2 domains",
    ]


def named(sources, tested, accuracies, *, validating=(), unused=(), given=None, **fields):
    """A record of one model with these accuracies on the domains that it is tested on."""
    names = ("a", "b", "c", "d")
    scores = {n: Scores(probe=score(0.9)) for n in sources}
    scores |= {n: Scores(main=score(0.7), probe=score(0.7)) for n in validating}
    scores |= {
        n: Scores(main=score(a), probe=score(a)) for n, a in zip(tested, accuracies, strict=True)
    }
    given = {"targets": [list(tested)]} if given is None else given
    loo = len(tested) == 1 and not validating and not unused
    run = Run(
        "toy",
        "erm",
        tuple(sources),
        tested=() if loo else tuple(tested),
        unused=tuple(unused),
        given=given,
        **fields,
    )
    ordered = {name: scores[name] for name in names if name in scores}
    return Record(run, (Checkpoint(10, ordered, {}),), 1.0, {}, "cpu, 1 thread(s)")


def shown(records, rule="sources"):
    """Titles, and the accuracy of each column of the first row."""
    return {
        results.title: {
            name: pick and round(pick.accuracy, 6)
            for name, pick in results.picks(rule)["erm"][0].items()
        }
        for results in group_records(records)
    }


def test_domains_left_out_together_have_a_column_each():
    assert shown([named("ab", "cd", (0.5, 0.7))]) == {"toy, tested on c, d": {"c": 0.5, "d": 0.7}}


def test_targets_that_were_named_are_the_only_columns():
    given = {"targets": [["a"], ["c"]]}
    records = [named("bcd", "a", (0.5,), given=given)]
    records.append(named("abd", "c", (0.6,), given=given))
    assert shown(records) == {"toy, tested on a, c in turn": {"a": 0.5, "c": 0.6}}
    # One that was asked for and is missing is a gap, and so is every domain otherwise.
    assert shown(records[:1]) == {"toy, tested on a, c in turn": {"a": 0.5, "c": None}}
    unnamed = named("abc", "d", (0.7,), given={})
    assert shown([*records, unnamed]) == {"toy": {"a": 0.5, "b": None, "c": 0.6, "d": 0.7}}


def test_a_single_source_has_one_column_with_the_mean_over_all_others():
    records = [
        named("a", "bcd", (0.1, 0.2, 0.6)),
        named("b", "acd", (0.5, 0.5, 0.8)),
        named("c", "abd", (0.2, 0.4, 0.6)),
    ]
    title = "toy, by the only source, mean over the others"
    assert shown(records) == {title: {"a": 0.3, "b": 0.6, "c": 0.4}}
    frame = tabulate(records, rules="sources").set_index("domain")["accuracy"]
    assert frame["mean"] == pytest.approx(13 / 30)
    assert frame["worst"] == pytest.approx(0.3)
    # One source alone is shown by its targets.
    assert shown(records[:1]) == {"toy, tested on b, c, d": {"b": 0.1, "c": 0.2, "d": 0.6}}


def test_named_validation_domains_and_sources_are_in_the_title():
    validated = named("ab", "c", (0.5,), validating="d")
    other = named("ac", "b", (0.6,), validating="d")
    assert shown([validated, other], "validation") == {"toy, validated on d": {"b": 0.6, "c": 0.5}}
    unused = named("a", "bc", (0.5, 0.6), unused="d")
    assert shown([unused]) == {"toy, trained on a, tested on b, c": {"b": 0.5, "c": 0.6}}


def test_whole_domains_and_random_splits_are_in_the_title_or_in_the_row():
    whole = named("abc", "d", (0.5,), given={"report": "whole"}, report="whole")
    plain = named("abc", "d", (0.4,), given={})
    assert group_records([whole])[0].title == "toy, on whole domains"
    assert list(group_records([whole, plain])[0].methods) == ["erm report=whole", "erm"]
    # The upper bound has no say in the title, unless it is alone.
    bound = replace(plain, run=replace(plain.run, method="target_expert", role="merged"))
    assert group_records([bound, whole])[0].title == "toy, on whole domains"
    assert group_records([bound])[0].title == "toy"
    random = named("abc", "d", (0.5,), given={"split": "random"}, split="random")
    assert group_records([random])[0].title == "toy, split at random"


def test_epochs_label_a_row_whatever_steps_they_come_to():
    records = [
        named("abc", "d", (0.5,), given={"epochs": 3.0}, epochs=3.0, steps=30),
        named("abd", "c", (0.5,), given={"epochs": 3.0}, epochs=3.0, steps=20),
        named("abd", "c", (0.5,), given={}, steps=20),
    ]
    assert list(group_records(records)[0].methods) == ["erm epochs=3", "erm steps=20"]


def test_a_source_without_all_of_its_targets_has_no_mean():
    records = [named("a", "bcd", (0.1, 0.2, 0.6)), named("b", "acd", (0.5, 0.5, 0.8))]
    (checkpoint,) = records[0].checkpoints
    scores = {**checkpoint.scores, "d": Scores(probe=score(0.6))}
    lacking = replace(records[0], checkpoints=(replace(checkpoint, scores=scores),))
    title = "toy, by the only source, mean over the others"
    assert shown(records)[title]["a"] == pytest.approx(0.3)
    assert shown([lacking, records[1]])[title]["a"] is None
    assert shown([lacking, records[1]])[title]["b"] == pytest.approx(0.6)
    frame = tabulate([lacking, records[1]], rules="sources").set_index("domain")["accuracy"]
    assert math.isnan(frame["mean"])
