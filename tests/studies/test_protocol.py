"""Protocols: which domains are trained and tested on, and what cannot be divided."""

import math
from dataclasses import replace
from itertools import combinations

import pytest

from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.errors import SpecError, UnknownNameError
from afield.runs.run import Run
from afield.studies.protocol import DomainChoice
from afield.studies.settings import resolve_run
from tests.protocols import hold_out, leave_one_out, merging_runs

DIGITS = find_dataset("rotated_digits")


def test_every_domain_is_left_out_once_by_every_method_in_every_trial():
    runs = leave_one_out(DIGITS, ["erm", "vrex"], trials=2)
    assert len(runs) == len({run.key for run in runs}) == 6 * 2 * 2
    left_out = [DIGITS.without(*run.sources) for run in runs if run.method == "erm"]
    assert sorted(left_out) == sorted([(d,) for d in DIGITS.domains] * 2)


def test_the_second_rule_brings_every_pair_of_domains():
    runs = leave_one_out(DIGITS, ["erm"], trials=1, rules=["all"])
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
    first, second = (resolve_run(DIGITS, "vrex", ("0deg",), trial=t, draw=1) for t in (0, 1))
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


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"stepz": 3}, SpecError, "did you mean 'steps'"),
        ({"steps": "many"}, SpecError, "^steps='many': should be a valid integer$"),
        ({"steps": -3}, SpecError, "steps=-3"),
        ({"lr": "nan"}, SpecError, "finite"),
        ({"every": 0}, SpecError, "every=0"),
        ({"clip_norm": -1}, SpecError, "clip_norm=-1"),
        ({"lr_schedule": "linear"}, SpecError, "linear"),
        ({"augment": "wild"}, SpecError, "'none', 'light' or 'full'"),
        ({"size": -1}, SpecError, "size=-1"),
        ({"size": "big"}, SpecError, "size='big'"),
        ({"balance": "perhaps"}, SpecError, "balance='perhaps'"),
        ({"limit": -3}, SpecError, "limit=-3"),
        ({"limit": "some"}, SpecError, "limit='some'"),
        ({"domains_per_step": -1}, SpecError, "domains_per_step=-1"),
        ({"groupdro.eta": 1}, UnknownNameError, "groupdro"),
        ({"vrex.penaltee": 1}, SpecError, "did you mean 'penalty'"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(settings, error, message):
    with pytest.raises(error, match=message):
        leave_one_out(DIGITS, ["vrex"], settings=settings)


TWO = DomainSet("two", ("a", "b"), ("x", "y"), reader=lambda root: {})


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (DIGITS, {"trials": 0}, "at least one"),
        (DIGITS, {"draws": 0}, "at least one"),
        (TWO, {"rules": ["left-out-source"]}, "two has 2 domains"),
    ],
)
def test_too_few_trials_draws_and_domains_are_refused(dataset, options, message):
    with pytest.raises(SpecError, match=message):
        leave_one_out(dataset, ["erm"], **options)


MANY = DomainSet("many", tuple(f"w{i:02}" for i in range(20)), ("x", "y"), reader=lambda _: {})


def divided(runs: list[Run]) -> list[tuple[set[str], set[str], set[str]]]:
    """Sources, validation and test domains of every run."""
    return [
        (set(run.sources), set(MANY.domains) - set(run.sources) - set(run.tested), set(run.tested))
        for run in runs
    ]


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [
        ({}, (13, 2, 5)),
        ({"hold_out": 0.5, "validate": 0.25}, (5, 5, 10)),
        ({"hold_out": 0.05, "validate": 0.0}, (19, 0, 1)),
        ({"hold_out": 0.9, "validate": 0.05}, (1, 1, 18)),
    ],
)
def test_shares_of_the_domains_are_held_out(shares, sizes):
    for sources, validated, tested in divided(hold_out(MANY, ["erm"], **shares)):
        assert (len(sources), len(validated), len(tested)) == sizes
        assert sources | validated | tested == set(MANY.domains)
        assert not sources & tested


def test_every_trial_holds_other_domains_out_and_all_methods_and_draws_the_same():
    runs = hold_out(MANY, ["erm", "vrex", "groupdro"], trials=4, draws=2)
    assert len(runs) == len({run.key for run in runs}) == 4 * 3 * 2
    of_trials = [
        {(run.sources, run.tested) for run in runs if run.trial == trial} for trial in range(4)
    ]
    assert all(len(result) == 1 for result in of_trials)
    assert len(set.union(*of_trials)) == 4


