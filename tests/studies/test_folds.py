"""Domains chosen by name: every division by hand, and what cannot be divided."""

import pytest

from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.errors import SpecError, UnknownNameError
from afield.studies.protocol import DomainChoice
from tests.protocols import leave_one_out, merging_runs

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
