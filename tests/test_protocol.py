from itertools import combinations

import pytest

from afield.domains import DomainSet
from afield.errors import SpecError, UnknownNameError
from afield.protocol import leave_one_out, planned_run
from afield.readers import find_dataset
from afield.selection import RULES

DIGITS = find_dataset("rotated_digits")


def test_every_domain_is_left_out_once_by_every_method_in_every_trial():
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=2)
    assert len(runs) == len({run.key for run in runs}) == 6 * 2 * 2
    left_out = [DIGITS.without(*run.sources) for run in runs if run.method == "erm"]
    assert sorted(left_out) == sorted([(d,) for d in DIGITS.domains] * 2)


def test_the_second_rule_brings_every_pair_of_domains():
    runs = leave_one_out(DIGITS, ["erm"], trials=1, rules=list(RULES))
    pairs = [DIGITS.without(*run.sources) for run in runs if len(run.sources) == 4]
    assert pairs == list(combinations(DIGITS.domains, 2))
    assert {run.rules for run in runs if len(run.sources) == 4} == {("left-out-source",)}


def test_methods_take_turns_so_that_early_tables_are_useful():
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=2)
    assert [run.method for run in runs[:4]] == ["erm", "vrex", "erm", "vrex"]
    assert [run.trial for run in runs] == sorted(run.trial for run in runs)


def test_draw_0_is_the_defaults_and_further_draws_are_the_same_for_all_targets():
    runs = leave_one_out(DIGITS, ["vrex"], trials=1, draws=3)
    assert {run.lr for run in runs if run.draw == 0} == {DIGITS.training.lr}
    assert {run.params["penalty"] for run in runs if run.draw == 0} == {10.0}
    for draw in (1, 2):
        assert len({run.recipe for run in runs if run.draw == draw}) == 1
    assert len({run.lr for run in runs}) == 3


def test_every_trial_has_its_own_draws():
    first, second = (planned_run(DIGITS, "vrex", ("0deg",), trial=t, draw=1) for t in (0, 1))
    assert first.params != second.params


def test_settings_go_to_the_run_or_to_the_method_that_is_named():
    settings = {"steps": "40", "vrex.penalty": "3", "ema.decay": 0.9}
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=1, average="ema", settings=settings)
    assert {(run.steps, run.every) for run in runs} == {(40, 1)}
    assert {run.params.get("penalty") for run in runs} == {None, 3.0}
    assert {run.average_params["decay"] for run in runs} == {0.9}
    assert {tuple(run.given) for run in runs} == {
        ("steps", "ema.decay"),
        ("steps", "vrex.penalty", "ema.decay"),
    }


def test_what_is_given_is_given_in_every_draw():
    runs = leave_one_out(
        DIGITS, ["vrex"], trials=1, draws=3, settings={"lr": 0.5, "vrex.penalty": 3}
    )
    assert {(run.lr, run.params["penalty"]) for run in runs} == {(0.5, 3.0)}
    assert len({run.params["warmup"] for run in runs}) == 3


def test_a_checkpoint_comes_every_two_per_cent_of_the_steps():
    assert planned_run(DIGITS, "erm", ("0deg",), settings={"steps": 5000}).every == 100
    assert planned_run(DIGITS, "erm", ("0deg",), settings={"steps": 7}).every == 1


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"stepz": 3}, SpecError, "did you mean 'steps'"),
        ({"steps": "many"}, SpecError, "Training.steps='many'"),
        ({"steps": -3}, SpecError, "steps=-3"),
        ({"lr": "nan"}, SpecError, "finite"),
        ({"groupdro.eta": 1}, UnknownNameError, "groupdro"),
        ({"vrex.penaltee": 1}, SpecError, "did you mean 'penalty'"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(settings, error, told):
    with pytest.raises(error, match=told):
        leave_one_out(DIGITS, ["vrex"], settings=settings)


@pytest.mark.parametrize("counts", [{"trials": 0}, {"draws": 0}])
def test_at_least_one_trial_and_one_draw(counts):
    with pytest.raises(SpecError, match="at least one"):
        leave_one_out(DIGITS, ["erm"], **counts)


def test_two_domains_are_too_few_for_twins():
    two = DomainSet("two", ("a", "b"), ("x", "y"), reader=lambda root: {})
    with pytest.raises(SpecError, match="two has 2 domains"):
        leave_one_out(two, ["erm"], rules=["left-out-source"])
