"""Several networks in one benchmark: one table, one choice, and what a row says of its network."""

import math

import pytest
import torch

from afield.deployment.fitting import FitRequest, plan_fit
from afield.errors import SpecError
from afield.networks.backbone import network
from afield.networks.cost import network_cost
from afield.networks.facts import networks_of_level
from afield.reporting.results import group_records
from afield.reporting.table import group_by_network, tabulate
from afield.runs.row import Row
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark, read_benchmark
from afield.studies.benchmarking import run_benchmark
from afield.studies.commands import benchmark_command
from afield.studies.planning import plan_run

TWO = ("timm:test_resnet", "timm:test_vit")
SETTINGS = {"weights": "none", "size": 32, "steps": 4, "every": 2}


def frozen(data, backbone=None, methods="erm"):
    settings = {**SETTINGS, "backbone": backbone or ",".join(TWO), "tune": "frozen"}
    return make_benchmark(data, methods, trials=1, settings=settings)


@pytest.fixture(scope="module")
def store(two_colours, tmp_path_factory):
    """Two frozen networks, and one of them fine-tuned."""
    place = tmp_path_factory.mktemp("networks") / "runs"
    run_benchmark(frozen(two_colours, methods="erm,vrex"), store=place)
    tuned = {**SETTINGS, "backbone": TWO[0]}
    run_benchmark(make_benchmark(two_colours, "erm", trials=1, settings=tuned), store=place)
    return Store(place)


def test_networks_are_rows_of_one_table(store):
    (results,) = group_records(store)
    assert results.name == "colours"
    assert set(results.methods) == {
        *(f"{method} backbone={name} tune=frozen" for method in ("erm", "vrex") for name in TWO),
        f"erm backbone={TWO[0]}",
    }
    assert {row.network for row in results.rows.values()} == set(TWO)
    frame = tabulate(store)
    assert set(frame["network"]) == set(TWO)
    assert set(frame["dataset"]) == {"colours"}


def test_records_say_what_the_network_and_the_model_on_its_features_cost(store):
    sample = torch.zeros(1, 3, 32, 32)
    alone = {name: network_cost(network(name, (3, 32, 32), 2).features, sample) for name in TWO}
    for record in store:
        cost = alone[record.run.network]
        # Each weight of the linear layers behind the network is used once; biases do not multiply.
        added = record.macs - cost.macs
        assert 0 < added < record.parameters - cost.parameters
        assert record.parameters - cost.parameters - added < 0.1 * added + 3


def test_every_network_can_have_a_table_of_its_own(store):
    frame = tabulate(store)
    grouped = group_by_network(frame)
    assert set(grouped["dataset"]) == {f"colours with {name}" for name in TWO}
    of_second = grouped[grouped["dataset"] == f"colours with {TWO[1]}"]
    assert set(of_second["method"]) == {"erm tune=frozen", "vrex tune=frozen"}
    assert sorted(grouped["accuracy"].dropna()) == sorted(frame["accuracy"].dropna())


@pytest.mark.slow
@pytest.mark.parametrize("facts", networks_of_level("fast"), ids=lambda facts: facts.name)
def test_the_default_network_takes_two_steps_from_random_weights(facts, two_colours, tmp_path):
    settings = {"backbone": facts.name, "weights": "none", "size": facts.size}
    settings |= {"steps": 2, "every": 1, "batch": 1, "limit": 4}
    run = plan_run(two_colours, "erm", target="east", settings=settings)
    record = execute(run, Store(tmp_path))
    assert record.steps == (1, 2)
    assert math.isfinite(record.checkpoints[-1].logs["loss"])
    # The head is new, and a few numbers of the register are rounded.
    assert record.parameters / 1e6 == pytest.approx(facts.parameters, abs=0.06)
    assert record.macs / 1e9 == pytest.approx(facts.gmacs, rel=0.03)


def test_a_list_a_text_and_toml_ask_for_the_same_runs(two_colours, tmp_path):
    asked = [run.key for run in frozen(two_colours).runs()]
    assert [run.key for run in frozen(two_colours, list(TWO)).runs()] == asked
    file = tmp_path / "bench.toml"
    file.write_text(
        f'dataset = "{two_colours}"\nmethods = "erm"\ntrials = 1\nbackbone = {list(TWO)}\n'
        'weights = "none"\nsize = 32\nsteps = 4\nevery = 2\ntune = "frozen"\n'
    )
    assert [run.key for run in read_benchmark(file).runs()] == asked
    assert f"backbone={','.join(TWO)}" in benchmark_command(frozen(two_colours, list(TWO)))


def test_each_network_alone_has_the_runs_that_it_has_among_others(two_colours):
    together = [run.key for run in frozen(two_colours).runs()]
    alone = [run.key for name in TWO for run in frozen(two_colours, name).runs()]
    assert alone == together


def test_one_network_needs_no_name_in_its_rows(two_colours):
    (run, *_) = frozen(two_colours, TWO[0]).runs()
    assert (run.encoder, run.network, run.images) == (TWO[0], TWO[0], run.images)
    assert run.images
    assert run.images != run.data
    assert Row.of(run).without({"backbone", "tune", "size", "weights", "steps", "every"}).label == (
        "erm"
    )


def test_features_of_another_version_are_a_row_of_their_own(store):
    from dataclasses import replace

    records = [record for record in store if record.run.encoder == TWO[0]]
    other = [replace(each, run=replace(each.run, data="f" * 16)) for each in records]
    (results,) = group_records([*records, *other])
    assert len(results.methods) == 4
    assert sum("features=ffffff" in label for label in results.methods) == 2


def test_fit_best_chooses_among_networks_and_pays_for_the_choice(store, two_colours):
    plan = plan_fit(FitRequest(str(two_colours), "best"), store)
    assert plan.estimate.recipes == 5
    assert plan.estimate.selection.cost >= 0
    frame = tabulate(store, rules=["sources"])
    means = frame[frame["domain"] == "mean"].set_index("method")["accuracy"]
    assert plan.estimate.selection.accuracy == pytest.approx(means.max())


def test_a_command_that_needs_one_network_refuses_several(store, two_colours):
    request = FitRequest(str(two_colours), "erm", settings={"backbone": ",".join(TWO)})
    with pytest.raises(SpecError, match="stands for timm:test_resnet and timm:test_vit; give one"):
        plan_fit(request, store)
