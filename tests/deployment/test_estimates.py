"""What is known of unseen domains comes from models that have not seen them, and from no other."""

import numpy as np
import pytest
import torch

from afield.deployment.estimates import calibrate, estimate_accuracy, fit_distances
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
    found = estimate_accuracy(records)
    frame = tabulate(records, rules="sources").set_index("domain")
    for name in ("turn0", "turn10", "turn20", "turn30"):
        assert found.domains[name] == pytest.approx(frame.loc[name, "accuracy"])
    assert found.accuracy == pytest.approx(frame.loc["mean", "accuracy"])
    assert found.stderr == pytest.approx(frame.loc["mean", "stderr"])
    assert found.worst == pytest.approx(frame.loc["worst", "accuracy"])
    assert found.in_domain == pytest.approx(frame.loc["in-domain", "accuracy"])
    assert found.trials == 2


def test_with_one_trial_no_spread_over_trials_is_known(store):
    found = estimate_accuracy([record for record in store if record.run.trial == 0])
    assert found.stderr is None
    assert found.spread == pytest.approx(np.std(list(found.domains.values()), ddof=1))


def test_the_temperature_is_that_of_unseen_probe_parts(store):
    records = [record for record in store if record.run.trial == 0]
    logits, labels = [], []
    for record in records:
        with torch.random.fork_rng():
            subject = reopen(store.folder(record.run))
        (target,) = record.unseen
        logits.append(subject.logits(subject.probes[target]))
        labels.append(subject.probes[target].y)
    found = calibrate([store.folder(record.run) for record in records])
    assert found.temperature == pytest.approx(fit_temperature(logits, labels), rel=1e-4)
    assert found.samples == sum(map(len, labels)) == 160
    assert set(found.separations) == {record.unseen[0] for record in records}
    assert all(0 <= value <= 1 for value in found.separations.values())


def test_seen_parts_would_give_another_temperature(store):
    records = [record for record in store if record.run.trial == 0]
    logits, labels = [], []
    for record in records:
        with torch.random.fork_rng():
            subject = reopen(store.folder(record.run))
        for source in record.run.sources:
            logits.append(subject.logits(subject.probes[source]))
            labels.append(subject.probes[source].y)
    found = calibrate([store.folder(record.run) for record in records])
    assert abs(found.temperature / fit_temperature(logits, labels) - 1) > 0.02


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
    distances, features = fit_distances(subject), subject.model.features
    with torch.no_grad():
        near, far = (
            distances(features(samples.prepare(samples.x.in_memory))).median()
            for samples in (subject.probes["like"], subject.probes["shifted"])
        )
    assert near < 1.5
    assert far > 2 * near