def test_domains_are_held_out_by_their_names_and_listed_in_the_order_of_the_dataset():
    mixed = replace(MANY, domains=MANY.domains[7:] + MANY.domains[:7])
    for before, after in zip(hold_out(MANY, ["erm"]), hold_out(mixed, ["erm"]), strict=True):
        assert set(after.sources) == set(before.sources)
        assert set(after.tested) == set(before.tested)
        assert list(after.sources) == [d for d in mixed.domains if d in before.sources]
        assert list(after.tested) == [d for d in mixed.domains if d in before.tested]


def test_over_many_trials_every_domain_is_tested_on_and_trained_on():
    result = divided(hold_out(MANY, ["erm"], trials=30))
    assert set.union(*(tested for _, _, tested in result)) == set(MANY.domains)
    assert set.union(*(validated for _, validated, _ in result)) == set(MANY.domains)


@pytest.mark.parametrize(
    "shares",
    [
        {"hold_out": 1.0},
        {"hold_out": -0.25},
        {"hold_out": 1.25},
        {"hold_out": 0.02},
        {"hold_out": math.nan},
        {"hold_out": math.inf},
        {"validate": -0.1},
        {"validate": 1.0},
        {"validate": math.nan},
        {"hold_out": 0.5, "validate": 0.5},
        {"hold_out": 0.97, "validate": 0.03},
    ],
    ids=str,
)
def test_shares_that_leave_nothing_to_do_are_refused(shares):
    with pytest.raises(SpecError, match=r"many: of 20 domains, .* leave none to test on"):
        hold_out(MANY, ["erm"], **shares)


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({}, ("validation", "target")),
        ({"validate": 0.0}, ("sources", "target")),
        ({"validate": 0.02}, ("sources", "target")),
        ({"rules": ["sources"], "validate": 0.0}, ("sources",)),
    ],
    ids=str,
)
def test_held_out_shares_are_read_by_rules_that_can_read_them(options, rules):
    assert {run.rules for run in hold_out(MANY, ["erm"], **options)} == {rules}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": ["left-out-source"]}, "the rule left-out-source cannot select .* 5 test and 2"),
        ({"rules": ["target", "left-out-source"]}, "the rule left-out-source cannot"),
        ({"rules": ["sources"]}, "the rule sources cannot .* use --rules validation,target"),
        ({"rules": ["validation"], "validate": 0.0}, "0 validation domains; use --rules sources"),
        ({"trials": 0}, "at least one"),
        ({"settings": {"stepz": 3}}, "did you mean 'steps'"),
    ],
    ids=str,
)
def test_what_cannot_be_read_of_held_out_shares_is_refused(options, message):
    with pytest.raises((SpecError, UnknownNameError), match=message):
        hold_out(MANY, ["erm"], **options)


def test_leaving_one_out_tests_on_all_that_is_unseen():
    assert {run.tested for run in leave_one_out(DIGITS, ["erm"])} == {()}


def divisions(runs: list[Run]) -> dict[tuple[int, int], Run]:
    """The runs by their trials and numbers of sources."""
    return {(run.trial, len(run.sources)): run for run in runs}


def test_a_larger_number_of_domains_has_those_of_a_smaller_one():
    result = divisions(hold_out(MANY, ["erm"], train_on=[7, 3, "all", 1]))
    assert sorted(result) == [(trial, n) for trial in range(3) for n in (1, 3, 7, 13)]
    for trial in range(3):
        sources = [set(result[trial, n].sources) for n in (1, 3, 7, 13)]
        assert sources[0] < sources[1] < sources[2] < sources[3]
    assert len({result[trial, 3].sources for trial in range(3)}) == 3


def test_whatever_is_trained_on_the_same_domains_validate_and_are_tested():
    for run in hold_out(MANY, ["erm", "vrex"], train_on=[2, 5, "all"], draws=2):
        (plain,) = (r for r in hold_out(MANY, ["erm"]) if r.trial == run.trial)
        assert run.tested == plain.tested
        assert set(run.sources) | set(run.unused) == set(plain.sources)
        assert not set(run.sources) & set(run.unused)
        # In the order of the dataset, as everywhere.
        for names in (run.sources, run.unused):
            assert list(names) == sorted(names)
        assert run.given["domains"] == len(run.sources)


