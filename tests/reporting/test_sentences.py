"""One sentence on a benchmark, and that it never says more than is known."""

import re
from dataclasses import replace

import pytest

from afield.reporting.claims import build_claims, leading_rule
from afield.reporting.results import group_records
from afield.reporting.sentences import (
    bidi_isolate,
    build_headline,
    build_summary,
    claim_lines,
    escape_invisible,
    format_points,
)
from afield.reporting.table import tabulate
from tests.stores import DOMAINS, HOSTILE, benchmark_records, held_out, noisy


def headline(*records):
    every = [record for own in records for record in own]
    (benchmark,) = group_records(every)
    frame = tabulate(every)
    claim = build_claims(benchmark, frame).get(leading_rule(frame))
    headline = build_headline(benchmark, frame, claim)
    plain = str.maketrans({"\u2068": "", "\u2069": "", "\u00a0": " "})
    return (
        headline.sentence.translate(plain),
        [each.translate(plain) for each in headline.remarks],
        headline,
    )


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))


def rows(method, mean, seed=2, **fields):
    return benchmark_records(noisy(mean, 3, 3, seed=seed), method=method, **fields)


GOOD, BAD = rows("good", 0.8), rows("bad", 0.5)


@pytest.mark.parametrize(
    ("records", "start", "part", "absent"),
    [
        (
            [ERM, GOOD],
            "good leads on the unseen domains of things: 80.",
            "points above erm. That is more than chance (95 % interval +",
            "may be chance",
        ),
        ([ERM, rows("like", 0.701, 3)], "", "That may be chance (95 % interval −", "more than"),
        (
            [ERM, BAD],
            "No method beats erm on the unseen domains of things: it reaches 7",
            "points above bad. That is more than chance",
            "may be chance",
        ),
        (
            [ERM, rows("a_copy", 0.7, 1)],
            "No method beats erm",
            "level with a_copy",
            "may be chance",
        ),
        (
            [benchmark_records([[0.5] * 3]), benchmark_records([[0.9] * 3], method="good")],
            "good leads",
            "40.0 points above erm. Cannot tell whether this is chance: there is only one trial.",
            "interval",
        ),
        (
            [rows("first", 0.8), rows("second", 0.6, 3)],
            "first leads on the unseen domains of things: ",
            "points above second",
            "erm",
        ),
        ([ERM], "erm reaches ", "", "chance"),
        # What has seen the target is never the best.
        (
            [ERM, rows("target_expert", 0.99, 0, role="merged", experts=("x",))],
            "erm reaches ",
            "",
            "target_expert",
        ),
    ],
)
def test_the_leader_is_named_with_its_difference_and_whether_that_is_chance(
    records, start, part, absent
):
    text, _, _ = headline(*records)
    assert text.startswith(start)
    assert part in text
    assert absent not in text


def test_the_best_method_is_known_by_its_name():
    assert headline(ERM, GOOD)[2].best == "good"
    assert headline(ERM, BAD)[2].best == "erm"


def test_remarks_name_the_rule_and_what_is_missing_for_a_comparison():
    remark = headline(ERM, GOOD)[1][0]
    assert remark.startswith("Selection rule: sources, training-domain validation; mean over")
    assert remark.endswith("unseen domains and 3 trials.")
    assert headline(GOOD, BAD)[1][0].startswith("erm was not run")
    assert headline(ERM)[1][0] == "Only one method was run, so there is no comparison."


def test_methods_that_differ_from_erm_are_sorted_out():
    _, remarks, _ = headline(ERM, GOOD, rows("bad", 0.5, 3), rows("like", 0.7, 4))
    assert remarks[3] == (
        "Clearly better than erm: good; clearly worse than erm: bad; no clear difference: 1 "
        "(corrected for 3 comparisons)."
    )


def test_a_method_that_lacks_runs_has_no_place_and_is_named():
    part = benchmark_records(noisy(0.9, 3, 3, seed=2), method="part")[:2]
    text, remarks, _ = headline(ERM, part)
    assert text.startswith("erm reaches ")
    assert remarks[-1] == "Not ranked because runs are missing: part."


