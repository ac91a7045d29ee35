"""What a benchmark costs, said before anything is trained."""

import pytest

from afield.data.cache import cache_root
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import run_benchmark
from afield.studies.costs import benchmark_costs
from afield.studies.planning import plan_runs


@pytest.mark.slow
def test_a_dry_run_counts_the_runs_that_the_store_lacks_and_writes_nothing(afield, tmp_path):
    words = ("bench", "spirals", "--methods", "erm", "--trials", "1", "--steps", "4")
    code, out, err = afield(*words, "--dry-run")
    assert (code, list(tmp_path.iterdir())) == (0, [])
    assert "runs: 4, 16 training steps" in out
    assert "samples: spirals" in out
    assert "nothing was trained" in err
    benchmark = make_benchmark("spirals", "erm", trials=1, steps=4)
    run_benchmark(make_benchmark("spirals", "erm", trials=1, steps=4, targets="turn0"))
    costs = benchmark_costs(benchmark)
    assert (costs.runs, costs.done, costs.steps) == (4, 1, 12)
    # A network of the same size as the one that was kept.
    kept = next((tmp_path / "runs").glob("*/model.safetensors")).stat().st_size
    assert costs.disk == pytest.approx(3 * kept, rel=0.4)


@pytest.mark.slow
def test_features_are_not_computed_and_their_runs_are_counted_as_they_will_be(hospitals):
    benchmark = make_benchmark(str(hospitals), "erm,vrex", trials=2, steps=5)
    costs = benchmark_costs(benchmark)
    assert not list(cache_root().glob("features/*/*.npz"))
    assert (costs.runs, dict(costs.images)) == (12, {"Kliniken": 48})
    assert costs.embedding["Kliniken"] > 0
    assert "features: about" in costs.describe()[2]
    planned = plan_runs(benchmark, compute_features=False)
    assert [run.key for run in planned] == [run.key for run in plan_runs(benchmark)]
    assert not benchmark_costs(benchmark).embedding


def test_missing_data_are_named_with_the_way_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "none"))
    costs = benchmark_costs(make_benchmark(["cifar10", "spirals"], "erm", trials=1, epochs=1))
    assert costs.missing == {"cifar10": "afield data get cifar10"}
    assert costs.images["spirals"]
    assert costs.steps is None
    assert "missing: cifar10: afield data get cifar10" in costs.describe()


@pytest.mark.data
def test_a_recipe_says_what_it_costs_and_trains_nothing(afield, tmp_path):
    words = ("recipe", "run", "crossgrad_table9", "--trials", "1")
    code, out, err = afield(*words, "--dry-run", "--scale", "0.001")
    assert code == 0
    assert "runs: " in out
    assert "time: " in out
    assert "nothing was trained" in err
    assert not Store(tmp_path / "recipes" / "crossgrad_table9").done()
    assert list(tmp_path.iterdir()) == []
