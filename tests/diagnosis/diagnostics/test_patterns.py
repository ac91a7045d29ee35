from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from afield.diagnosis.diagnostic import diagnose
from afield.diagnosis.diagnostics.patterns import Patterns
from afield.errors import SpecError
from afield.runs.finished import reopen
from afield.runs.selection import selection_value
from afield.studies.benchmarking import train
from tests.files import saved

QUICK = {"samples": 60, "clusters": 4, "history": False}


@pytest.fixture(autouse=True)
def small_maps(monkeypatch):
    """Maps of many samples take seconds."""
    monkeypatch.setattr("afield.diagnosis.diagnostics.patterns.MAX_MAP_POINTS", 50)


@pytest.fixture
def finding(subject):
    return Patterns(**QUICK).diagnose_runs([subject])


def test_categories_are_equal_parts_of_the_ranking_by_loss(subject, finding):
    samples = finding.extra_tables["samples"]
    for name, own in samples.groupby("domain"):
        sizes = own["category"].value_counts()
        assert sorted(sizes.index) == [1, 2, 3, 4]
        assert sizes.max() - sizes.min() <= 1
        for easy, hard in combinations(range(1, 5), 2):
            most = own[own["category"] == easy]["loss"].max()
            assert most <= own[own["category"] == hard]["loss"].min(), name
    assert set(samples["domain"]) == set(subject.domains)


def test_numbers_of_a_category_are_those_of_its_samples(finding):
    samples, data = finding.extra_tables["samples"], finding.data
    assert len(data) == 4 * samples["domain"].nunique()
    for row in data.itertuples():
        own = samples[(samples["domain"] == row.domain) & (samples["category"] == row.category)]
        assert row.samples == len(own)
        assert row.accuracy == pytest.approx((own["class"] == own["answer"]).mean())
        assert row.loss == pytest.approx(own["loss"].mean())
        alike = samples[samples["seen"] == row.seen]["right"].mean()
        assert row.below_mean == pytest.approx(alike - row.accuracy)


def test_samples_are_called_as_in_the_data(subject, finding):
    samples = finding.extra_tables["samples"]
    row = samples[samples["domain"] == "turn30"].iloc[7]
    place = subject.sample_names["turn30"].index(row["sample"])
    x = subject.domains["turn30"].batch(torch.tensor([place])).x
    classes = subject.learner.task.classes
    assert classes[subject.model(x).argmax()] == row["answer"]
    assert classes[subject.domains["turn30"].y[place]] == row["class"]


def test_unseen_domains_are_distinguished_from_those_that_were_trained_on(subject, finding):
    for frame in (finding.data, finding.extra_tables["samples"]):
        assert set(frame[~frame["seen"]]["domain"]) == {"turn30"}
    step, first, second, _ = finding.summary.splitlines()
    assert step == f"the weights of step {subject.step}:"
    assert first.startswith("training samples: the hardest quarter of turn")
    assert second.startswith("unseen domains: the hardest quarter of turn30 is worst: 15 samples")


def test_the_summary_has_the_numbers_of_the_tables(finding):
    samples, cct = finding.extra_tables["samples"], finding.extra_tables["cct"]
    _, first, second, last = finding.summary.splitlines()
    for text, seen in ((first, True), (second, False)):
        rows = finding.data[finding.data["seen"] == seen]
        worst = rows.sort_values("accuracy", kind="stable").iloc[0]
        own = samples[samples["domain"] == worst["domain"]]
        own = own[own["category"] == worst["category"]]
        mean = 100 * samples[samples["seen"] == seen]["right"].mean()
        assert f"accuracy {100 * worst['accuracy']:.1f} %, " in text
        assert f"{mean - 100 * worst['accuracy']:.1f} points below the mean ({mean:.1f} %)" in text
        common = own["class"].value_counts()
        assert f"; most frequent class {common.index[0]} ({common.iloc[0]})" in text
        errors = own[~own["right"]][["class", "answer"]].value_counts()
        (label, answer), count = errors.index[0], errors.iloc[0]
        assert text.endswith(f", most frequent error {label} predicted as {answer} ({count})")
    numbers = cct.set_index(["first", "second"])[["cct", "chance"]].mul(100).round()
    shown, chance = numbers.loc[("features", "loss")].astype(int)
    assert last == (
        f"two samples in one cluster of features are in one cluster of loss {shown} % of the time "
        f"(by chance {chance} %, random groups {numbers.loc[('random', 'random'), 'cct']:.0f} %; "
        f"{len(samples)} samples in {samples['class'].nunique()} groups)"
    )


