import shutil

import numpy as np
import pytest

from afield.diagnosis.diagnostic import diagnose
from afield.errors import SpecError
from afield.reporting.benchmarking import bench
from afield.reporting.table import tabulate
from afield.runs.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("values")
    bench("spirals", ["erm", "arith"], store=place, trials=2, settings={"steps": 8})
    chosen = {"steps": 8, "arith.steps_per_domain": 3}
    bench("spirals", ["arith"], store=place, trials=2, settings=chosen)
    return place


def test_every_value_has_the_number_of_the_table(store):
    data = diagnose("sensitivity", store).data
    table = tabulate(Store(store), rules="sources")
    means = table[table["domain"] == "mean"].set_index("method")
    for value, label in {1: "arith", 3: "arith steps_per_domain=3"}.items():
        (row,) = data[(data["method"] == "arith") & (data["value"] == value)].itertuples()
        assert row.accuracy == means.loc[label, "accuracy"]
        assert row.stderr == means.loc[label, "stderr"]
    (erm,) = data[data["method"] == "erm"].itertuples()
    assert erm.accuracy == means.loc["erm", "accuracy"]


def test_the_best_and_the_worst_value_are_reported(store):
    finding = diagnose("sensitivity", store, settings={"of": "steps_per_domain"})
    own = finding.data[finding.data["method"] == "arith"].sort_values("accuracy")
    assert f"arith: best at steps_per_domain={own['value'].iloc[-1]:g}" in finding.summary
    assert "erm" not in finding.summary


def test_another_rule_is_another_reading(store):
    first, second = (
        diagnose("sensitivity", store, settings={"rule": rule}).data
        for rule in ("sources", "target")
    )
    assert not first.equals(second)


def test_it_asks_which_setting_where_several_or_none_vary(store, tmp_path):
    bench("spirals", ["erm"], store=tmp_path, trials=1, settings={"steps": 5})
    with pytest.raises(SpecError, match="every setting has only one value in this store"):
        diagnose("sensitivity", tmp_path)
    bench("spirals", ["erm"], store=tmp_path, trials=1, settings={"steps": 6, "lr": 0.01})
    with pytest.raises(SpecError, match="lr, steps; choose with of=NAME"):
        diagnose("sensitivity", tmp_path)
    with pytest.raises(SpecError, match="no run in this store has a setting 'penalty'"):
        diagnose("sensitivity", tmp_path, settings={"of": "penalty"})


def test_stores_of_several_datasets_are_refused(store, tmp_path):
    bench("rotated_digits", ["erm"], store=tmp_path, trials=1, settings={"steps": 1})
    with pytest.raises(SpecError, match="rotated_digits, spirals"):
        diagnose("sensitivity", [store, tmp_path])


@pytest.mark.slow
def test_words_and_values_that_are_left_open_are_values_too(tmp_path):
    for eps in ("none", 1, 2):
        chosen = {"steps": 3, "arith.eps": eps}
        bench("spirals", ["arith"], store=tmp_path, trials=1, settings=chosen)
    finding = diagnose("sensitivity", tmp_path, settings={"of": "eps"})
    assert sorted(finding.data["value"]) == ["1", "2", "none"]
    finding.save(tmp_path / "fig.png")
    for outer in ("plain", "raw"):
        chosen = {"steps": 3, "arith.eps": 1, "arith.outer": outer}
        bench("spirals", ["arith"], store=tmp_path, trials=1, settings=chosen)
    finding = diagnose("sensitivity", tmp_path, settings={"of": "outer"})
    assert {"plain", "raw", "divided"} == set(finding.data["value"])
    assert "best at outer=" in finding.summary


def test_a_value_whose_runs_are_not_all_there_is_left_out(store, tmp_path):
    place = tmp_path / "some"
    shutil.copytree(store, place)
    half = next(r for r in Store(place) if r.run.params.get("steps_per_domain") == 3)
    twins = [r for r in Store(place) if r.unseen == half.unseen and r.run.method == "arith"]
    for record in twins:
        if record.run.params["steps_per_domain"] == 3:
            shutil.rmtree(Store(place).folder(record.run))
    finding = diagnose("sensitivity", place, settings={"of": "steps_per_domain"})
    assert finding.data[finding.data["method"] == "arith"]["value"].tolist() == [1]
    assert "nan" not in finding.summary


def test_the_accuracy_on_the_sources_stands_beside_it(store):
    finding = diagnose("sensitivity", store)
    home = finding.extra_tables["in_domain"]
    table = tabulate(Store(store), rules="sources")
    means = table[table["domain"] == "in-domain"].set_index("method")
    (row,) = home[(home["method"] == "arith") & (home["value"] == 3)].itertuples()
    assert row.accuracy == means.loc["arith steps_per_domain=3", "accuracy"]
    assert finding.panels == 2