def test_where_no_mean_is_known_none_is_said():
    text, _, result = headline(benchmark_records([[0.5, 0.5, 0.5]])[:1])
    assert text == "No method has finished all its runs on things yet."
    assert result.best == ""
    (benchmark,) = group_records(ERM)
    assert build_headline(benchmark, tabulate([]), None).sentence.startswith("No table: ")


def test_a_headline_from_the_oracle_says_so():
    (benchmark,) = group_records(ERM)
    frame = tabulate(ERM, rules="target")
    headline = build_headline(benchmark, frame, build_claims(benchmark, frame)["target"])
    assert (
        "test-domain validation (oracle), which uses the target: an upper bound, not a result"
        in headline.remarks[1]
    )


def test_the_best_of_many_is_corrected_for_their_number():
    rivals = [
        benchmark_records(noisy(0.7, 3, 3, seed=seed), method=f"m{seed}") for seed in range(2, 7)
    ]
    text, remarks, _ = headline(ERM, *rivals)
    assert re.search(
        r"That may be chance \(95 % interval −\d+\.\d to \+\d+\.\d, corrected for 5 "
        r"comparisons\); it takes (at least \d+|\d+ to \d+|more than 1000) trials to settle\.$",
        text,
    )
    assert any(
        each.startswith("With 95 % confidence, the best method is one of m") for each in remarks
    )


def test_remarks_speak_about_new_domains_and_power():
    _, remarks, _ = headline(ERM, GOOD)
    assert re.fullmatch(
        r"The interval speaks about these domains\. For a new domain like these, expect a mean "
        r"difference of [+−]\d+\.\d to \+\d+\.\d\.",
        remarks[1],
    )
    assert remarks[2] == "good is clearly better than every other method."
    assert re.fullmatch(
        r"With 3 trials, a true difference of \d\.\d points is detected with a probability of "
        r"80 %; one of 1 point takes \d+ trials\.",
        remarks[3],
    )


def test_trials_that_all_agree_and_single_domains_are_named():
    erm, good = (
        benchmark_records([[a] * 3] * 3, method=m) for m, a in (("erm", 0.5), ("good", 0.75))
    )
    text, _, _ = headline(erm, good)
    assert "Cannot tell whether this is chance: all trials gave the same difference." in text
    one, other = (
        held_records(noisy(0.6 + plus, 8, 1, seed=seed), method)
        for method, plus, seed in (("erm", 0.0, 1), ("good", 0.2, 2))
    )
    _, remarks, _ = headline(one, other)
    assert "One domain does not show how the difference varies over domains." in remarks[1]
    few = [held_records(noisy(0.6, 3, 1, seed=n), m) for n, m in enumerate(("erm", "good"))]
    text, _, _ = headline(*few)
    assert "3 pairs of trial and domain that differ are too few." in text


def held_records(rows, method):
    return [held_out(method, row, trial=trial) for trial, row in enumerate(rows)]


def test_a_claim_is_one_line_per_dataset_and_rule():
    records = [*ERM, *GOOD]
    lines = claim_lines(records, tabulate(records))
    assert list(lines) == [("things", "sources"), ("things", "target")]
    line = lines["things", "sources"]
    assert line.startswith("good leads with 8")
    assert "points above erm. That is more than chance (95\u00a0% interval +" in line
    assert "\n" not in line
    (alone,) = {line.partition(" with ")[0] for line in claim_lines(ERM, tabulate(ERM)).values()}
    assert alone == "erm leads"
    hostile = benchmark_records(noisy(0.9, 3, 3), method=HOSTILE[2])
    (line, _) = claim_lines([*ERM, *hostile], tabulate([*ERM, *hostile])).values()
    assert line.startswith("rtl\\u202egpj.exe leads")


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


def test_where_lower_is_better_the_lowest_leads_and_no_points_are_named():
    # Every test record has a loss of 1, and rises of the loss are given here.
    records = [
        replace(own, checkpoints=tuple(with_loss(each, loss) for each in own.checkpoints))
        for method, plus in (("erm", 0.0), ("good", -0.5))
        for own in benchmark_records(noisy(0.7, 3, 3, seed=1), method=method)
        for loss in [1 + plus + 0.01 * own.run.trial * (method == "good")]
    ]
    (results,) = group_records(records, "nll")
    frame = tabulate(records, metric="nll")
    claim = build_claims(results, frame)["sources"]
    assert claim.leader == "good"
    assert claim.comparison.difference == pytest.approx(0.49)
    line = claim_lines(records, frame)["things", "sources"].replace("\u00a0", " ")
    assert line.startswith(
        "good leads with 0.510, 0.490 below erm. That is more than chance (95 % interval −0."
    )
    assert "points" not in " ".join(build_headline(results, frame, claim).remarks)


