"""One sentence on a benchmark, and that it never says more than is known."""

import pytest

from afield.reporting.comparison import comparisons
from afield.reporting.headline import (
    bidi_isolate,
    build_headline,
    escape_invisible,
    format_points,
    leading_rule,
)
from afield.reporting.results import group_records
from afield.reporting.table import tabulate
from tests.stores import HOSTILE, benchmark_records, held_out, noisy


def headline(*records):
    every = [record for own in records for record in own]
    (benchmark,) = group_records(every)
    frame = tabulate(every)
    rule = leading_rule(frame)
    known = comparisons(benchmark, rule) if rule else []
    found = build_headline(benchmark, frame, known)
    plain = str.maketrans({"\u2068": "", "\u2069": "", "\u00a0": " "})
    return found.sentence.translate(plain), [each.translate(plain) for each in found.remarks], found


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))


def test_a_clear_winner_is_named_with_its_difference_and_interval():
    good = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
    text, remarks, found = headline(ERM, good)
    assert text.startswith("good is best on the unseen domains of things: 80.")
    assert (
        "points above erm. The difference is larger than the variation over trials (95 % interval +"
        in text
    )
    assert found.best == "good"
    (remark,) = remarks
    assert remark.startswith("Selection rule: sources, training-domain validation; mean over")
    assert remark.endswith("unseen domains and 3 trials.")


def test_a_winner_by_chance_is_said_to_be_one():
    like = benchmark_records(noisy(0.701, 3, 3, seed=3), method="like")
    text, _, _ = headline(ERM, like)
    assert "The difference may be chance (95 % interval −" in text


def test_erm_may_be_the_best():
    bad = benchmark_records(noisy(0.5, 3, 3, seed=2), method="bad")
    text, _, found = headline(ERM, bad)
    assert text.startswith("No method beats erm on the unseen domains of things: it reaches 7")
    assert "points above bad. The difference is larger than" in text
    assert found.best == "erm"


def test_of_equals_erm_is_named():
    same = benchmark_records(noisy(0.7, 3, 3, seed=1), method="a_copy")
    text, _, _ = headline(ERM, same)
    assert text.startswith("No method beats erm")
    assert "level with a_copy" in text
    assert "may be chance" not in text


def test_with_one_trial_no_spread_is_known():
    erm, good = (benchmark_records([[a] * 3], method=m) for m, a in (("erm", 0.5), ("good", 0.9)))
    text, _, _ = headline(erm, good)
    assert "40.0 points above erm. With only one trial, this may be chance." in text
    assert "variation over trials" not in text


def test_without_erm_nothing_is_said_of_plain_training():
    first = benchmark_records(noisy(0.8, 3, 3, seed=2), method="first")
    second = benchmark_records(noisy(0.6, 3, 3, seed=3), method="second")
    text, remarks, _ = headline(first, second)
    assert text.startswith("first is best on the unseen domains of things: ")
    assert "points above second" in text
    assert remarks[0].startswith("erm was not run")


def test_one_method_alone_is_compared_with_nothing():
    text, remarks, _ = headline(ERM)
    assert text.startswith("erm reaches ")
    assert remarks[0] == "Only one method was run, so there is no comparison."


def test_what_has_seen_the_target_is_never_the_best():
    bound = benchmark_records(
        noisy(0.99, 3, 3), method="target_expert", role="merged", experts=("x",)
    )
    text, _, _ = headline(ERM, bound)
    assert text.startswith("erm reaches ")


def test_methods_that_differ_from_erm_are_sorted_out():
    good = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
    bad = benchmark_records(noisy(0.5, 3, 3, seed=3), method="bad")
    like = benchmark_records(noisy(0.7, 3, 3, seed=4), method="like")
    _, remarks, _ = headline(ERM, good, bad, like)
    assert remarks[1] == (
        "Clearly better than erm: good; clearly worse than erm: bad; no clear difference: 1. By "
        "chance alone, one comparison in twenty would look clear; there are 3."
    )


def test_a_method_that_lacks_runs_has_no_place_and_is_named():
    part = benchmark_records(noisy(0.9, 3, 3, seed=2), method="part")[:2]
    text, remarks, _ = headline(ERM, part)
    assert text.startswith("erm reaches ")
    assert remarks[-1] == "Not ranked because runs are missing: part."


def test_where_no_mean_is_known_none_is_said():
    text, _, found = headline(benchmark_records([[0.5, 0.5, 0.5]])[:1])
    assert text == "No method has finished all its runs on things yet."
    assert found.best == ""
    (benchmark,) = group_records(ERM)
    assert build_headline(benchmark, tabulate([]), []).sentence.startswith("No table: ")


def test_the_oracle_leads_only_where_nothing_else_can():
    assert leading_rule(tabulate(ERM)) == "sources"
    assert leading_rule(tabulate(ERM, rules="target")) == "target"
    assert leading_rule(tabulate([])) == ""
    many = [held_out("erm", [0.5, 0.6], trial=t) for t in range(2)]
    assert leading_rule(tabulate(many)) == "validation"
    (benchmark,) = group_records(ERM)
    found = build_headline(benchmark, tabulate(ERM, rules="target"), [])
    assert (
        "test-domain validation (oracle), which uses the target: an upper bound, not a result"
        in found.remarks[1]
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_in_a_name_acts(name):
    shown = escape_invisible(name)
    assert not set(shown) & {"\u202e", "\u2028", "\n"}
    assert bidi_isolate(name) == f"\u2068{shown}\u2069"
    assert escape_invisible("Привет, שלום") == "Привет, שלום"


def test_points_have_a_sign_and_zero_has_none():
    assert [format_points(v) for v in (0.012, -0.012, 0.0001, -0.0001)] == [
        "+1.2",
        "−1.2",
        "0.0",
        "0.0",
    ]
    assert format_points(-0.012, sign=False) == "1.2"