def test_all_domains_are_the_run_that_there_is_without_a_number():
    plain, numbered = (hold_out(MANY, ["erm", "vrex"], **on) for on in ({}, {"train_on": ["all"]}))
    assert [run.key for run in numbered] == [run.key for run in plain]
    assert {run.unused for run in numbered} == {()}
    named = hold_out(MANY, ["erm", "vrex"], train_on=[13])
    assert [run.key for run in named] == [run.key for run in plain]
    assert not {run.key for run in hold_out(MANY, ["erm", "vrex"], train_on=[12])} & {
        run.key for run in plain
    }


@pytest.mark.parametrize(("train_on", "different"), [([3, 5, 3], 2), ([13, "all"], 1)])
def test_a_number_given_twice_is_run_once(train_on, different):
    runs = hold_out(MANY, ["erm"], train_on=train_on)
    assert len(runs) == len({run.key for run in runs}) == different * 3


def test_methods_take_turns_and_trials_come_one_after_the_other_for_all_numbers():
    runs = hold_out(MANY, ["erm", "vrex"], train_on=[3, "all"], trials=2)
    assert [run.method for run in runs] == ["erm", "vrex"] * 4
    assert [run.trial for run in runs] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("number", [0, -1, 14, 20])
def test_a_number_of_domains_that_cannot_be_is_refused(number):
    message = f"many: cannot train on {number} domains; 13 remain beside those that are held out"
    with pytest.raises(SpecError, match=message):
        hold_out(MANY, ["erm"], train_on=[3, number])


def test_too_few_domains_for_a_method_are_refused_with_its_name():
    with pytest.raises(SpecError, match="mldg"):
        hold_out(MANY, ["erm", "mldg"], train_on=[1])


def test_domains_per_step_are_no_more_than_there_are():
    settings = {"domains_per_step": 4}
    for run in hold_out(MANY, ["erm"], train_on=[2, "all"], settings=settings):
        assert run.given == {"domains_per_step": 4, "domains": len(run.sources)}


def test_leaving_one_out_leaves_nothing_unused():
    runs = leave_one_out(DIGITS, ["erm"], trials=1)
    assert {run.unused for run in runs} == {()}
    assert all("domains" not in run.given for run in runs)


FOUR = DomainSet("four", ("art", "cartoon", "photo", "sketch"), ("x", "y"), reader=lambda _: {})
SPIRALS = find_dataset("spirals")


def folds(**choice):
    """Sources, tested and unused domains of every fold, by their first letters."""
    return [
        tuple("".join(name[0] for name in names) for names in (f.sources, f.tested, f.unused))
        for f in DomainChoice(**choice).folds(FOUR)
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, [("cps", "", ""), ("aps", "", ""), ("acs", "", ""), ("acp", "", "")]),
        ({"targets": ("sketch", "art")}, [("acp", "", ""), ("cps", "", "")]),
        ({"targets": ("sketch+art",)}, [("cp", "as", "")]),
        ({"targets": ("photo", "sketch + art")}, [("acs", "", ""), ("cp", "as", "")]),
        ({"targets": ("photo", "photo")}, [("acs", "", "")]),
        ({"validate_on": ("photo",)}, [("cs", "a", ""), ("as", "c", ""), ("ac", "s", "")]),
        ({"validate_on": ("photo",), "targets": ("art+sketch",)}, [("c", "as", "")]),
        ({"sources": ("photo", "art")}, [("ap", "cs", "")]),
        ({"sources": ("photo",), "targets": ("sketch", "art")}, [("p", "as", "c")]),
        ({"sources": ("photo",), "validate_on": ("art",)}, [("p", "cs", "")]),
        # The same question as leaving one domain out, and the same run.
        ({"sources": ("art", "cartoon", "photo")}, [("acp", "", "")]),
        (
            {"single_source": True},
            [("a", "cps", ""), ("c", "aps", ""), ("p", "acs", ""), ("s", "acp", "")],
        ),
        (
            {"single_source": True, "validate_on": ("art",)},
            [("c", "ps", ""), ("p", "cs", ""), ("s", "cp", "")],
        ),
    ],
    ids=str,
)
def test_named_domains_divide_a_dataset(choice, expected):
    assert folds(**choice) == expected


