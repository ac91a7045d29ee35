"""Classes that only the target has: they add no output and change no weight."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

import afield
from afield.data.lookup import find_dataset
from afield.deployment.fitting import fit
from afield.errors import SpecError
from afield.reporting.page import write_report
from afield.reporting.results import group_records
from afield.reporting.table import table_caption, tabulate
from afield.runs.finished import reopen
from afield.runs.run_files import read_run_weights
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark
from afield.studies.checks import read_classes
from afield.studies.commands import row_command
from afield.studies.planning import plan_run
from afield.studies.settings import resolve_run

NAMES = np.array(["cup", "jug", "pot"])
QUICK = {"steps": 20}


def data(path, *, unseen=6, seed=0, domains=4):
    """Domains with three classes; the last one also has samples of the class 'ape'."""
    generator = np.random.default_rng(seed)
    y = np.arange(40 * domains) % 3
    x = 3 * np.eye(3)[y] + 0.3 * generator.normal(size=(len(y), 3))
    labels, domain = NAMES[y], np.repeat([f"d{i}" for i in range(domains)], 40)
    if unseen:
        labels[-unseen:] = "ape"
    np.savez(path, X=x, y=labels, domain=domain)
    return path


@pytest.fixture
def own(tmp_path):
    return data(tmp_path / "own.npz")


def weights(path, store, **options):
    run = plan_run(path, "erm", target="d3", settings=QUICK, **options)
    execute(run, store)
    return run, read_run_weights(store.folder(run))


def test_a_class_that_only_the_target_has_changes_no_weight(tmp_path, own):
    run, result = weights(own, Store(tmp_path / "a"))
    same, plain = weights(data(tmp_path / "plain.npz", unseen=0), Store(tmp_path / "b"))
    assert run.classes == ("cup", "jug", "pot")
    assert same.classes == ()
    assert result.keys() == plain.keys()
    for name, tensor in result.items():
        assert torch.equal(tensor, plain[name]), name


def test_random_labels_of_the_target_change_no_weight(tmp_path, own):
    _, expected = weights(own, Store(tmp_path / "a"))
    content = dict(np.load(own))
    generator = np.random.default_rng(1)
    for labels in (["cup", "jug", "pot", "ape"], ["cup", "emu", "fox"]):
        content["y"] = content["y"].copy()
        content["y"][-40:] = generator.choice(labels, 40)
        np.savez(tmp_path / "random.npz", **content)
        _, result = weights(tmp_path / "random.npz", Store(tmp_path / f"b{len(labels)}"))
        assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())


def test_all_classes_are_a_closed_set_with_the_keys_of_before(tmp_path, own):
    run, result = weights(own, Store(tmp_path), classes="all")
    assert run.classes == ()
    assert result["head.weight"].shape[0] == 4
    assert run.given["classes"] == "all"
    assert run.key == resolve_run(find_dataset(own), "erm", run.sources, settings=QUICK).key
    assert run.key != plan_run(own, "erm", target="d3", settings=QUICK).key


def test_where_no_class_is_dropped_keys_are_as_before(own):
    run = plan_run(own, "erm", target="d0", settings=QUICK)
    assert run.classes == ()
    assert run.key == resolve_run(find_dataset(own), "erm", run.sources, settings=QUICK).key
    assert not plan_run(own, "erm", target="d0", classes="sources", settings=QUICK).given.get(
        "classes"
    )


def test_samples_of_unseen_classes_are_scored_apart(tmp_path, own):
    store = Store(tmp_path / "runs")
    run = plan_run(own, "erm", target="d3", settings=QUICK)
    record = execute(run, store)
    scores = record.checkpoints[-1].scores["d3"]
    counted = [scores.main.unseen_classes or 0, scores.probe.unseen_classes or 0]
    assert sum(counted) == 6
    assert scores.main.size + scores.probe.size == 34
    assert 1 / 3 < scores.main.unseen_confidence <= 1
    assert record.checkpoints[-1].scores["d0"].probe.unseen_classes is None
    finished = reopen(store.folder(run))
    assert len(finished.domains["d3"]) + len(finished.probes["d3"]) == 34
    assert int(finished.domains["d3"].y.min()) >= 0
    assert finished.learner.task.classes == ("cup", "jug", "pot")


def test_planning_names_the_samples_and_refuses_a_domain_of_unseen_classes(own, caplog):
    with caplog.at_level(logging.WARNING):
        make_benchmark(own, ["erm"], trials=1, settings=QUICK).runs()
    (note,) = [line for line in caplog.messages if "no source has" in line]
    assert "6 of 40 in 'd3' ('ape')" in note
    content = dict(np.load(own))
    content["y"] = np.where(content["domain"] == "d3", "ape", content["y"])
    np.savez(own, **content)
    with pytest.raises(SpecError, match="domain 'd3' has no sample of a class that its sources"):
        make_benchmark(own, ["erm"], trials=1, settings=QUICK).runs()
    assert make_benchmark(own, ["erm"], trials=1, classes="all", settings=QUICK).runs()


def test_twins_have_the_classes_of_their_fold(own):
    rules = ["sources", "left-out-source"]
    runs = make_benchmark(own, ["erm"], trials=1, rules=rules, settings=QUICK).runs()
    kept = ("cup", "jug", "pot")
    targets = {run.sources: run.classes for run in runs if len(run.sources) == 3}
    assert targets.pop(("d0", "d1", "d2")) == kept
    assert set(targets.values()) == {()}
    twins = [(run.sources, run.classes) for run in runs if len(run.sources) == 2]
    # Pairs with d3 belong to two folds with different classes.
    assert sorted(twins) == sorted(
        [(pair, ()) for pair in (("d0", "d1"), ("d0", "d2"), ("d1", "d2"))]
        + [(pair, kept) for pair in (("d0", "d1"), ("d0", "d2"), ("d1", "d2"))]
        + [(pair, ()) for pair in (("d0", "d3"), ("d1", "d3"), ("d2", "d3"))]
    )


def test_shares_of_domains_use_the_classes_of_their_sources(tmp_path):
    path = data(tmp_path / "own.npz", domains=8)
    runs = make_benchmark(path, ["erm"], trials=12, hold_out=0.25, settings=QUICK).runs()
    for run in runs:
        assert run.classes == (() if "d7" in run.sources else ("cup", "jug", "pot"))
    assert {bool(run.classes) for run in runs} == {True, False}


def test_base_experts_and_merged_models_of_a_target_have_one_list(own):
    runs = make_benchmark(own, merges=["average"], trials=1, settings=QUICK).runs()
    by_key = {run.key: run for run in runs}
    for run in runs:
        for key in (run.base, *run.experts):
            assert not key or by_key[key].classes == run.classes
    merged = {run.sources: run.classes for run in runs if run.role == "merged"}
    assert merged.pop(("d0", "d1", "d2")) == ("cup", "jug", "pot")
    assert set(merged.values()) == {()}


def test_networks_with_a_head_from_names_have_all_of_them(own):
    dataset, sources = find_dataset(own), ("d0", "d1", "d2")
    clip = {"backbone": "clip:ViT-B-32/openai", "size": 32}
    kept = ("cup", "jug", "pot")
    assert resolve_run(dataset, "erm", sources, classes=kept).classes == kept
    assert resolve_run(dataset, "erm", sources, classes=kept, settings=clip).classes == ()


def test_named_datasets_use_all_classes_unless_asked(caplog):
    dataset = find_dataset("spirals")
    assert read_classes(dataset) is None
    assert set(read_classes(dataset, choice="sources")) == set(dataset.domains)
    with pytest.raises(SpecError, match="classes=some: give 'sources' or 'all'"):
        read_classes(dataset, choice="some")
    with pytest.raises(SpecError, match="classes=some"):
        make_benchmark("spirals", classes="some")
    named = make_benchmark("spirals", ["erm"], trials=1, classes="sources").runs()
    assert {run.given["classes"] for run in named} == {"sources"}


@pytest.mark.slow
def test_a_benchmark_reports_unseen_classes_and_both_choices_are_rows(tmp_path, own):
    store = tmp_path / "runs"
    options = {"trials": 1, "rules": "all", "settings": QUICK, "store": store}
    records = afield.bench(own, ["erm"], merges="average", **options)
    frame = tabulate(records, rules="sources")
    of_erm = frame[frame["method"] == "erm"].set_index("domain")
    assert 0.1 < of_erm.loc["unseen classes", "accuracy"] < 0.3
    assert 1 / 3 < of_erm.loc["confidence on unseen classes", "accuracy"] <= 1
    assert "whose class no source has" in table_caption(frame)
    left_out = tabulate(records, rules="left-out-source")
    assert left_out.set_index("domain").loc["d3", "accuracy"] > 0.5
    closed = afield.bench(own, ["erm"], classes="all", **options)
    rows = group_records(list(Store(store)))[0].methods
    assert {"erm", "erm classes=all"} <= set(rows)
    assert "--classes all" in row_command(rows["erm classes=all"][:1], store="x")
    assert "--classes" not in row_command(rows["erm"], store="x")
    assert {r.run.key for r in closed} - {r.run.key for r in records}
    assert len([r for r in rows["erm"] if len(r.unseen) == 1]) == 4
    assert len([r for r in rows["erm classes=all"] if len(r.unseen) == 1]) == 4
    write_report(store)
    assert "unseen classes" in (store / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["erm", "best"])
def test_a_model_knows_the_classes_of_all_domains_and_is_estimated_on_those_known(
    tmp_path, own, method
):
    options = {"store": tmp_path / "runs"}
    if method == "best":
        asked = {"trials": 1, "rules": "all", "settings": QUICK, **options}
        afield.bench(own, ["erm", "vrex"], **asked)
    else:
        options["settings"] = QUICK
    model = fit(own, method, tmp_path / "model", **options)
    assert model.classes == ("ape", "cup", "jug", "pot")
    assert set(model.about.estimate.domains) == {"d0", "d1", "d2", "d3"}
    assert model.about.estimate.domains["d3"] > 0.8
    assert model.about.calibration.samples == 4 * 8 - _unseen_in_probe(tmp_path / "runs")
    assert len(model.predict(np.load(own)["X"][:5])) == 5


def _unseen_in_probe(folder):
    for record in Store(folder):
        score = record.checkpoints[-1].score("d3", "probe")
        if record.unseen == ("d3",) and score is not None:
            return score.unseen_classes or 0
    raise AssertionError("no record of the fold")


def test_a_split_without_any_known_class_is_left_out():
    from afield.data.domains import Domain
    from afield.training.evaluation import Evaluator

    x = torch.eye(3)
    splits = {
        ("a", "main"): Domain(x, torch.tensor([0, -1, 1])),
        ("b", "main"): Domain(x, torch.tensor([-1, -1, -1])),
        ("c", "main"): Domain(x, torch.tensor([2, 1, 0])),
    }
    groups = {("a", "main"): ["x", "y", "y"]}
    model = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    result = Evaluator(splits, groups=groups).evaluate(model)
    assert result.keys() == {"a", "c"}
    score, whole = result["a"].main, result["c"].main
    confidence = float(torch.eye(3).softmax(dim=1).max())
    assert (score.accuracy, score.size, score.unseen_classes) == (0.5, 2, 1)
    assert score.unseen_confidence == pytest.approx(confidence)
    assert score.groups == {"x": (1, 1), "y": (0, 1)}
    assert whole.unseen_classes is whole.unseen_confidence is None
    alone = Evaluator({("c", "main"): splits["c", "main"]}).evaluate(model)
    assert alone["c"].main == replace(whole)
