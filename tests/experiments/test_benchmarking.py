import logging

import numpy as np
import pytest
from PIL import Image

import afield
from afield.errors import DataError, SpecError, UnknownNameError
from afield.experiments.benchmarking import DEFAULT_METHODS, bench, plan_runs, train
from afield.experiments.store import Store

QUICK = {"steps": 10}


def test_bench_returns_the_records_of_the_store(tmp_path):
    records = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=tmp_path)
    assert [record.run.method for record in records] == ["erm", "vrex"] * 4
    assert {record.run.key for record in Store(tmp_path)} == {record.run.key for record in records}
    again = bench("spirals", ["erm", "vrex"], trials=1, settings=QUICK, store=Store(tmp_path))
    assert again == records


def test_the_short_list_of_methods_exists_and_all_stands_for_every_one():
    assert set(DEFAULT_METHODS) <= set(afield.names("methods"))
    assert {run.method for run in plan_runs("spirals", trials=1)} == set(DEFAULT_METHODS)
    assert {run.method for run in plan_runs("spirals", ["all"], trials=1)} == set(
        afield.names("methods")
    )


def test_a_method_named_twice_is_run_once():
    assert len(plan_runs("spirals", ["erm", "erm"], trials=1)) == 4


def test_an_unknown_method_is_an_error_before_any_training():
    with pytest.raises(UnknownNameError, match="did you mean 'erm'"):
        plan_runs("spirals", ["ermm"])