def test_a_domain_whose_name_has_a_plus_sign_is_one_domain():
    dataset = DomainSet("plus", ("a", "a+b", "b"), ("x", "y"), reader=lambda _: {})
    (fold,) = DomainChoice(targets=("a+b",)).folds(dataset)
    assert fold.sources == ("a", "b")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"targets": ("skech",)}, "four has no domain 'skech'; did you mean 'sketch'"),
        ({"targets": ("art+skech",)}, "four has no domain 'skech'"),
        ({"sources": ("arts",)}, "four has no domain 'arts'"),
        ({"validate_on": ("fotos",)}, "four has no domain 'fotos'"),
        ({"targets": ("art",), "sources": ("art",)}, "'art' is both a target and a source domain"),
        (
            {"targets": ("art",), "validate_on": ("art",)},
            "'art' is both a target and a validation domain",
        ),
        (
            {"sources": ("art",), "validate_on": ("art",)},
            "'art' is both a source and a validation domain",
        ),
        ({"targets": ("art+cartoon+photo+sketch",)}, "no domain is left to train on"),
        ({"sources": FOUR.domains}, "no domain is left to test on"),
        ({"validate_on": FOUR.domains}, "no domain is left"),
        ({"single_source": True, "targets": ("art",)}, "tests on all others; remove --targets"),
        ({"single_source": True, "sources": ("art",)}, "tests on all others; remove --sources"),
    ],
    ids=str,
)
def test_a_division_that_cannot_be_is_refused_in_one_line(choice, message):
    with pytest.raises((SpecError, UnknownNameError)) as error:
        DomainChoice(**choice).folds(FOUR)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_targets_in_turn_are_runs_of_the_whole_benchmark_with_its_keys_and_their_own_twins():
    whole = leave_one_out(SPIRALS, ["erm"], trials=1, rules=["all"])
    choice = DomainChoice(targets=("turn10",))
    runs = leave_one_out(SPIRALS, ["erm"], choice=choice, trials=1, rules=["all"])
    assert [run.sources for run in runs] == [
        ("turn0", "turn20", "turn30"),
        ("turn20", "turn30"),
        ("turn0", "turn30"),
        ("turn0", "turn20"),
    ]
    assert {run.key for run in runs} < {run.key for run in whole}


@pytest.mark.parametrize(
    "choice",
    [
        {"targets": ("turn0+turn10",)},
        {"validate_on": ("turn0",)},
        {"sources": ("turn0",)},
        {"single_source": True},
    ],
    ids=str,
)
def test_a_rule_that_needs_twins_is_refused_where_there_are_none(choice):
    with pytest.raises(SpecError, match="the rule left-out-source cannot select in a benchmark"):
        leave_one_out(
            SPIRALS, ["erm"], choice=DomainChoice(**choice), rules=["left-out-source"], trials=1
        )


def test_validation_domains_select_and_the_sources_do_not():
    choice = DomainChoice(validate_on=("turn30",))
    runs = leave_one_out(SPIRALS, ["erm"], choice=choice, trials=1)
    assert {run.rules for run in runs} == {("validation", "target")}
    with pytest.raises(SpecError, match="the rule sources cannot select"):
        leave_one_out(SPIRALS, ["erm"], choice=choice, rules=["sources"], trials=1)


def test_whole_domains_leave_nothing_for_the_rule_that_reads_them():
    runs = leave_one_out(SPIRALS, ["erm"], trials=1, settings={"report": "whole"})
    assert {(run.rules, run.report) for run in runs} == {(("sources",), "whole")}
    with pytest.raises(SpecError, match=r"the rule target cannot select .* on whole domains"):
        leave_one_out(SPIRALS, ["erm"], rules=["target"], settings={"report": "whole"})


def test_experts_are_merged_for_the_named_targets_only():
    choice = DomainChoice(targets=("turn0+turn30",))
    runs = merging_runs(SPIRALS, ["average"], choice=choice, trials=1, settings={"steps": 10})
    assert {run.sources for run in runs if run.role == "expert"} == {
        ("turn10",),
        ("turn20",),
        ("turn0", "turn30"),
    }
    merged = [run for run in runs if run.role == "merged"]
    assert {(run.sources, run.tested) for run in merged} == {
        (("turn10", "turn20"), ("turn0", "turn30"))
    }
    with pytest.raises(SpecError, match="merging needs two or more sources"):
        merging_runs(SPIRALS, ["average"], choice=DomainChoice(sources=("turn0",)))


def test_experts_count_epochs_of_their_own_domain():
    settings = {"epochs": 2, "batch_total": 32}
    runs = merging_runs(SPIRALS, ["average"], trials=1, settings=settings)
    assert {run.steps for run in runs if run.role == "expert"} == {2 * 160 // 32}
    assert {run.steps for run in runs if run.role == "base"} == {2 * 3 * 160 // 32 // 5}


def test_a_domain_is_named_once_in_a_target():
    with pytest.raises(SpecError, match="names turn0 twice"):
        DomainChoice(targets=("turn0+turn0",)).folds(find_dataset("spirals"))