def with_loss(checkpoint, loss):
    def changed(score):
        return score and replace(score, loss=loss)

    scores = {
        name: replace(each, main=changed(each.main), probe=changed(each.probe))
        for name, each in checkpoint.scores.items()
    }
    return replace(checkpoint, scores=scores)


def built(*records, store="runs"):
    every = [each for own in records for each in own]
    (results,) = group_records(every)
    frame = tabulate(every)
    claim = build_claims(results, frame).get("sources")
    return build_summary(results, frame, "sources", claim, store)


def summary_rows(method, mean, *, seed=0, trials=3, spread=0.01, **fields):
    return benchmark_records(
        noisy(mean, trials, 3, seed=seed, spread=spread), method=method, **fields
    )


SUMMARY_ERM = summary_rows("erm", 0.7)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([summary_rows("good", 0.8, seed=1)], "good is better than erm."),
        ([summary_rows("close", 0.705, seed=1)], "No method clearly beats erm."),
        ([summary_rows("bad", 0.6, seed=1)], "No method beats erm."),
        ([], "erm was run; there is nothing to compare."),
    ],
)
def test_the_verdict_has_at_most_ten_words(others, verdict):
    result = built(SUMMARY_ERM, *others).verdict
    assert result.replace("\u2068", "").replace("\u2069", "") == verdict
    assert len(result.split()) <= 10


def test_one_trial_is_too_few_and_three_are_suggested():
    result = built(summary_rows("erm", 0.7, trials=1), summary_rows("good", 0.8, seed=1, trials=1))
    assert result.verdict == "Too few results to tell methods apart."
    command = "afield bench things --methods erm,good --trials 3 --store runs"
    assert result.steps[0].command == command


def test_tiles_show_mean_gain_and_worst_domain():
    mean, gain, worst = built(SUMMARY_ERM, summary_rows("good", 0.8, seed=1)).tiles
    assert "good" in mean.label
    assert mean.value.startswith("80.")
    assert gain.value.startswith("+")
    assert "95\u00a0% interval +" in gain.detail
    assert any(domain in worst.label for domain in DOMAINS)


def test_a_difference_within_reach_gets_the_trials_that_settle_it():
    step = built(SUMMARY_ERM, summary_rows("close", 0.708, seed=1)).steps[0]
    trials = int(step.command.split("--trials ")[1].split()[0])
    assert trials > 3
    assert f"with {trials} trials" in step.text


def test_a_hopeless_difference_gets_no_command():
    erm = [[0.7, 0.7, 0.7], [0.7, 0.7, 0.7], [0.7, 0.7, 0.7]]
    near = [[0.75, 0.75, 0.75], [0.65, 0.65, 0.65], [0.705, 0.705, 0.705]]
    step = built(benchmark_records(erm), benchmark_records(near, method="near")).steps[0]
    assert step.command == ""
    assert step.text.startswith("Treat the two as equal")


def test_a_merge_that_leads_is_run_again_as_a_merge():
    merged = {"role": "merged", "experts": ("x",)}
    result = built(
        summary_rows("erm", 0.7, trials=1),
        summary_rows("score", 0.8, seed=1, trials=1, **merged),
        store="my runs",
    )
    command = "afield bench things --methods erm --merges score --trials 3 --store 'my runs'"
    assert result.steps[0].command == command
    assert result.steps[1].command == "afield fit things best --store 'my runs' --out model"


def test_a_merge_is_run_again_beside_plain_training_with_its_start():
    started = summary_rows("erm", 0.7, trials=1, given={"start": "linear_probe"})
    merged = summary_rows("score", 0.8, seed=1, trials=1, role="merged", experts=("x",))
    assert "--trials 3 --start linear_probe --store" in built(started, merged).steps[0].command