def test_broken_data_are_an_error_before_any_training(tmp_path):
    path = tmp_path / "own.npz"
    x = np.zeros((8, 2))
    x[3, 1] = np.nan
    np.savez(path, X=x, y=[0, 1] * 4, domain=[0, 0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(DataError, match="NaN"):
        bench(path, store=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_missing_class_is_reported(tmp_path, caplog):
    path = tmp_path / "own.npz"
    np.savez(path, X=np.eye(8), y=[0, 1, 0, 1, 0, 0, 0, 0], domain=list("aaaabbbb"))
    with caplog.at_level(logging.WARNING):
        plan_runs(path, ["erm"])
    assert "domain 'b' has no sample of class '1'" in caplog.text


def test_a_failing_run_is_logged_and_left_out(tmp_path, caplog):
    settings = {"steps": 10, "lr": 1e30}
    assert bench("spirals", ["erm"], trials=1, settings=settings, store=tmp_path) == []
    assert "failed: ERM at step" in caplog.text


@pytest.fixture
def twenty(tmp_path):
    """Twenty domains of eight samples."""
    y = np.tile([0, 1], 80)
    x = np.eye(2)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=np.repeat(np.arange(20), 8))
    return tmp_path / "own.npz"


def test_bench_holds_out_a_share_of_the_domains(twenty, tmp_path):
    settings = QUICK | {"domains_per_step": 3}
    records = bench(
        twenty, "erm", test=0.25, validate=0.2, trials=2, settings=settings, store=tmp_path / "runs"
    )
    assert [len(record.run.sources) for record in records] == [11, 11]
    assert [len(record.tests) for record in records] == [5, 5]
    assert records[0].tests != records[1].tests
    assert {record.run.rules for record in records} == {("validation", "target")}


@pytest.mark.parametrize(
    ("shares", "fitting"),
    [
        ({}, ("sources", "left-out-source", "target")),
        ({"test": 0.25}, ("validation", "target")),
        # A tenth of a domain is none.
        ({"test": 0.25, "validate": 0.005}, ("sources", "target")),
    ],
)
def test_all_rules_are_those_that_can_read_the_runs_and_others_are_refused(shares, fitting, twenty):
    dataset = twenty if shares else "spirals"
    runs = plan_runs(dataset, "erm", rules="all", trials=1, **shares)
    assert runs[0].rules == fitting
    assert plan_runs(dataset, "erm", rules=["target"], trials=1, **shares)[0].rules == ("target",)
    for rule in {"sources", "left-out-source", "validation"} - set(fitting):
        with pytest.raises(SpecError, match=f"the rule {rule} cannot .* use --rules {fitting[0]}"):
            plan_runs(dataset, "erm", rules=["target", rule], trials=1, **shares)


def test_no_rule_at_all_is_an_error():
    with pytest.raises(SpecError, match="no rule is given"):
        plan_runs("spirals", "erm", rules=[])


def test_a_size_for_what_has_no_pictures_is_an_error():
    with pytest.raises(SpecError, match="size=32: spirals has no pictures"):
        plan_runs("spirals", "erm", settings={"size": 32})


def test_a_network_that_does_not_take_the_inputs_is_an_error_before_any_training(tmp_path):
    x = np.zeros((8, 3, 4, 4), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", X=x, y=[0, 1] * 4, domain=list("aaaabbbb"))
    with pytest.raises(SpecError, match="small:lenet"):
        plan_runs(tmp_path / "tiny.npz", "erm", settings={"backbone": "small:lenet"})


def test_broken_files_that_are_left_out_are_counted_in_the_log_and_the_record(tmp_path, caplog):
    generator = np.random.default_rng(0)
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (tmp_path / "own" / domain / label).mkdir(parents=True)
            for i in range(4):
                pixels = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "own" / domain / label / f"{i}.png")
    (tmp_path / "own" / "b" / "y" / "3.png").write_bytes(b"no picture")
    settings = {"steps": 1, "size": 16}
    with pytest.raises(DataError, match=r"b/y/3\.png"):
        train(tmp_path / "own", "erm", settings=settings, store=tmp_path / "runs")
    settings["skip_broken"] = True
    record = train(tmp_path / "own", "erm", settings=settings, store=tmp_path / "runs")
    assert record.dropped == 1
    assert "own: 1 broken file(s) left out" in caplog.text


def test_train_leaves_out_none_one_or_several(tmp_path):
    unseen = [
        train("spirals", "erm", target=target, settings=QUICK, store=tmp_path).unseen
        for target in ((), "turn10", ["turn0", "turn30"])
    ]
    assert unseen == [(), ("turn10",), ("turn0", "turn30")]


def test_train_with_an_unknown_target_has_a_guess(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean"):
        train("spirals", "erm", target="turn11", store=tmp_path)


@pytest.mark.slow
def test_it_learns_on_the_embedded_digits(tmp_path):
    record = train("rotated_digits", "erm", target="45deg", settings={"steps": 150}, store=tmp_path)
    assert record.checkpoints[-1].score("45deg", "main").accuracy > 0.6


def test_all_methods_are_those_that_the_number_of_domains_allows(tmp_path, caplog):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)).astype("float32"), np.arange(40) % 2
    np.savez(tmp_path / "two.npz", X=x, y=y, domain=np.arange(40) // 20)
    found = {run.method for run in plan_runs(tmp_path / "two.npz", "all", trials=1)}
    assert found == set(afield.names("methods")) - {"mldg", "metareg"}
    assert "left out: mldg needs 2 or more source domains per step to make a pair" in caplog.text
    with pytest.raises(SpecError, match=r"mldg needs 2 .* \(to be trained on 1\)"):
        plan_runs(tmp_path / "two.npz", ["erm", "mldg"], trials=1)


def test_settings_that_cannot_be_are_no_reason_to_leave_a_method_out():
    with pytest.raises(SpecError, match=r"arith\.eps=-1"):
        plan_runs("spirals", "all", trials=1, settings={"arith.eps": -1})


def test_settings_of_an_average_are_checked_before_anything_is_trained():
    with pytest.raises(SpecError, match=r"swad\.slack=-1"):
        plan_runs("spirals", ["erm"], trials=1, average="swad", settings={"swad.slack": -1})


def test_bench_trains_on_so_many_of_the_domains_that_are_not_held_out(twenty, tmp_path):
    shares = {"test": 0.25, "validate": 0.1, "trials": 1}
    options = {**shares, "settings": QUICK, "store": tmp_path / "runs"}
    records = bench(twenty, "erm", train_on=[2, None], **options)
    assert [len(record.run.sources) for record in records] == [2, 13]
    assert len({record.tests for record in records}) == 1
    for record in records:
        assert len(record.domains) == 20 - len(record.run.unused)
    (plain,) = bench(twenty, "erm", **options)
    assert plain.checkpoints == records[1].checkpoints


def test_numbers_of_domains_go_with_held_out_shares(twenty):
    with pytest.raises(SpecError, match="--train-on goes with --hold-out"):
        plan_runs(twenty, "erm", train_on=[3])
    with pytest.raises(SpecError, match="cannot train on 14 domains; 13 are left"):
        plan_runs(twenty, "erm", test=0.25, train_on=[14])


def test_all_methods_are_those_that_the_smallest_number_of_domains_allows(twenty, caplog):
    runs = plan_runs(twenty, "all", test=0.25, train_on=[1, None], trials=1)
    assert "left out: mldg" in caplog.text
    methods = [{run.method for run in runs if len(run.sources) == n} for n in (1, 13)]
    assert methods[0] == methods[1]
    assert "mldg" not in methods[0]
    assert "erm" in methods[0]


MERGING = {"merges": ["average"], "trials": 1, "settings": QUICK}


def test_merges_stand_beside_methods_or_by_themselves():
    alone = plan_runs("spirals", **MERGING)
    assert {run.role for run in alone} == {"base", "expert", "merged"}
    both = plan_runs("spirals", ["vrex"], **MERGING)
    assert both[:4] == plan_runs("spirals", ["vrex"], trials=1, settings=QUICK)
    assert both[4:] == alone


def test_settings_go_to_those_whom_they_concern():
    settings = {**QUICK, "vrex.penalty": 3.0, "score.tau": 1.0, "arith.eps": 0.1}
    options = {"merges": ["score"], "expert_methods": ["arith"], "trials": 1}
    runs = plan_runs("spirals", ["vrex"], settings=settings, **options)
    for run in runs:
        if run.method == "vrex":
            assert run.params["penalty"] == 3.0
        if run.role == "expert":
            assert run.params["eps"] == 0.1
        if run.method == "score":
            assert run.params["tau"] == 1.0
    for owner in ("ties.density", "groupdro.eta", "scoer.tau"):
        with pytest.raises(UnknownNameError, match="in this benchmark; "):
            plan_runs("spirals", ["vrex"], settings={**settings, owner: 1}, **options)


def test_a_merge_or_a_method_named_twice_is_there_once():
    once = plan_runs("spirals", merges=["average"], expert_methods=["erm"], trials=1)
    twice = plan_runs("spirals", merges=["average"] * 2, expert_methods=["erm"] * 2, trials=1)
    assert once == twice


def test_merges_do_not_go_with_held_out_shares(twenty):
    for methods in ([], ["erm"]):
        with pytest.raises(SpecError, match="--merges goes with each domain left out once"):
            plan_runs(twenty, methods, merges=["average"], test=0.25)


def test_bench_returns_merged_records_and_leaves_out_what_failed(tmp_path, caplog):
    path = tmp_path / "own.npz"
    y = np.tile([0, 1], 18)
    x = np.eye(2)[y] + 0.1 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(path, X=x, y=y, domain=np.repeat(list("abc"), 12))
    options = {"merges": ["average", "slerp"], "trials": 1, "settings": {"steps": 3}}
    records = bench(path, store=tmp_path / "runs", **options)
    roles = [record.run.role for record in records]
    assert (roles.count("base"), roles.count("expert"), roles.count("merged")) == (3, 9, 18)
    assert roles == sorted(roles)
    failing = {**options, "settings": {"steps": 3, "lr": 1e30}, "base_steps": 1}
    assert bench(path, store=tmp_path / "others", **failing) == []
    assert "failed: " in caplog.text
