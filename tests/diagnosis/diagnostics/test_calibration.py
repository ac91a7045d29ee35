"""Calibration on unseen domains: each temperature from where it says, and nothing of the target."""

import numpy as np
import pytest

from afield.diagnosis.diagnostic import diagnose
from afield.errors import SpecError
from afield.reporting.benchmarking import bench
from afield.runs.store import Store
from afield.training.calibration import calibration_error, fit_temperature, selective_accuracy
from tests.diagnosis.diagnostics.runs import reopened

SETTINGS = {"steps": 15, "every": 15}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("twins")
    bench("spirals", ["erm"], rules="all", trials=1, store=root, settings=SETTINGS)
    return root


@pytest.fixture(scope="module")
def finding(store):
    return diagnose("calibration", store)


def subject_without(store, *names):
    (record,) = [each for each in Store(store) if set(each.unseen) == set(names)]
    return reopened(store / record.run.key)


def test_every_target_has_three_rows(finding):
    assert len(finding.data) == 4 * 3
    assert set(finding.data["temperature of"]) == {"none", "sources", "left out"}
    plain = finding.data[finding.data["temperature of"] == "none"]
    assert set(plain["temperature"]) == {1.0}


def test_no_temperature_changes_an_answer(finding):
    assert (finding.data.groupby("target")["accuracy"].nunique() == 1).all()


def test_temperatures_come_from_where_they_say(finding, store):
    result = finding.data.set_index(["target", "temperature of"])["temperature"]
    sources = ("turn0", "turn20", "turn30")
    own = subject_without(store, "turn10")
    seen = [(own.logits(own.probes[name]), own.probes[name].y) for name in sources]
    assert result["turn10", "sources"] == pytest.approx(
        fit_temperature(*zip(*seen, strict=True)), rel=1e-4
    )
    unseen = []
    for name in sources:
        twin = subject_without(store, "turn10", name)
        unseen.append((twin.logits(twin.probes[name]), twin.probes[name].y))
    assert result["turn10", "left out"] == pytest.approx(
        fit_temperature(*zip(*unseen, strict=True)), rel=1e-4
    )


def test_errors_are_of_the_targets_main_part(finding, store):
    subject = subject_without(store, "turn30")
    samples = subject.domains["turn30"]
    row = finding.data.set_index(["target", "temperature of"]).loc[("turn30", "left out")]
    best = (subject.logits(samples).double() / row["temperature"]).softmax(dim=1).max(dim=1)
    sure, hits = best.values.numpy(), (best.indices == samples.y).numpy()
    assert row["error"] == pytest.approx(calibration_error(sure, hits), abs=1e-6)
    assert row["accuracy at 90 %"] == pytest.approx(selective_accuracy(sure, hits), abs=1e-6)


def test_the_curves_have_every_sample_of_every_target(finding):
    counted = finding.extra_tables["reliability"].groupby("temperature of")["samples"].sum()
    assert set(counted) == {4 * 160}
    assert np.isfinite(finding.extra_tables["reliability"]["accuracy"]).all()


def test_without_twins_it_says_how_to_get_them(tmp_path):
    bench("spirals", ["erm"], trials=1, store=tmp_path, settings=SETTINGS)
    with pytest.raises(SpecError, match="--rules all"):
        diagnose("calibration", tmp_path)