@pytest.mark.slow
def test_random_divisions_agree_as_often_as_there_are_clusters(subject):
    for clusters in (2, 5):
        settings = QUICK | {"clusters": clusters, "samples": 1000}
        cct = Patterns(**settings).diagnose_runs([subject]).extra_tables["cct"]
        random = cct[cct["first"] == "random"].iloc[0]
        assert random["cct"] == pytest.approx(1 / clusters, abs=0.03)
        assert random["chance"] == pytest.approx(1 / clusters, abs=0.03)


def test_every_pair_of_views_is_there_both_ways_with_its_chance(finding):
    cct = finding.extra_tables["cct"].set_index(["first", "second"])
    pairs = [*permutations(("features", "path", "loss"), 2), ("random", "random")]
    assert list(cct.index) == pairs
    assert cct[["cct", "chance"]].to_numpy().min() >= 0
    assert cct[["cct", "chance"]].to_numpy().max() <= 1
    # Chance is a matter of the second view's clusters only.
    assert cct.loc[("features", "loss"), "chance"] == cct.loc[("path", "loss"), "chance"]


def test_trained_once_more_the_model_is_the_one_that_is_deployed(subject):
    record = subject.record
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))
    weights = subject.model.state_dict()
    shown = []
    for step, model in subject.retrain(record.run.steps):
        shown.append(step)
        if step == best.step:
            assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    assert shown == list(range(record.run.steps + 1))


def test_the_history_ends_in_the_accuracy_of_the_last_weights(subject):
    finding = Patterns(**QUICK | {"history": True}).diagnose_runs([subject])
    history = finding.extra_tables["history"]
    assert sorted(set(history["step"])) == list(range(0, 61, 5))
    last = history[history["step"] == 60].set_index(["domain", "category"])["accuracy"]
    samples = finding.extra_tables["samples"].set_index(["domain", "sample"])
    for name in subject.domains:
        own = samples.loc[name]
        places = [subject.sample_names[name].index(called) for called in own.index]
        batch = subject.domains[name].batch(torch.tensor(places))
        hits = (subject.learner.model(batch.x).argmax(1) == batch.y).numpy()
        for category in (1, 4):
            mean = hits[own["category"].to_numpy() == category].mean()
            assert last[name, category] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("wanted", "patience", "there"), [(None, 1e9, 1), (None, -1, 0), (0, 1, 0)]
)
def test_a_long_run_is_trained_once_more_on_request_only(
    subject, monkeypatch, wanted, patience, there
):
    monkeypatch.setattr("afield.diagnosis.diagnostics.patterns.MAX_RETRAIN_SECONDS", patience)
    history = None if wanted is None else bool(wanted)
    finding = Patterns(**QUICK | {"history": history}).diagnose_runs([subject])
    assert ("history" in finding.extra_tables) == bool(there)
    assert finding.panels == 3 + there


@pytest.mark.parametrize(
    ("setting", "value"), [("samples", 40), ("count", 2), ("clusters", 6), ("within", "domain")]
)
def test_every_setting_matters(subject, finding, setting, value):
    other = Patterns(**QUICK | {setting: value}).diagnose_runs([subject])
    numbers = [pd.concat([each.data, each.extra_tables["cct"]]) for each in (finding, other)]
    assert not numbers[0].equals(numbers[1])


def test_only_some_samples_are_on_the_maps_and_the_same_on_both(finding):
    samples = finding.extra_tables["samples"]
    there = samples[["features_x", "features_y", "path_x", "path_y"]].notna()
    assert there["features_x"].sum() == 50
    assert (there.sum(axis=1) % 4 == 0).all()


def test_looking_twice_finds_the_same(folder):
    first, second = (diagnose("patterns", folder, settings=QUICK) for _ in range(2))
    assert first.summary == second.summary
    assert all(
        first.extra_tables[name].equals(second.extra_tables[name]) for name in first.extra_tables
    )


def test_with_too_few_samples_for_the_clusters_all_but_the_comparison_is_there(subject):
    finding = Patterns(clusters=200, within="domain_class", history=False).diagnose_runs([subject])
    message = "no domain and class has 400 samples for 200 clusters; use --set clusters or within"
    assert finding.summary.splitlines()[-1] == f"views are not compared: {message}"
    assert "cct" not in finding.extra_tables
    assert finding.panels == 2
    assert len(finding.data)


def test_groups_that_are_too_small_are_left_out_and_counted(subject):
    whole = Patterns(clusters=4, history=False).diagnose_runs([subject]).extra_tables["cct"]
    assert set(whole["groups"]) == {len(subject.learner.task.classes)}
    assert set(whole["samples"]) == {sum(map(len, subject.domains.values()))}


