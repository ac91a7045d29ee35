"""Which runs a fit needs, and the command that does it again."""

from pathlib import Path

import numpy as np
import pytest

from afield.deployment.estimates import unseen_accuracies
from afield.deployment.exporting import export
from afield.deployment.fitting import FitRequest, fit, plan_fit
from afield.deployment.recipes import Recipe
from afield.errors import AfieldError, DataError, SpecError
from afield.reporting.benchmarking import bench
from afield.runs.run_files import read_run_weights
from afield.runs.store import Store
from afield.studies.protocol import Protocol
from afield.studies.settings import resolve_run

QUICK = {"steps": 10, "every": 10}


def request_of(dataset, method, *, trials=1, hold_out=0.0, **options):
    protocol = Protocol(trials=trials, hold_out=hold_out)
    return FitRequest(dataset, method, protocol=protocol, **options)


def plan_of(store, method="best", dataset="spirals", **options):
    return plan_fit(request_of(dataset, method, **options), Store(store))


def test_the_command_for_a_card_has_no_path_and_no_address():
    request = FitRequest("/home/me/photos", "best")
    command = request.command(Path("/home/me/m"), "sftp://me:secret@host/runs")
    assert command == "afield fit photos best --out m --store runs"


def test_a_plan_trains_on_all_domains_and_leaves_each_out_once_a_trial(tmp_path):
    plan = plan_of(tmp_path, "erm", settings=QUICK, trials=2)
    assert len(plan.run.sources) == 4
    assert len(plan.held_out) == 8
    assert {len(run.sources) for run in plan.held_out} == {3}
    assert plan.estimate is None


def test_a_fit_plans_each_run_once(tmp_path, monkeypatch):
    resolved = []

    def resolving(dataset, method, sources, **options):
        resolved.append((sources, options["trial"]))
        return resolve_run(dataset, method, sources, **options)

    monkeypatch.setattr("afield.studies.planning.resolve_run", resolving)
    plan = plan_of(tmp_path, "erm", settings=QUICK)
    assert len(resolved) == len(set(resolved)) == 1 + len(plan.held_out) == 5


def test_without_an_estimate_no_domain_is_held_out(tmp_path):
    assert plan_of(tmp_path, "erm", settings=QUICK, estimate=False).held_out == ()


def test_an_estimate_takes_a_trial(tmp_path):
    with pytest.raises(SpecError, match="trials=0: at least one is needed"):
        plan_of(tmp_path, "erm", trials=0)


def test_best_takes_no_setting_and_needs_a_bench(tmp_path):
    with pytest.raises(SpecError, match="settings from the store"):
        plan_of(tmp_path / "r", settings=QUICK)
    bench("spirals", ["erm"], trials=1, store=tmp_path / "r", settings=QUICK)
    next((tmp_path / "r").glob("*/record.json")).unlink()
    with pytest.raises(DataError, match="no benchmark of spirals there"):
        plan_of(tmp_path / "r")


def test_held_out_runs_have_the_settings_and_the_average_of_the_model(tmp_path):
    plan = plan_of(tmp_path, "vrex", average="ema", settings={"vrex.penalty": 3.0, **QUICK})
    for run in (plan.run, *plan.held_out):
        assert (run.steps, run.params["penalty"], run.average) == (10, 3.0, "ema")


def test_many_domains_are_held_out_a_quarter_at_a_time(tmp_path):
    for count, held_out in ((12, 1), (13, 3)):
        y = np.tile([0, 1], 4 * count)
        path = tmp_path / f"{count}.npz"
        domains = np.repeat([f"d{i:02}" for i in range(count)], 8)
        np.savez(path, X=np.eye(2)[y], y=y, domain=domains)
        plan = plan_fit(FitRequest(str(path), "erm", settings=QUICK), Store(tmp_path / "r"))
        assert {count - len(run.sources) for run in plan.held_out} == {held_out}
    half = plan_of(tmp_path, "erm", str(path), settings=QUICK, hold_out=0.5)
    assert {len(run.sources) for run in half.held_out} == {7}


def test_the_command_names_what_is_not_the_default():
    request = request_of(
        "d", "erm", average="ema", settings={"steps": 3}, classes="all", trials=2, hold_out=0.5
    )
    assert request.command(Path("m"), "runs") == (
        "afield fit d erm --out m --average ema --classes all --set steps=3 --trials 2 "
        "--hold-out 0.5"
    )
    plain = request_of("d", "erm", estimate=False, trials=3)
    assert plain.command(Path("m"), "runs") == "afield fit d erm --out m --no-estimate"


def test_best_can_be_a_merge_of_experts_on_all_domains(tmp_path):
    bench("spirals", merges=["average"], trials=1, store=tmp_path, settings=QUICK)
    plan = plan_of(tmp_path)
    base, *experts = plan.needed
    assert (plan.run.method, plan.run.sources, base.sources) == (
        "average",
        ("turn0", "turn10", "turn20", "turn30"),
        ("turn0", "turn10", "turn20", "turn30"),
    )
    assert [expert.sources for expert in experts] == [(name,) for name in base.sources]
    assert {expert.base for expert in experts} == {plan.run.base} == {base.key}
    assert plan.run.experts == tuple(expert.key for expert in experts)
    assert {run.method for run in plan.held_out} == {"average"}


