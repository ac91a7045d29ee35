"""From data to the folder of a model: what it holds, and what it says of itself."""

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from afield.data.lookup import find_dataset
from afield.deployment.estimates import unseen_accuracies
from afield.deployment.exporting import export
from afield.deployment.fitting import FitRequest, fit, plan_fit
from afield.deployment.model import load
from afield.deployment.recipes import Recipe
from afield.errors import AfieldError, DataError, SpecError
from afield.networks.inference import compute_outputs
from afield.reporting.benchmarking import bench
from afield.runs.finished import reopen
from afield.runs.run_files import read_run_weights
from afield.runs.store import Store
from afield.studies.features import embed
from afield.studies.protocol import Protocol
from afield.studies.settings import resolve_run
from tests.files import spoken, tone

QUICK = {"steps": 10, "every": 10}
TINY = {"steps": 1, "every": 1, "size": 32, "weights": "none"}
MODELS = {
    "small": ("erm", {"backbone": "small:cnn"}),
    "resnet": ("erm", {"backbone": "timm:resnet18"}),
    "efficientnet": ("erm", {"backbone": "timm:tf_efficientnet_lite0"}),
    "dmg": ("dmg", {"backbone": "small:cnn"}),
    "arith": ("arith", {"backbone": "small:cnn"}),
}
FRESH = """
import json, sys
import afield
probabilities = {}
for folder, files in json.loads(sys.argv[1]).items():
    probabilities[folder] = afield.load(folder).predict_proba(files).tolist()
json.dump(probabilities, sys.stdout)
"""


def store_run(folder, store):
    """The one run of a store that has left nothing out."""
    (record,) = [each for each in Store(store) if not each.unseen]
    with torch.random.fork_rng():
        return reopen(Store(store).folder(record.run))


@pytest.mark.slow
def test_a_fresh_process_gives_the_probabilities_of_the_model_in_memory(two_colours, tmp_path):
    files = sorted(two_colours.rglob("*.png"))
    asked, expected = {}, {}
    for name, (method, own) in MODELS.items():
        out, store = tmp_path / name, tmp_path / f"{name} runs"
        estimate = name == "small"
        settings = {**TINY, **own}
        fit(two_colours, method, out, store=store, settings=settings, estimate=estimate)
        subject = store_run(out, store)
        temperature = load(out).temperature
        assert (temperature != 1.0) == estimate
        # The line of evaluation, from the cache.
        expected[str(out)] = {
            two_colours / file: row
            for domain, samples in subject.domains.items()
            for file, row in zip(
                subject.sample_names[domain],
                (subject.logits(samples) / temperature).softmax(dim=1).tolist(),
                strict=True,
            )
        }
        asked[str(out)] = [str(file) for file in files]
    words = [sys.executable, "-c", FRESH, json.dumps(asked)]
    fresh = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    for out, rows in expected.items():
        result = dict(zip(files, fresh[out], strict=True))
        assert len(rows) == 48
        for file, row in rows.items():
            np.testing.assert_allclose(result[file], row, atol=1e-6)


def test_what_the_store_has_is_used_and_what_is_missing_is_done(tmp_path):
    bench("spirals", ["erm"], trials=2, store=tmp_path / "runs", settings=QUICK)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    model = fit("spirals", "erm", tmp_path / "model", store=tmp_path / "runs", settings=QUICK)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()
    assert model.about.estimate.trials == 2
    assert model.about.estimate.stderr is not None


def test_records_of_fewer_rules_are_enough(tmp_path):
    bench("spirals", ["erm"], trials=1, rules="sources", store=tmp_path / "r", settings=QUICK)
    fit("spirals", "erm", tmp_path / "model", store=tmp_path / "r", settings=QUICK)
    assert len(list(Store(tmp_path / "r"))) == 5


def test_it_trains_on_all_domains_and_says_what_it_did(spiral_model):
    about = load(spiral_model).about
    assert about.sources == about.run.sources == ("turn0", "turn10", "turn20", "turn30")
    assert about.run.method == "erm"
    assert about.run.steps == 40
    assert about.versions["torch"] == torch.__version__.partition("+")[0]
    assert about.command.endswith("--set steps=40 --set every=20")
    assert set(about.estimate.domains) == set(about.sources)