@pytest.mark.slow
def test_all_of_many_domains_are_looked_at_but_few_have_a_sheet(tmp_path):
    generator = np.random.default_rng(0)
    y = np.tile(np.arange(2), 10 * 12)
    domain = np.repeat([f"site{i:02}" for i in range(12)], 20)
    x = np.zeros((len(y), 1, 8, 8), np.float32) + y[:, None, None, None]
    x += 0.1 * generator.standard_normal(x.shape).astype(np.float32)
    # One site's labels are all wrong.
    y = np.where(domain == "site07", 1 - y, y)
    np.savez(tmp_path / "sites.npz", X=x, y=y, domain=domain)
    settings = {"steps": 20, "backbone": "small:cnn"}
    store = tmp_path / "runs"
    record = train(
        str(tmp_path / "sites.npz"), "erm", target="site03", store=store, settings=settings
    )
    finding = diagnose("patterns", store / record.run.key, settings={"history": False, "count": 2})
    assert finding.data["domain"].nunique() == 12
    # Of eight samples each, which are few, but all are alike in that.
    assert "half of site07 is worst: 8 samples, accuracy 0.0 %" in finding.summary
    assert finding.panels == 3 + 6


def test_a_run_of_every_method_can_be_looked_at(tmp_path):
    for method in ("dmg", "multi_head"):
        record = train("spirals", method, target="turn30", store=tmp_path, settings={"steps": 5})
        finding = diagnose("patterns", tmp_path / record.run.key, settings=QUICK)
        samples = finding.extra_tables["samples"]
        assert set(samples["domain"]) == {"turn0", "turn10", "turn20", "turn30"}


@pytest.mark.parametrize("setting", ["samples", "count", "clusters"])
def test_settings_below_two_are_refused(setting):
    with pytest.raises(SpecError, match=f"patterns.{setting}=1: must be at least 2"):
        Patterns(**{setting: 1})


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory):
    """Two hospitals with bright and dark pictures; in the third, most labels are wrong."""
    root, generator = tmp_path_factory.mktemp("hospitals"), np.random.default_rng(0)
    for domain in ("north", "south", "$west_"):
        for number in range(48):
            bright = number % 2 == 1
            values = generator.integers(120 * bright, 120 * bright + 130, (12, 12, 3))
            wrong = domain == "$west_" and number >= 12
            label = "ill" if bright != wrong else "well"
            saved(Image.fromarray(values.astype(np.uint8)), root / domain / label / f"{number}.png")
    store = tmp_path_factory.mktemp("store")
    settings = {"steps": 20, "augment": "none"}
    record = train(str(root), "erm", target="$west_", store=store, settings=settings)
    return store / record.run.key


@pytest.mark.slow
def test_it_tells_people_what_is_hard_in_their_own_folder(own_folder, tmp_path):
    finding = diagnose("patterns", own_folder, settings={"clusters": 3, "samples": 30})
    unseen = finding.summary.splitlines()[2]
    # Counted by hand: 30 of the 39 pictures of the main part are looked at.
    samples = finding.extra_tables["samples"]
    worst = samples[(samples["domain"] == "$west_") & (samples["category"] == 4)]
    assert not worst["right"].any()
    assert f"hardest quarter of $west_ is worst: {len(worst)} samples, accuracy 0.0 %" in unseen
    assert "predicted as" in unseen
    names = samples[samples["domain"] == "$west_"]["sample"]
    assert names.str.match(r"\$west_/(ill|well)/\d+\.png").all()
    # Maps, agreement, history, and a contact sheet of each hospital.
    assert finding.panels == 4 + 3
    picture, *_ = finding.save(tmp_path / "fig.png")
    assert picture.stat().st_size > 50_000


@pytest.mark.slow
def test_the_sheet_shows_the_pictures_with_the_highest_losses_first(own_folder):
    subject = reopen(own_folder)
    finding = Patterns(clusters=3, history=False).diagnose_runs([subject])
    title = "highest losses in $west_ (unseen)"
    (axes,) = (each for each in finding.figure().axes if each.get_title() == title)
    own = finding.extra_tables["samples"]
    own = own[own["domain"] == "$west_"].nlargest(15, "loss")
    shown = axes.get_images()
    assert len(shown) == len(own)
    place = subject.sample_names["$west_"].index(own.iloc[0]["sample"])
    x = subject.domains["$west_"].x.take(torch.tensor([place]))[0]
    assert np.allclose(shown[0].get_array(), x.permute(1, 2, 0) / 255, atol=1e-6)
    first = axes.texts[0].get_text()
    assert first == f"{own.iloc[0]['class']}\n→ {own.iloc[0]['answer']}"
