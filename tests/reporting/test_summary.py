"""The top of a report: a short verdict, three tiles, and commands that run."""

import pytest

from afield.reporting.claims import build_claims
from afield.reporting.results import group_records
from afield.reporting.sentences import build_summary
from afield.reporting.table import tabulate
from tests.stores import DOMAINS, benchmark_records, noisy


def built(*records, store="runs"):
    every = [each for own in records for each in own]
    (results,) = group_records(every)
    frame = tabulate(every)
    claim = build_claims(results, frame).get("sources")
    return build_summary(results, frame, "sources", claim, store)


def rows(method, mean, *, seed=0, trials=3, spread=0.01, **fields):
    return benchmark_records(
        noisy(mean, trials, 3, seed=seed, spread=spread), method=method, **fields
    )


ERM = rows("erm", 0.7)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([rows("good", 0.8, seed=1)], "good is better than erm."),
        ([rows("close", 0.705, seed=1)], "No method clearly beats erm."),
        ([rows("bad", 0.6, seed=1)], "No method beats erm."),
        ([], "erm was run; there is nothing to compare."),
    ],
)
def test_the_verdict_has_at_most_ten_words(others, verdict):
    found = built(ERM, *others).verdict
    assert found.replace("\u2068", "").replace("\u2069", "") == verdict
    assert len(found.split()) <= 10


def test_one_trial_is_too_few_and_three_are_suggested():
    found = built(rows("erm", 0.7, trials=1), rows("good", 0.8, seed=1, trials=1))
    assert found.verdict == "Too few results to tell methods apart."
    command = "afield bench things --methods erm,good --trials 3 --store runs"
    assert found.steps[0].command == command


def test_tiles_show_mean_gain_and_worst_domain():
    mean, gain, worst = built(ERM, rows("good", 0.8, seed=1)).tiles
    assert "good" in mean.label
    assert mean.value.startswith("80.")
    assert gain.value.startswith("+")
    assert "95\u00a0% interval +" in gain.detail
    assert any(domain in worst.label for domain in DOMAINS)


def test_a_difference_within_reach_gets_the_trials_that_settle_it():
    found = built(ERM, rows("close", 0.708, seed=1))
    step = found.steps[0]
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
    found = built(
        rows("erm", 0.7, trials=1), rows("score", 0.8, seed=1, trials=1, **merged), store="my runs"
    )
    command = "afield bench things --methods erm --merges score --trials 3 --store 'my runs'"
    assert found.steps[0].command == command
    assert found.steps[1].command == "afield fit things best --store 'my runs' --out model"


def test_a_merge_is_run_again_beside_plain_training_with_its_start():
    started = rows("erm", 0.7, trials=1, given={"start": "linear_probe"})
    merged = rows("score", 0.8, seed=1, trials=1, role="merged", experts=("x",))
    assert "--trials 3 --start linear_probe --store" in built(started, merged).steps[0].command