def test_without_an_estimate_one_run_is_done(tmp_path):
    model = fit(
        "spirals", "erm", tmp_path / "m", store=tmp_path / "r", settings=QUICK, estimate=False
    )
    assert len(list(Store(tmp_path / "r"))) == 1
    assert model.about.estimate is None
    assert model.about.command.endswith("--no-estimate")


@pytest.mark.slow
def test_best_takes_what_the_bench_has_shown(tmp_path):
    store = tmp_path / "runs"
    bench("spirals", ["erm"], trials=1, store=store, settings={"steps": 1})
    bench("spirals", ["vrex"], trials=1, store=store, settings={"steps": 150, "every": 150})
    model = fit("spirals", "best", tmp_path / "model", store=store)
    assert model.about.run.method == "vrex"
    assert model.about.run.steps == 150
    estimate = model.about.estimate
    assert estimate.recipes == 2
    assert estimate.selection.accuracy - estimate.selection.cost == estimate.accuracy
    assert all(key.startswith("vrex-") for (key,) in estimate.selection.runs.values())
    assert set(estimate.selection.same) == set(estimate.domains)
    assert load(tmp_path / "model").about.estimate == estimate
    assert model.about.command.endswith(f"--store {Path(store).name}")
    assert "Choosing cost 0.0 points" in (tmp_path / "model" / "README.md").read_text()
    assert len(list(Store(store))) == 9


@pytest.mark.slow
def test_a_bench_counts_wherever_its_data_are_now(two_colours, tmp_path):
    store, settings = tmp_path / "runs", {**QUICK, "size": 16}
    shutil.copytree(two_colours, tmp_path / "there")
    bench(tmp_path / "there", ["erm"], trials=1, store=store, settings=settings)
    (tmp_path / "there").rename(tmp_path / "here")
    best = fit(tmp_path / "here", "best", tmp_path / "best", store=store)
    named = fit(tmp_path / "here", "erm", tmp_path / "erm", store=store, settings=settings)
    assert len(list(Store(store))) == 4
    assert best.about.estimate == named.about.estimate
    assert best.about.calibration == named.about.calibration
    assert best.about.run.dataset == "here"


def test_of_many_domains_a_share_is_held_out(tmp_path):
    y = np.tile([0, 1], 8 * 13)
    noise = np.random.default_rng(0).normal(size=(len(y), 2))
    domain = np.repeat([f"clinic {i}" for i in range(13)], 16)
    np.savez(tmp_path / "many.npz", X=np.eye(2)[y] + 0.3 * noise, y=y, domain=domain)
    model = fit(tmp_path / "many.npz", "erm", tmp_path / "m", store=tmp_path / "r", settings=QUICK)
    assert len(list(Store(tmp_path / "r"))) == 2
    assert len(model.about.estimate.domains) == 3
    assert len(model.about.sources) == 13


def test_paths_of_data_and_weights_are_not_stored(two_colours, tmp_path):
    settings = {"steps": 1, "size": 16}
    fit(two_colours, "erm", tmp_path / "m", store=tmp_path / "r", settings=settings, estimate=False)
    content = json.loads((tmp_path / "m" / "model.json").read_text())
    assert content.pop("command")
    assert str(two_colours.parent) not in json.dumps(content)
    assert content["run"]["dataset"] == "colours"


def test_sounds_are_understood_again(tmp_path):
    for speaker in ("ann", "bob"):
        for word, hertz in (("low", 300.0), ("high", 3000.0)):
            for take in range(4):
                shift = 40.0 * take + 15.0 * (speaker == "bob")
                path = tmp_path / "data" / speaker / word / f"{take}.wav"
                spoken(path, tone(hertz + shift))
    model = fit(
        tmp_path / "data", "erm", tmp_path / "m", store=tmp_path / "r",
        settings={"steps": 30, "every": 30}, estimate=False,
    )  # fmt: skip
    spoken(tmp_path / "new" / "a.wav", tone(330.0, rate=8000), rate=8000)
    spoken(tmp_path / "new" / "b.wav", tone(3050.0))
    assert model.predict(tmp_path / "new").tolist() == ["low", "high"]