def test_a_merge_is_fitted_like_a_method(tmp_path):
    bench("spirals", merges=["average"], trials=1, store=tmp_path / "r", settings=QUICK)
    model = fit("spirals", "best", tmp_path / "model", store=tmp_path / "r")
    assert model.about.estimate.trials == 1
    assert model.about.calibration is not None
    plan = plan_of(tmp_path / "r")
    states = [read_run_weights(tmp_path / "r" / key) for key in plan.run.experts]
    mean = sum(state["head.weight"] for state in states) / len(states)
    np.testing.assert_allclose(model.module.head.weight.detach(), mean, rtol=1e-4, atol=1e-6)


def mean_accuracy(store, adaptation):
    records = [record for record in Store(store) if record.run.adaptation == adaptation]
    return np.mean([next(iter(unseen_accuracies(record).values())) for record in records])


def test_best_can_be_an_adaptation_unless_it_is_not_to(tmp_path):
    bench("spirals", "erm", adapt="t3a", trials=1, store=tmp_path, settings=QUICK)
    better = mean_accuracy(tmp_path, "t3a") > mean_accuracy(tmp_path, "")
    plan = plan_of(tmp_path)
    assert (plan.run.method, plan.run.adaptation, plan.run.role) == ("erm", "", "")
    assert bool(plan.adaptation) == better
    assert [run.base for run in plan.adapted] == [run.key for run in plan.held_out] * int(better)
    assert plan.estimate.recipes == 2
    plain = plan_of(tmp_path, adapt="none")
    assert (plain.adaptation, plain.adapted, plain.run) == (None, (), plan.run)
    assert plain.estimate.recipes == 1
    with pytest.raises(SpecError, match="settings from the store"):
        plan_of(tmp_path, adapt="t3a")


def test_a_chosen_adaptation_is_that_of_the_model(tmp_path, monkeypatch):
    bench("spirals", "erm", adapt="t3a", trials=1, store=tmp_path / "r", settings=QUICK)
    accuracy = Recipe.accuracy

    def with_bonus(recipe, *names):
        return accuracy(recipe, *names) + bool(recipe.run.adaptation)

    monkeypatch.setattr(Recipe, "accuracy", with_bonus)
    model = fit("spirals", "best", tmp_path / "model", store=tmp_path / "r")
    assert model.about.adaptation == "t3a"
    assert model.about.adaptation_params == {"keep": 100}
    assert model.about.calibration is not None
    assert model.about.estimate.accuracy == pytest.approx(mean_accuracy(tmp_path / "r", "t3a"))
    assert "adapted to unlabelled samples" in (tmp_path / "model" / "README.md").read_text()
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    adapted = model.adapted("t3a", {"t3a.keep": 100}).predict_proba(x)
    np.testing.assert_array_equal(model.adapted().predict_proba(x), adapted)
    with pytest.raises(SpecError, match="fit it with --adapt none"):
        export(tmp_path / "model", "torch", tmp_path / "model.pt2")


def test_a_method_is_fitted_with_an_adaptation_and_a_start(tmp_path):
    settings = {**QUICK, "t3a.keep": 5, "linear_probe.l2": 0.1}
    options = {"settings": settings, "start": "linear_probe", "adapt": "t3a"}
    plan = plan_of(tmp_path / "r", "erm", **options)
    (start,) = plan.needed
    assert (start.method, start.role, start.params["l2"]) == ("linear_probe", "base", 0.1)
    assert plan.run.base == start.key
    assert {run.role for run in plan.held_out} == {"base", ""}
    assert plan.adaptation.adaptation_params == {"keep": 5}
    trained = [run.key for run in plan.held_out if not run.role]
    assert [run.base for run in plan.adapted] == trained
    model = fit("spirals", "erm", tmp_path / "model", store=tmp_path / "r", **options)
    assert model.about.adaptation_params == {"keep": 5}
    assert model.about.estimate.accuracy == pytest.approx(mean_accuracy(tmp_path / "r", "t3a"))
    assert "--start linear_probe --adapt t3a" in model.about.command
    for options, message in (
        ({"start": "erm"}, "can start from linear_probe only"),
        ({"adapt": "tent"}, "tent adapts BatchNorm layers"),
        ({"settings": {"t3a.keep": 5}}, "no 't3a'"),
    ):
        with pytest.raises(AfieldError, match=message):
            plan_of(tmp_path / "r", "erm", **options)


def test_best_can_be_a_run_that_starts_from_a_fitted_head(tmp_path):
    bench("spirals", "erm", start="linear_probe", trials=1, store=tmp_path, settings=QUICK)
    plan = plan_of(tmp_path)
    (start,) = plan.needed
    assert (start.method, start.sources, start.role) == ("linear_probe", plan.run.sources, "base")
    assert len(plan.run.sources) == 4
    assert plan.run.base == start.key
    model = fit("spirals", "best", tmp_path / "model", store=tmp_path)
    assert model.about.run.base == start.key
    assert model.about.estimate.recipes == 1
