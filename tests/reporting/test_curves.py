"""Curves, picks and gaps of records that are made by hand."""

from dataclasses import replace

import pytest

from afield.reporting.curves import (
    HELD_OUT_TARGET,
    best_checkpoint_accuracies,
    curve,
    gap,
    picked_checkpoints,
    selection_cases,
)
from afield.reporting.results import group_records
from tests.stores import DOMAINS, held_out, record


def one(records):
    (found,) = group_records(records)
    return found


def test_a_gap_is_from_the_choice_to_the_best_of_all_draws():
    records = [
        record("art", [0.2, 0.8, 0.6], [0.5, 0.6, 0.9]),
        record("art", [0.3, 0.9, 0.5], [0.4, 0.5, 0.6], draw=1),
    ]
    (case,) = selection_cases(one(records))
    choice = picked_checkpoints(one(records), "sources")["erm", 0, "art"]
    assert (choice.key, choice.step, choice.accuracy) == (records[0].run.key, 30, 0.6)
    found = gap(case, choice)
    assert found.best.key == records[1].run.key
    assert found.best.step == 20
    assert found.behind == pytest.approx(0.3)
    assert found.exact


def test_where_the_whole_was_not_read_the_sample_tells_and_says_so():
    records = [record("art", [0.2, 0.8, 0.6], [0.5, 0.6, 0.9], exact=False)]
    (case,) = selection_cases(one(records))
    found = gap(case, picked_checkpoints(one(records), "sources")["erm", 0, "art"])
    assert not found.exact
    assert found.behind == pytest.approx(0.2)
    assert curve(records[0]).part == "sample"


def test_with_one_checkpoint_there_is_no_gap():
    records = [record("art", [0.8])]
    (case,) = selection_cases(one(records))
    assert gap(case, picked_checkpoints(one(records), "sources")["erm", 0, "art"]) is None


def test_a_curve_has_the_sources_mean_and_the_unseen_domain_at_every_step():
    found = curve(record("photo", [0.2, 0.8], [0.5, 0.9]))
    assert found.steps == [10, 20]
    assert found.sources == [0.5, 0.9]
    assert found.unseen == [0.2, 0.8]
    assert found.validation == []
    assert found.part == "main"


def test_held_out_domains_are_one_case_and_their_mean_is_its_accuracy():
    records = [held_out("erm", [0.5, 0.7])]
    (case,) = selection_cases(one(records))
    assert case.target == HELD_OUT_TARGET
    assert picked_checkpoints(one(records), "validation")[
        "erm", 0, HELD_OUT_TARGET
    ].accuracy == pytest.approx(0.6)
    assert curve(records[0]).validation == [pytest.approx(0.7)]


def test_twins_are_no_cases():
    alone = record("art", [0.2, 0.8])
    twin = replace(alone, run=replace(alone.run, sources=("sketch",)))
    assert twin.unseen == ("art", "photo")
    assert [case.records for case in selection_cases(one([alone, twin]))] == [[alone]]


def test_cases_are_in_the_order_of_trials_and_domains():
    records = [record(t, [0.5], trial=i) for i in (1, 0) for t in reversed(DOMAINS)]
    found = [(case.trial, case.target) for case in selection_cases(one(records))]
    assert found == [(i, t) for i in (0, 1) for t in DOMAINS]


def test_where_a_run_is_best_in_validation_both_accuracies_are_known():
    assert best_checkpoint_accuracies(record("art", [0.2, 0.8, 0.6], [0.5, 0.9, 0.7])) == (0.9, 0.8)