def test_a_run_that_fails_stops_it_and_nothing_is_written(tmp_path):
    with pytest.raises(DataError, match="--no-estimate"):
        fit("spirals", "erm", tmp_path / "m", store=tmp_path / "r", settings={"lr": 1e30})
    assert not (tmp_path / "m").exists()


def test_a_place_with_something_else_is_refused_before_any_work(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    with pytest.raises(SpecError, match="is not a model folder"):
        fit("spirals", "erm", tmp_path / "photos", store=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_an_average_is_deployed_and_named(tmp_path):
    model = fit(
        "spirals", "erm", tmp_path / "m", store=tmp_path / "r", average="swad", settings=QUICK,
        estimate=False,
    )  # fmt: skip
    assert model.about.name == "spirals-erm-swad"
    assert "--average swad" in model.about.command


def test_arrays_of_bytes_are_predicted_as_in_evaluation(tmp_path):
    settings = {"steps": 3, "every": 3}
    options = {"store": tmp_path / "r", "settings": settings, "estimate": False}
    model = fit("rotated_digits", "erm", tmp_path / "m", **options)
    subject = store_run(tmp_path / "m", tmp_path / "r")
    samples = subject.domains["15deg"]
    expected = compute_outputs(subject.model, samples.x, samples.prepare).softmax(dim=1)
    x = (
        samples.x.in_memory
        if samples.x.in_memory is not None
        else samples.x.take(torch.arange(len(samples)))
    )
    np.testing.assert_allclose(model.predict_proba(x), expected.numpy(), atol=1e-6)
    assert find_dataset("rotated_digits").classes == model.classes


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
    records = [r for r in Store(tmp_path / "r") if r.run.key in trained]
    unadapted = np.mean([*(a for r in records for a in unseen_accuracies(r).values())])
    assert model.about.estimate.accuracy != pytest.approx(unadapted)
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


NET = "test_resnet"
BRIEF = {"steps": 20, "every": 10}


@pytest.fixture
def features(two_colours, tmp_path):
    file = tmp_path / "net.safetensors"
    save_file(timm.create_model(NET, num_classes=0).state_dict(), file)
    options = {"backbone": f"timm:{NET}", "weights": str(file), "size": 32}
    return embed(two_colours, tmp_path / "emb", **options)


def test_images_get_the_predictions_of_their_features(features, two_colours, tmp_path):
    options = {"store": tmp_path / "runs", "settings": BRIEF}
    model = fit(features, "erm", tmp_path / "model", **options)
    assert model.about.inputs.kind == "pictures"
    content = np.load(features)
    files = [two_colours / name for name in content["names"]]
    from_files = model.predict_proba(files)
    (tmp_path / "net.safetensors").unlink()
    plain = fit(features, "erm", tmp_path / "plain", **options)
    assert plain.about.inputs.kind == "arrays"
    np.testing.assert_allclose(from_files, plain.predict_proba(content["X"]), atol=1e-4)
    adapted, expected = model.adapted("t3a"), plain.adapted("t3a").predict_proba(content["X"])
    np.testing.assert_allclose(adapted.predict_proba(files), expected, atol=1e-3)
    # Every prediction starts afresh.
    np.testing.assert_allclose(adapted.predict_proba(files), expected, atol=1e-3)
    assert not np.allclose(expected, from_files, atol=1e-2)
    distances = [each.distance for each in model.predictions(files)]
    expected = [each.distance for each in plain.predictions(content["X"])]
    np.testing.assert_allclose(distances, expected, rtol=1e-2)
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(files), from_files)


def test_missing_weights_are_logged_and_the_model_takes_features(features, tmp_path, caplog):
    (tmp_path / "net.safetensors").unlink()
    with caplog.at_level(logging.WARNING):
        model = fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=BRIEF,
                    estimate=False)  # fmt: skip
    assert "the model will take features, not images" in caplog.text
    assert model.about.architecture.encoder is None


