"""Runs that are made from finished runs: adapted models, models that start from a head, soups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import afield
from afield.data.domains import Domain
from afield.errors import SpecError
from afield.runs.finished import reopen
from afield.runs.run import Run
from afield.runs.run_files import read_run_weights
from afield.runs.run_setup import run_adaptation
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import check_run
from afield.training.adaptations.t3a import T3A
from afield.training.evaluation import Evaluator
from tests.pairs import every_pair

QUICK = {"steps": 10, "every": 5}


def plan(*methods: str, dataset="spirals", **options) -> list[Run]:
    return make_benchmark(dataset, methods, trials=1, settings=QUICK, **options).runs()


def do(runs: list[Run], folder: Path) -> dict[str, afield.Record]:
    """The records of rows that leave out the first domain, and of the runs that these need."""
    by_key, store = {run.key: run for run in runs}, Store(folder)
    needed = [r for r in runs if "turn0" not in r.sources and r.role in ("", "merged", "adapted")]
    for run in needed:
        needed += [by_key[key] for key in (run.base, *run.experts) if key]
    ordered = sorted({run.key: run for run in needed}.values(), key=lambda run: run.order)
    return {run.key: execute(run, store) for run in ordered}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    records = do(plan("erm", adapt="t3a"), folder)
    (record,) = (record for record in records.values() if record.run.adaptation)
    return record, records[record.run.base], folder


def test_an_adapted_run_is_one_checkpoint_of_its_base(adapted):
    record, base, folder = adapted
    assert record.run.role == "adapted"
    assert len(record.checkpoints) == 1
    assert base.run.key == record.run.base
    assert read_run_weights(folder / record.run.key) == {}
    same = replace(record.run, role="", base="", adaptation="", adaptation_params={})
    assert same.key == base.run.key


def test_its_scores_are_those_of_the_adaptation_by_hand(adapted):
    record, base, folder = adapted
    finished = reopen(folder / base.run.key)
    domain = finished.domains["turn0"]
    stored = np.argsort([int(name) for name in finished.sample_names["turn0"]])
    split = Domain(domain.x.in_memory[stored], domain.y[stored])
    evaluator = Evaluator({("turn0", "main"): split}, domain.prepare, trial=0)
    scores = evaluator.evaluate(T3A().predictor(finished.model))
    result = record.checkpoints[0].scores["turn0"].main
    assert result == scores["turn0"].main
    assert record.checkpoints[0].score("turn10", "probe") is not None


def test_labels_of_the_target_do_not_change_what_an_adapted_model_predicts():
    torch.manual_seed(0)
    x, y = torch.randn(150, 4), torch.arange(150) % 2
    scores = []
    for labels in (y, 1 - y):
        model = afield.networks.network("small:mlp", (4,), 2)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape)
        evaluator = Evaluator({("new", "main"): Domain(x, labels)})
        scores.append(evaluator.evaluate(T3A(keep=5).predictor(model))["new"].main.accuracy)
    assert sum(scores) == pytest.approx(1.0)


def test_done_again_it_does_nothing_and_done_anew_it_is_the_same(adapted, tmp_path):
    record, base, folder = adapted
    again = execute(record.run, Store(folder))
    assert again == record
    execute(base.run, Store(tmp_path))
    anew = execute(record.run, Store(tmp_path))
    assert anew.checkpoints == record.checkpoints


def test_an_adapted_run_is_neither_trained_nor_reopened(adapted):
    record, base, folder = adapted
    with pytest.raises(SpecError, match="bench with --adapt"):
        check_run(record.run)
    with pytest.raises(SpecError, match=f"give {base.run.key}"):
        reopen(folder / record.run.key)


def test_draws_vary_the_adaptation_and_settings_are_in_the_label():
    runs = [run for run in plan("erm", adapt="t3a", draws=4) if run.adaptation]
    assert len({run.adaptation_params["keep"] for run in runs}) > 1
    chosen = make_benchmark("spirals", "erm", adapt="t3a", settings={"t3a.keep": 5}, trials=1)
    run = chosen.runs()[-1]
    assert run.adaptation_params == {"keep": 5}
    assert run.given["t3a.keep"] == 5
    assert run_adaptation(run) == T3A(keep=5)


def test_twins_of_adapted_and_started_runs_share_their_recipe():
    runs = plan("erm", adapt="t3a", start="linear_probe", rules="left-out-source")
    rows = [run for run in runs if run.role != "base"]
    assert len({run.recipe for run in rows}) == 2
    unstarted = plan("erm", rules="left-out-source")
    assert unstarted[0].recipe not in {run.recipe for run in rows}


def test_a_run_starts_from_the_fitted_head(tmp_path):
    records = do(plan("erm", start="linear_probe", average="wise"), tmp_path)
    (base,) = (record.run for record in records.values() if record.run.role == "base")
    (run,) = (record.run for record in records.values() if not record.run.role)
    assert (base.method, run.base, run.given["start"]) == (
        "linear_probe",
        base.key,
        "linear_probe",
    )
    first = reopen(tmp_path / run.key).learner.model.state_dict()
    fitted = read_run_weights(tmp_path / base.key)
    assert all(torch.equal(first[name], value) for name, value in fitted.items())
    still = replace(run, average_params={"alpha": 0.0})
    execute(still, Store(tmp_path))
    deployed = read_run_weights(tmp_path / still.key)
    assert all(torch.equal(deployed[name], value) for name, value in fitted.items())


def test_a_soup_is_of_draws_on_all_sources_that_share_a_base(tmp_path):
    runs = plan(merges="average,greedy_soup", expert_draws=3)
    experts = [r for r in runs if r.role == "expert" and "turn0" not in r.sources]
    experts = [run for run in experts if len(run.sources) == 3]
    assert [run.draw for run in experts] == [0, 1, 2]
    assert len({run.base for run in experts}) == 1
    assert not any(run.freeze_head for run in experts)
    assert len({run.lr for run in experts}) > 1
    records = do(runs, tmp_path)
    merged = {r.run.method: r for r in records.values() if r.run.role == "merged"}

    def validation(record):
        scores = [record.checkpoints[0].score(name, "probe") for name in record.run.sources]
        return np.mean([score.accuracy for score in scores])

    soup, best = merged["greedy_soup"], merged["best_expert"]
    assert validation(soup) >= validation(best)
    assert soup.run.experts == tuple(run.key for run in experts)
    assert soup.run.given["expert_draws"] == 3
    assert soup.checkpoints[0].logs["kept experts"] in (1, 2, 3)
    assert not best.checkpoints[0].logs


def test_starts_methods_averages_and_adaptations_go_together_in_pairs(tmp_path):
    methods, averages = ["erm", "vrex", "mldg"], ["last", "ema", "wise"]
    for method, average, adapt in every_pair(methods, averages, ["", "t3a"]):
        runs = plan(method, average=average, adapt=adapt or None, start="linear_probe")
        records = do(runs, tmp_path).values()
        assert any(record.run.adaptation == adapt for record in records)
        assert all(record.run.average in (average, "last") for record in records)


@pytest.mark.parametrize(
    ("methods", "options", "reason"),
    [
        ("erm", {"adapt": "tent"}, "erm with --adapt tent: tent adapts BatchNorm layers"),
        ("dmg", {"adapt": "t3a"}, "dmg with --adapt t3a: t3a replaces the one linear head"),
        ("erm", {"average": "wise"}, "their head is random; add --start linear_probe"),
        ("multi_head", {"start": "linear_probe"}, "multi_head trains other weights"),
        ("linear_probe", {"start": "linear_probe"}, "cannot start from itself"),
        ("erm", {"start": "erm"}, "training can start from linear_probe only"),
        ("", {"merges": "average", "start": "linear_probe"}, "--start is for --methods"),
        ("erm", {"expert_draws": 3}, "need --merges"),
        (
            "",
            {"merges": "average", "expert_draws": 3, "expert_method": "erm,vrex"},
            "--expert-draws are of one method",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_training(methods, options, reason):
    with pytest.raises(SpecError, match=reason):
        plan(*filter(None, [methods]), **options)


def test_of_all_methods_those_that_cannot_be_adapted_are_left_out(caplog):
    runs = plan("all", adapt="t3a")
    adapted = {run.method for run in runs if run.adaptation}
    assert "erm" in adapted
    assert "dmg" not in adapted
    assert "dmg" in {run.method for run in runs}
    assert "left out: dmg with --adapt t3a" in caplog.text


def test_a_merge_by_validation_does_not_merge_files(tmp_path):
    with pytest.raises(afield.AfieldError, match="validation scores, which files do not have"):
        afield.merge_files(
            "greedy_soup", tmp_path / "a", [tmp_path / "b"], tmp_path / "out.safetensors"
        )