@pytest.mark.slow
def test_of_masks_what_they_share_is_shown_layer_by_layer(tmp_path):
    for overlap in (0, 0.01, 10):
        settings = {"steps": 12, "dmg.mask_rate": 100.0, "dmg.overlap": overlap}
        bench("spirals", ["dmg"], store=tmp_path, trials=1, settings=settings)
    finding = diagnose("sensitivity", tmp_path)
    shared = finding.extra_tables["shared"]
    assert set(shared["layer"]) == {"features.3", "head"}
    assert finding.panels == 3
    records = [r for r in Store(tmp_path) if r.run.params["overlap"] == 10]
    logs = [record.checkpoints[-1].logs["iou head"] for record in records]
    (row,) = shared[(shared["layer"] == "head") & (shared["value"] == 10)].itertuples()
    assert row.iou == pytest.approx(sum(logs) / len(logs))
    # Zero has a place on an axis of decades.
    assert finding.figure().axes[0].get_xscale() == "symlog"


@pytest.fixture(scope="module")
def of_domains(tmp_path_factory):
    """A store in which erm was trained on two, four and all nine of twelve domains."""
    root = tmp_path_factory.mktemp("domains")
    y, origin = np.tile([0, 1], 72), np.repeat(np.arange(12), 12)
    x = np.eye(2)[y] + np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(root / "own.npz", X=x, y=y, domain=origin)
    for name, validate in (("runs", 0.1), ("unvalidated", 0.0)):
        shares = {"hold_out": 0.25, "validate": validate, "train_on": [2, 4, "all"]}
        options = {"trials": 2, "settings": {"steps": 8, "every": 1}, "store": root / name}
        bench(root / "own.npz", ["erm"], **shares, **options)
    return root


def means(store, rule):
    table = tabulate(Store(store), rules=rule)
    return table[table["domain"] == "mean"].set_index("method")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most", "rule"), [("runs", 8, "validation"), ("unvalidated", 9, "sources")]
)
def test_the_number_of_domains_is_a_setting_like_others(of_domains, name, most, rule):
    store = of_domains / name
    # It is the only one that varies, and need not be named.
    first, second = (
        diagnose("sensitivity", store, settings=settings) for settings in ({}, {"of": "domains"})
    )
    assert first.data.equals(second.data)
    assert first.data["value"].tolist() == [2, 4, most]
    expected = means(store, rule)
    for row in first.data.itertuples():
        assert row.method == "erm"
        assert row.accuracy == expected.loc[f"erm domains={row.value}", "accuracy"]
        assert row.stderr == expected.loc[f"erm domains={row.value}", "stderr"]
        assert row.trials == 2
    assert first.summary.startswith("erm: best at domains=")
    first.figure()


def test_by_default_the_rule_is_the_one_that_knows_nothing_of_the_tested_domains(of_domains):
    store = of_domains / "runs"
    usual, named, oracle = (
        diagnose("sensitivity", store, settings=settings).data
        for settings in ({}, {"rule": "validation"}, {"rule": "target"})
    )
    assert usual.equals(named)
    assert not usual.equals(oracle)
    with pytest.raises(SpecError, match="the rule sources needs more records"):
        diagnose("sensitivity", store, settings={"rule": "sources"})


def test_leaving_one_out_has_no_number_of_domains(store):
    with pytest.raises(SpecError, match="no run in this store has a setting 'domains'"):
        diagnose("sensitivity", store, settings={"of": "domains"})


def test_all_domains_are_one_value_however_they_were_asked_for(of_domains, tmp_path):
    place = tmp_path / "runs"
    settings = {"steps": 8, "every": 1}
    # The first trial of all domains was a plain one.
    bench(of_domains / "own.npz", ["erm"], hold_out=0.25, trials=1, settings=settings, store=place)
    options = {"hold_out": 0.25, "trials": 2, "settings": settings, "store": place}
    bench(of_domains / "own.npz", ["erm"], train_on=[2, 4, "all"], **options)
    data = diagnose("sensitivity", place, settings={"of": "domains"}).data
    assert data.equals(diagnose("sensitivity", of_domains / "runs").data)


def test_a_table_has_one_row_for_all_domains_however_they_were_asked_for(of_domains, tmp_path):
    place, settings = tmp_path / "runs", {"steps": 8, "every": 1}
    bench(of_domains / "own.npz", ["erm"], hold_out=0.25, trials=1, settings=settings, store=place)
    options = {"hold_out": 0.25, "trials": 2, "settings": settings, "store": place}
    bench(of_domains / "own.npz", ["erm"], train_on=[2, "all"], **options)
    measured = means(place, "validation")
    assert measured.loc["erm domains=2", "trials"] == 2
    assert measured.drop(index="erm domains=2")["trials"].tolist() == [2]