@pytest.mark.slow
def test_one_exported_program_goes_from_images_to_probabilities(features, two_colours, tmp_path):
    model = fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=BRIEF,
                estimate=False)  # fmt: skip
    program = torch.export.load(export(model, "torch", tmp_path / "model.pt2")).module()
    x = torch.randint(0, 256, (3, *model.about.inputs.shape)).float()
    prepared = (x - model.about.inputs.per_channel(model.about.inputs.mean)) / (
        model.about.inputs.per_channel(model.about.inputs.std)
    )
    with torch.no_grad():
        torch.testing.assert_close(program(x)[0], model.module(prepared), atol=1e-3, rtol=1e-3)


def test_the_description_names_the_frozen_network(features, tmp_path):
    fit(features, "erm", tmp_path / "model", store=tmp_path / "runs", settings=BRIEF,
        estimate=False)  # fmt: skip
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    encoder = content["architecture"]["encoder"]
    provenance = json.loads(str(np.load(features)["provenance"]))
    assert encoder["backbone"] == f"timm:{NET}"
    assert encoder["weights"] == provenance["digest"]
    assert encoder["features"] == np.load(features)["X"].shape[1]


def test_the_estimate_of_a_model_that_adapts_is_that_of_adapted_models(tmp_path):
    options = {"store": tmp_path / "runs", "settings": {"steps": 3, "every": 3}}
    fit("spirals", "erm", tmp_path / "model", adapt="t3a", **options)
    expected = {}
    for adaptation in ("", "t3a"):
        records = [
            r for r in Store(tmp_path / "runs") if r.run.adaptation == adaptation and r.tests
        ]
        accuracies = [value for r in records for value in unseen_accuracies(r).values()]
        expected[adaptation] = sum(accuracies) / len(accuracies)
    assert expected[""] != expected["t3a"]
    estimate = json.loads((tmp_path / "model" / "model.json").read_text())["estimate"]
    assert estimate["accuracy"] == pytest.approx(expected["t3a"])


def test_an_ensemble_is_fitted_calibrated_exported_and_the_best_recipe(tmp_path):
    store, quick = tmp_path / "runs", {"steps": 30, "every": 30}
    words = {"trials": 1, "ensemble": 3, "settings": quick, "store": store, "workers": 1}
    bench("spirals", "erm", **words)
    model = fit("spirals", "erm", tmp_path / "three", ensemble=3, settings=quick, store=store)
    about = model.about
    assert about.architecture.members == len(about.run.members) == 3
    assert about.name == "spirals-erm-x3"
    assert "--ensemble 3" in about.command
    assert "3 networks" in (tmp_path / "three/README.md").read_text()
    ensembles = [each for each in Store(store) if each.run.members and each.unseen]
    accuracies = [unseen_accuracies(each) for each in ensembles]
    assert about.estimate.domains == {k: v for each in accuracies for k, v in each.items()}
    assert about.calibration.temperature != 1.0
    members = [reopen(store / key) for key in about.run.members]
    samples = members[0].domains["turn0"]
    mean = sum(member.logits(samples).softmax(1) for member in members) / 3
    calibrated = (mean.log() / about.calibration.temperature).softmax(1)
    x = samples.x.in_memory.numpy()
    np.testing.assert_allclose(model.predict_proba(x), calibrated, atol=1e-5)
    assert all(each.distance is not None for each in model.predictions(x[:3]))
    assert export(tmp_path / "three").name == "three.onnx"
    best = fit("spirals", "best", tmp_path / "best", store=store)
    assert best.about.estimate.recipes == 2


@pytest.mark.parametrize("words", [{"ensemble": 1}, {"ensemble": 3, "adapt": "t3a"}])
def test_an_ensemble_that_cannot_be_is_refused_before_training(tmp_path, words):
    with pytest.raises(SpecError, match="ensemble"):
        fit("spirals", "erm", tmp_path / "model", store=tmp_path / "runs", **words)
    assert not (tmp_path / "runs").exists()
