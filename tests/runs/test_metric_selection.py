"""Runs that select by another metric than accuracy, and runs that count groups."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import afield
from afield.data.lookup import find_dataset
from afield.errors import SpecError, UnknownNameError
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.selection import RULES, selection_value
from afield.runs.store import Store
from afield.studies.planning import plan_run
from afield.training.metrics import METRICS
from afield.training.scores import Checkpoint, Score, Scores
from tests.protocols import hold_out

SETTINGS = {"steps": 30, "every": 3}


def score(accuracy: float, **more) -> Score:
    metrics = {"macro_f1": more.get("f1", 0.5), "auroc": more.get("auroc", 0.5)}
    return Score(accuracy, more.get("balanced", 0.5), more.get("loss", 1.0), 10, metrics=metrics)


def checkpoint(step: int, source: Score, target: Score) -> Checkpoint:
    scores = {"a": Scores(probe=source), "t": Scores(main=target, probe=source)}
    return Checkpoint(step, scores, {})


def record(metric: str) -> Record:
    """Accuracy is best at step 1, macro F1 at step 2, the loss at step 3."""
    done = (
        checkpoint(1, score(0.9, f1=0.1, loss=3.0), score(0.6)),
        checkpoint(2, score(0.8, f1=0.9, loss=2.0), score(0.7)),
        checkpoint(3, score(0.7, f1=0.8, loss=0.5), score(0.8)),
    )
    return Record(Run("d", "erm", ("a",), metric=metric), done, 1.0, {}, "cpu")


@pytest.mark.parametrize(("metric", "step"), [("", 1), ("macro_f1", 2), ("nll", 3)])
def test_the_metric_of_the_run_selects_the_checkpoint(metric, step):
    pick = RULES["sources"].pick([record(metric)], "t")
    assert pick.step == step
    assert pick.accuracy == pytest.approx(0.5 + step / 10)


def test_another_metric_can_be_shown_without_selecting_by_it():
    pick = RULES["sources"].pick([record("")], "t", "macro_f1")
    assert (pick.step, pick.accuracy, pick.in_domain) == (1, 0.5, 0.1)
    lacking = RULES["sources"].pick([record("")], "t", "worst_class")
    assert lacking.step == 1
    assert math.isnan(lacking.accuracy)


def test_the_deployed_checkpoint_is_that_of_the_metric(tmp_path):
    run = plan_run("spirals", "erm", target="turn0", settings={**SETTINGS, "metric": "worst_class"})
    assert run.given["metric"] == "worst_class"
    result = execute(run, Store(tmp_path))
    values = [selection_value(each, run) for each in result.checkpoints]
    best = result.checkpoints[values.index(max(values))]
    assert best.score("turn0", "main") is not None
    # Every checkpoint keeps the metric that selects, and nothing more, unless a rule can pick it.
    for each in result.checkpoints[:-1]:
        if each is not best:
            assert set(each.score(run.sources[0], "probe").metrics) == {"worst_class"}


def test_accuracy_is_the_default_and_changes_no_key():
    plain = plan_run("spirals", "erm", target="turn0")
    named = plan_run("spirals", "erm", target="turn0", settings={"metric": "accuracy"})
    assert named == plain
    other = plan_run("spirals", "erm", target="turn0", settings={"metric": "nll"})
    assert other.key != plain.key
    assert other.seed == plain.seed


def test_validation_domains_are_one_split_for_another_metric(tmp_path):
    (run,) = hold_out(
        find_dataset("rotated_digits"),
        ["erm"],
        hold_out=0.3,
        validate=0.2,
        trials=1,
        settings={"steps": 2, "metric": "macro_f1"},
    )
    result = execute(run, Store(tmp_path))
    names = [name for name in result.unseen if name not in run.tested]
    scores = [result.checkpoints[-1].scores[name] for name in names]
    sizes = {name: len(domain.y) for name, domain in find_dataset("rotated_digits").load().items()}
    assert [each.main.size for each in scores] == [sizes[name] for name in names]
    assert all(each.probe is None for each in scores)
    expected = np.mean([each.main.metrics["macro_f1"] for each in scores])
    assert selection_value(result.checkpoints[-1], run) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "auroc"}, "auroc needs two classes, but rotated_digits has 10"),
        ({"metric": "worst_group"}, "metric=worst_group: needs groups of samples; use --group"),
        ({"metric": "f1"}, "no metric 'f1'"),
        ({"group": "slide"}, "rotated_digits has no column 'slide'; give a CSV file"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_training(settings, message):
    with pytest.raises((SpecError, UnknownNameError), match=message):
        plan_run("rotated_digits", "erm", target="0deg", settings=settings)


def grouped(path, *, noise: bool = False):
    """Three domains of one feature that tells the class, except in group g1 of domain t."""
    generator = np.random.default_rng(0)
    y = np.tile([0, 1], 60)
    domain = np.repeat(["a", "b", "t"], 40)
    group = np.array([f"g{i // 8 % 5}" for i in range(120)])
    x = np.where(y == 1, 1.0, -1.0) * np.where((domain == "t") & (group == "g1"), -1, 1)
    if noise:
        y = np.where(domain == "t", generator.permutation(y), y)
    np.savez(path, X=np.stack([x, x], 1), y=y, domain=domain, group=group)
    return path


def test_groups_are_counted_and_summarized(tmp_path):
    path = grouped(tmp_path / "own.npz")
    options = {"trials": 1, "store": tmp_path / "runs", "group": "group", **SETTINGS, "lr": 0.1}
    records = afield.bench(path, "erm", **options)
    (tested,) = [each for each in records if each.unseen == ("t",)]
    main = tested.checkpoints[-1].score("t", "main")
    assert main.groups["g1"][0] == 0
    assert sum(size for _, size in main.groups.values()) == main.size == 32
    assert main.metrics["worst_group"] == 0
    assert main.metrics["mean_group"] == pytest.approx(0.8)
    frame = afield.tabulate(records, rules="sources").set_index("domain")["accuracy"]
    assert frame["worst group"] == 0
    assert frame["mean group"] == pytest.approx((1 + 1 + 0.8) / 3)
    shown = afield.tabulate(records, rules="sources", metric="worst_group").set_index("domain")
    assert shown["accuracy"][["a", "b", "t"]].tolist() == [1, 1, 0]


def test_a_run_is_done_again_for_groups_but_not_for_fewer(tmp_path):
    path, store = grouped(tmp_path / "own.npz"), Store(tmp_path / "runs")
    plain = plan_run(path, "erm", target="t", settings=SETTINGS)
    with_groups = plan_run(path, "erm", target="t", settings={**SETTINGS, "group": "group"})
    assert with_groups.key == plain.key
    execute(plain, store)
    assert store.get(with_groups) is None
    execute(with_groups, store)
    assert store.get(with_groups) is not None
    assert store.get(plain) is not None


@pytest.mark.slow
def test_noise_for_labels_of_the_target_changes_nothing_whatever_selects(tmp_path):
    paths = [grouped(tmp_path / "plain.npz"), grouped(tmp_path / "noise.npz", noise=True)]
    for metric in METRICS:
        weights, picks = [], []
        for path in paths:
            store = Store(tmp_path / f"{metric} {path.stem}")
            settings = {**SETTINGS, "metric": metric, "group": "group"}
            run = plan_run(path, "erm", target="t", settings=settings)
            result = execute(replace(run, rules=("sources",)), store)
            weights.append(store.weights(run))
            picks.append(RULES["sources"].pick([result], "t").step)
        assert picks[0] == picks[1]
        for name, value in weights[0].items():
            assert torch.equal(value, weights[1][name]), metric


def test_auroc_cannot_select_where_a_source_validates_on_one_class(tmp_path):
    path = tmp_path / "own.npz"
    y = np.array([0, 1] * 10 + [0] * 19 + [1] + [0, 1] * 10)
    x, domain = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(["a", "b", "c"], 20)
    np.savez(path, X=x, y=y, domain=domain)
    with pytest.raises(SpecError, match="the validation split of 'b' has only one class"):
        plan_run(path, "erm", target="c", settings={"metric": "auroc"})
