"""What is known of unseen domains comes from models that have not seen them, and from no other."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from afield.deployment.estimates import (
    _error_auroc,
    calibrate,
    estimate_accuracy,
    fit_strangeness,
)
from afield.deployment.model_folder import Estimate
from afield.deployment.strangeness import SCORES
from afield.reporting.benchmarking import bench
from afield.reporting.table import tabulate
from afield.runs.finished import reopen
from afield.runs.store import Store
from afield.studies.benchmarking import train
from afield.training.calibration import fit_temperature


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("held out")
    bench("spirals", ["erm"], trials=2, store=root, settings={"steps": 40, "every": 20})
    return Store(root)


@pytest.mark.slow
def test_the_estimate_is_the_row_of_the_table(store):
    records = list(store)
    result = estimate_accuracy(records)
    frame = tabulate(records, rules="sources").set_index("domain")
    for name in ("turn0", "turn10", "turn20", "turn30"):
        assert result.domains[name] == pytest.approx(frame.loc[name, "accuracy"])
    assert result.accuracy == pytest.approx(frame.loc["mean", "accuracy"])
    assert result.stderr == pytest.approx(frame.loc["mean", "stderr"])
    assert result.worst == pytest.approx(frame.loc["worst", "accuracy"])
    assert result.in_domain == pytest.approx(frame.loc["in-domain", "accuracy"])
    assert result.trials == 2


def test_with_one_trial_no_spread_over_trials_is_known(store):
    result = estimate_accuracy([record for record in store if record.run.trial == 0])
    assert result.stderr is None
    assert result.spread == pytest.approx(np.std(list(result.domains.values()), ddof=1))


def probe_outputs(store, records, domains):
    """Logits and labels of the probe parts of some domains of each record."""
    logits, labels = [], []
    for record in records:
        with torch.random.fork_rng():
            subject = reopen(store.folder(record.run))
        for name in domains(record):
            logits.append(subject.logits(subject.probes[name]))
            labels.append(subject.probes[name].y)
    return logits, labels


def test_the_temperature_is_that_of_unseen_probe_parts(store):
    records = [record for record in store if record.run.trial == 0]
    logits, labels = probe_outputs(store, records, lambda record: record.unseen)
    result, _ = calibrate([store.folder(record.run) for record in records])
    assert result.temperature == pytest.approx(fit_temperature(logits, labels), rel=1e-4)
    assert result.samples == sum(map(len, labels)) == 160
    assert set(result.separations) == {record.unseen[0] for record in records}
    assert all(0 <= value <= 1 for value in result.separations.values())
    # Seen parts would give another.
    seen = fit_temperature(*probe_outputs(store, records, lambda record: record.run.sources))
    assert abs(result.temperature / seen - 1) > 0.02


def test_the_auroc_of_warnings_is_measured_on_probe_parts(store):
    """Against scikit-learn's: a new domain against the sources, and wrong predictions."""
    records = [record for record in store if record.run.trial == 0]
    result, _ = calibrate([store.folder(record.run) for record in records])
    compared = 0
    for record in records:
        with torch.random.fork_rng():
            subject = reopen(store.folder(record.run))
        distances, model = fit_strangeness(subject).classes, subject.model
        measured = {}
        for name, probe in subject.probes.items():
            with torch.no_grad():
                measured[name] = distances(model.features(probe.prepare(probe.x.in_memory)))
        (unseen,) = record.unseen
        known = torch.cat([measured[name] for name in record.run.sources])
        of_unseen = torch.cat([known, measured[unseen]])
        is_new = torch.arange(len(of_unseen)) >= len(known)
        assert result.separations[unseen] == pytest.approx(roc_auc_score(is_new, of_unseen))
        probe = subject.probes[unseen]
        logits = subject.logits(probe)
        wrong = logits.argmax(dim=1) != probe.y
        if not wrong.any():
            assert unseen not in result.confidence_auroc
            continue
        compared += 1
        doubt = -(logits / result.temperature).softmax(dim=1).amax(dim=1)
        assert result.confidence_auroc[unseen] == pytest.approx(roc_auc_score(wrong, doubt))
        assert result.distance_auroc[unseen] == pytest.approx(
            roc_auc_score(wrong, measured[unseen])
        )
    assert compared > 1
    # The best of the scores was chosen.
    assert result.score_auroc[result.score] == max(result.score_auroc.values())
    assert set(result.score_auroc) == set(SCORES)
    folders = [store.folder(record.run) for record in records]
    bare, _ = calibrate(folders, keep_samples=False)
    assert set(bare.score_auroc) == set(SCORES) - {"neighbors"}


def test_domains_without_mistakes_have_no_auroc_of_mistakes():
    right = [np.array([True, True]), np.array([True, False]), np.array([False, False])]
    warnings = [np.array([1.0, 2.0])] * 3
    assert _error_auroc(["a", "b", "c"], warnings, right) == {"b": 1.0}


def test_the_interval_for_one_more_domain_is_students_on_log_odds():
    estimate = Estimate(0.7, 0.5, 0.9, {"a": 0.5, "b": 0.7, "c": 0.9}, trials=1)
    odds = np.log(np.array([0.5, 0.7, 0.9]) / np.array([0.5, 0.3, 0.1]))
    reach = stats.t.ppf(0.95, 2) * odds.std(ddof=1) * np.sqrt(4 / 3)
    ends = 1 / (1 + np.exp(-(odds.mean() + np.array([-reach, reach]))))
    assert estimate.interval == pytest.approx(tuple(ends))
    assert Estimate(0.7, 0.5, 0.9, {"a": 0.5}, trials=1).interval is None
    # All right in every domain counts as 99.5 %; a new domain may be all right too.
    sure = Estimate(1.0, 1.0, 1.0, {"a": 1.0, "b": 1.0}, trials=1)
    assert sure.interval == pytest.approx((0.995, 1.0))
    wrong = Estimate(0.0, 0.0, 1.0, {"a": 0.0, "b": 0.0}, trials=1)
    assert wrong.interval == pytest.approx((0.0, 0.005))


def test_a_domain_that_is_shifted_is_far_and_one_that_is_not_is_near(tmp_path):
    generator, y = np.random.default_rng(0), np.arange(300) % 2
    x = generator.normal(size=(300, 3)) + np.stack([4 * y, 0 * y, 0 * y], axis=1)
    domain = np.repeat(["a", "b", "like", "shifted"], 75)
    x[domain == "shifted", 2] += 6
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=domain)
    train(
        tmp_path / "own.npz", "erm", target=["like", "shifted"], store=tmp_path / "runs",
        settings={"steps": 20, "every": 20},
    )  # fmt: skip
    (folder,) = (tmp_path / "runs").glob("erm-*")
    with torch.random.fork_rng():
        subject = reopen(folder)
    distances, features = fit_strangeness(subject).classes, subject.model.features
    with torch.no_grad():
        near, far = (
            distances(features(samples.prepare(samples.x.in_memory))).median()
            for samples in (subject.probes["like"], subject.probes["shifted"])
        )
    assert near < 1.5
    assert far > 2 * near
