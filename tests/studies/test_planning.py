"""From a benchmark to its runs."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

import afield
from afield import registry
from afield.data.domains import data_root
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.errors import AfieldError, SpecError, UnknownNameError
from afield.runs.run_setup import Machine, set_up
from afield.runs.selection import DEFAULT_RULES
from afield.studies.benchmark import DEFAULT_MERGES, DEFAULT_METHODS, make_benchmark
from afield.studies.features import spell_finetune
from afield.studies.planning import check_run, plan_run, plan_runs
from afield.studies.settings import resolve_run

QUICK = {"steps": 10}
# Methods that need a network with maps; the default network of spirals has none.
NEED_MAPS = {"mixstyle", "efdmix", "arm"}
MERGING = {"merges": ["average"], "trials": 1, "settings": QUICK}


def takes_one_domain(name: str) -> bool:
    try:
        registry.find("methods", name)().check(1)
    except SpecError:
        return False
    return True


@pytest.fixture
def twenty(tmp_path):
    """Twenty domains of eight samples."""
    y = np.tile([0, 1], 80)
    x = np.eye(2)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=np.repeat(np.arange(20), 8))
    return tmp_path / "own.npz"


def test_the_short_list_of_methods_exists_and_all_stands_for_every_one():
    assert set(DEFAULT_METHODS) <= set(afield.names("methods"))
    runs = make_benchmark("spirals", trials=1).runs()
    shown = [run for run in runs if run.role not in ("base", "expert")]
    classical = Array.classical_methods
    assert set(classical) <= set(afield.names("classical_methods"))
    assert {run.method for run in shown} == {*DEFAULT_METHODS, *DEFAULT_MERGES, *classical}
    assert not any(len(run.sources) == 1 and run.sources[0] in run.tested for run in runs)
    assert {run.method for run in make_benchmark("spirals", ["all"], trials=1).runs()} == (
        set(afield.names("methods")) - NEED_MAPS
    )


def test_methods_that_do_not_fit_the_network_are_refused_or_left_out_of_all(caplog):
    for method in NEED_MAPS:
        with pytest.raises(SpecError, match=f"^{method} .*; use a convolutional network"):
            make_benchmark("spirals", method, trials=1).runs()
    make_benchmark("spirals", "all", trials=1).runs()
    assert "left out: mixstyle mixes the styles of maps" in caplog.text
    assert make_benchmark("rotated_digits", sorted(NEED_MAPS), trials=1).runs()


def test_a_method_named_twice_is_run_once():
    assert len(make_benchmark("spirals", ["erm", "erm"], trials=1).runs()) == 4


def test_a_missing_class_is_reported(tmp_path, caplog):
    path = tmp_path / "own.npz"
    np.savez(path, X=np.eye(8), y=[0, 1, 0, 1, 0, 0, 0, 0], domain=list("aaaabbbb"))
    with caplog.at_level(logging.WARNING):
        make_benchmark(path, ["erm"]).runs()
    assert "domain 'b' has no sample of class '1'" in caplog.text


@pytest.mark.parametrize(
    ("shares", "fitting"),
    [
        ({}, ("sources", "left-out-source", "target")),
        ({"hold_out": 0.25}, ("validation", "target")),
        # A tenth of a domain is none.
        ({"hold_out": 0.25, "validate": 0.005}, ("sources", "target")),
    ],
)
def test_all_rules_are_those_that_can_read_the_runs_and_others_are_refused(shares, fitting, twenty):
    dataset = twenty if shares else "spirals"
    runs = make_benchmark(dataset, "erm", rules="all", trials=1, **shares).runs()
    assert runs[0].rules == fitting
    assert make_benchmark(dataset, "erm", rules=["target"], trials=1, **shares).runs()[0].rules == (
        "target",
    )
    for rule in {"sources", "left-out-source", "validation"} - set(fitting):
        with pytest.raises(SpecError, match=f"the rule {rule} cannot .* use --rules {fitting[0]}"):
            make_benchmark(dataset, "erm", rules=["target", rule], trials=1, **shares).runs()


def test_no_rule_at_all_means_the_default_rules():
    runs = make_benchmark("spirals", "erm", rules=[], trials=1).runs()
    assert {run.rules for run in runs} == {DEFAULT_RULES}


def test_a_network_that_does_not_take_the_inputs_is_an_error_before_any_training(tmp_path):
    x = np.zeros((8, 3, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", X=x, y=[0, 1] * 4, domain=list("aaaabbbb"))
    with pytest.raises(SpecError, match="small:lenet"):
        make_benchmark(tmp_path / "tiny.npz", "erm", settings={"backbone": "small:lenet"}).runs()


def test_all_methods_are_those_that_the_number_of_domains_allows(tmp_path, caplog):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)).astype("float32"), np.arange(40) % 2
    np.savez(tmp_path / "two.npz", X=x, y=y, domain=np.arange(40) // 20)
    result = {run.method for run in make_benchmark(tmp_path / "two.npz", "all", trials=1).runs()}
    fitting = {name for name in afield.names("methods") if takes_one_domain(name)}
    assert result == fitting - NEED_MAPS
    assert not result & {"mldg", "metareg", "transfer"}
    assert "left out: mldg needs 2 or more source domains per step to make a pair" in caplog.text
    with pytest.raises(SpecError, match=r"mldg needs 2 .* \(to be trained on 1\)"):
        make_benchmark(tmp_path / "two.npz", ["erm", "mldg"], trials=1).runs()


@pytest.mark.parametrize(
    ("methods", "options", "error", "message"),
    [
        ("ermm", {}, UnknownNameError, "did you mean 'erm'"),
        ("erm", {"settings": {"size": 32}}, SpecError, "size=32: spirals has no images"),
        # No reason to leave the method out.
        ("all", {"settings": {"arith.eps": -1}}, SpecError, r"arith\.eps=-1"),
        ("erm", {"average": "swad", "settings": {"swad.slack": -1}}, SpecError, r"swad\.slack=-1"),
    ],
)
def test_a_mistake_is_an_error_before_any_training(methods, options, error, message):
    with pytest.raises(error, match=message):
        make_benchmark("spirals", methods, trials=1, **options).runs()


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ("erm", {"train_on": [3]}, "--train-on needs --hold-out"),
        ("erm", {"hold_out": 0.25, "train_on": [14]}, "cannot train on 14 domains; 13 remain"),
        ([], {"merges": ["average"], "hold_out": 0.25}, "--merges leaves each domain out once"),
        ("erm", {"merges": ["average"], "hold_out": 0.25}, "--merges leaves each domain out once"),
    ],
)
def test_what_does_not_go_with_held_out_shares_is_refused(methods, options, message, twenty):
    with pytest.raises(SpecError, match=message):
        make_benchmark(twenty, methods, **options).runs()


def test_all_methods_are_those_that_the_smallest_number_of_domains_allows(twenty, caplog):
    runs = make_benchmark(twenty, "all", hold_out=0.25, train_on=[1, "all"], trials=1).runs()
    assert "left out: mldg" in caplog.text
    methods = [{run.method for run in runs if len(run.sources) == n} for n in (1, 13)]
    assert methods[0] == methods[1]
    assert "mldg" not in methods[0]
    assert "erm" in methods[0]


def test_merges_stand_beside_methods_or_by_themselves():
    alone = make_benchmark("spirals", **MERGING).runs()
    assert {run.role for run in alone} == {"base", "expert", "merged"}
    both = make_benchmark("spirals", ["vrex"], **MERGING).runs()
    assert both[:4] == make_benchmark("spirals", ["vrex"], trials=1, settings=QUICK).runs()
    assert both[4:] == alone


def test_settings_go_to_those_whom_they_concern():
    settings = {**QUICK, "vrex.penalty": 3.0, "score.tau": 1.0, "arith.eps": 0.1}
    options = {"merges": ["score"], "expert_method": ["arith"], "trials": 1}
    for run in make_benchmark("spirals", ["vrex"], settings=settings, **options).runs():
        if run.method == "vrex":
            assert run.params["penalty"] == 3.0
        if run.role == "expert":
            assert run.params["eps"] == 0.1
        if run.method == "score":
            assert run.params["tau"] == 1.0
    for owner in ("ties.density", "groupdro.eta", "scoer.tau"):
        with pytest.raises(UnknownNameError, match="in this benchmark; "):
            make_benchmark("spirals", ["vrex"], settings={**settings, owner: 1}, **options).runs()


def test_a_merge_or_a_method_named_twice_is_there_once():
    once = make_benchmark("spirals", merges=["average"], expert_method=["erm"], trials=1).runs()
    twice = make_benchmark(
        "spirals", merges=["average"] * 2, expert_method=["erm"] * 2, trials=1
    ).runs()
    assert once == twice


def test_the_settings_that_a_dataset_has_for_an_average_are_named(caplog, monkeypatch):
    known = {"swad": {"every": 50, "swad.slack": 0.2}}
    spirals = replace(find_dataset("spirals"), averages=known)
    monkeypatch.setattr("afield.studies.planning.find_dataset", lambda _: spirals)
    with caplog.at_level(logging.WARNING):
        runs = make_benchmark("spirals", ["erm"], trials=1, average="swad").runs()
        plan_run("spirals", "erm", average="swad", settings={"swad.slack": 0.3})
    assert caplog.messages == [
        "spirals: --average swad uses every=50, swad.slack=0.2 here",
        "spirals: --average swad uses every=50 here",
    ]
    assert {run.every for run in runs} == {50}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        settings = {"every": 10, "swad.slack": 0.3}
        make_benchmark("spirals", ["erm"], average="swad", settings=settings).runs()
        make_benchmark("spirals", ["erm"]).runs()
    assert not caplog.messages


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "nothing"}, "no method 'nothing'"),
        ({"params": {"x": 1}}, "erm has no setting 'x'"),
        ({"sources": ("elsewhere",)}, "no domain 'elsewhere'"),
        ({"backbone": "small:nothing"}, "small:nothing"),
    ],
)
def test_a_run_from_a_record_is_checked_like_a_planned_one(change, message):
    run = plan_run("spirals", "erm", target="turn0")
    check_run(run)
    with pytest.raises(AfieldError, match=message):
        check_run(replace(run, **change))


def planned(**settings):
    return plan_run("spirals", "erm", target="turn0", settings={"steps": 5, **settings})


@pytest.mark.parametrize(
    ("tune", "settings"), [("full", {}), ("body", {"freeze_head": True}), ("", {})]
)
def test_a_spelling_gives_the_run_of_the_fields_that_it_stands_for(tune, settings):
    spelled, plain = planned(tune=tune), planned(**settings)
    assert spelled == plain
    assert spelled.key == plain.key
    assert spelled.tune is None


def test_blocks_are_counted_after_a_colon():
    dataset = find_dataset("spirals")
    runs = [
        resolve_run(dataset, "erm", dataset.domains, settings=settings)
        for settings in ({"tune": "after:2"}, {"freeze_blocks": 2})
    ]
    assert runs[0] == runs[1]


def test_only_the_last_layer_is_trained_with_head():
    run = planned(tune="head")
    assert run.tune == "head"
    assert run.key != planned().key
    model = set_up(run, Machine(torch.device("cpu"), 1, data_root())).learner.model
    assert not any(p.requires_grad for p in model.features.parameters())
    assert all(p.requires_grad for p in model.head.parameters())


def test_all_but_the_last_layer_is_trained_with_body():
    model = set_up(planned(tune="body"), Machine(torch.device("cpu"), 1, data_root())).learner.model
    assert all(p.requires_grad for p in model.features.parameters())
    assert not any(p.requires_grad for p in model.head.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tune": "after:0"}, "tune=after:0: give frozen, head, body, after:N"),
        ({"tune": "after:x"}, "tune=after:x: give frozen"),
        ({"tune": "heads"}, "tune=heads: give frozen"),
        ({"tune": "body", "freeze_head": True}, "tune=body and freeze_head=True: give only one"),
        ({"tune": "head", "freeze_blocks": 1}, "tune=head and freeze_blocks=1: give only one"),
        ({"tune": "frozen"}, "spirals: --no-finetune needs images"),
    ],
)
def test_what_cannot_be_is_one_line(settings, message):
    with pytest.raises(SpecError, match=message):
        planned(**settings)


def test_frozen_and_full_are_what_finetune_says():
    assert spell_finetune({"tune": "frozen", "lr": 0.1}) == ({"lr": 0.1}, False)
    assert spell_finetune({"tune": "head"}) == ({"tune": "head"}, True)
    assert spell_finetune({"lr": 0.1}, finetune=None) == ({"lr": 0.1}, None)
    for tune, finetune in (("frozen", True), ("full", False)):
        with pytest.raises(SpecError, match=f"tune={tune} and --"):
            spell_finetune({"tune": tune}, finetune=finetune)


def test_default_merges_need_two_sources_in_every_fold():
    def roles(**words):
        return {
            run.role for run in plan_runs(make_benchmark("spirals", trials=1, steps=2, **words))
        }

    assert "merged" in roles(targets="turn0", sources="turn10,turn20")
    assert "merged" not in roles(targets="turn0", sources="turn10")
