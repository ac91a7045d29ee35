"""What a benchmark costs, said before anything is trained."""

import pytest

from afield.data.cache import cache_root
from afield.data.lookup import find_dataset
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import run_benchmark
from afield.studies.costs import benchmark_costs, estimate_costs, merge_plans
from afield.studies.planning import plan_runs
from afield.studies.recipe import Changes, read_recipe, recipe_names
from tests.runs.standins import use_standins


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
    spirals = plan_runs(make_benchmark("spirals", "erm", trials=1, epochs=1))
    costs = benchmark_costs(make_benchmark(["cifar10", "spirals"], "erm", trials=1, epochs=1))
    assert costs.missing == {"cifar10": "afield data get cifar10"}
    assert costs.images["spirals"]
    # Epochs of 128 on four fifths of 50,000 or 10,000 samples.
    assert costs.steps == 313 + 63 + sum(run.steps for run in spirals)
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


# Of each domain, or of all together.
SAMPLES = {
    "cifar10": {"train": 50_000, "test": 10_000},
    "pacs": {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    "office_home": {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
    "terra_incognita": {
        "location_100": 4879,
        "location_38": 9767,
        "location_43": 4020,
        "location_46": 6122,
    },
    "domain_net": {
        "clipart": (33_525, 14_604),
        "infograph": (36_023, 15_582),
        "painting": (50_416, 21_850),
        "quickdraw": (120_750, 51_750),
        "real": (120_906, 52_041),
        "sketch": (48_212, 20_916),
    },
    "imagenet_r": 30_000,
    "nico_pp": 88_866,
    "fed_isic": {
        "BCN": (9930, 2483),
        "HAM_vidir_molemax": (3163, 791),
        "HAM_vidir_modern": (2691, 672),
        "HAM_rosendahl": (1807, 452),
        "MSK": (655, 164),
        "HAM_vienna_dias": (351, 88),
    },
    "retina_domains": {"APTOS": 3662, "DDR": 12_522, "IDRID": 516, "MESSIDOR": 1744},
}


@pytest.mark.slow
def test_counted_runs_and_steps_are_those_of_the_plan_on_data_of_the_published_sizes(
    monkeypatch, tmp_path
):
    names = recipe_names()
    assert len(names) == 42
    recipes = [read_recipe(name, changes=Changes(trials=1)) for name in names]
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "none"))
    costs = [estimate_costs(recipe, measure=False) for recipe in recipes]
    use_standins(monkeypatch, sizes=SAMPLES)
    for recipe, cost in zip(recipes, costs, strict=True):
        plans = [plan_runs(part.benchmark, check_inputs=False) for part in recipe.parts]
        runs = merge_plans(plans)
        steps = sum(run.steps for run in runs if not run.is_derived)
        assert (cost.runs, cost.steps) == (len(runs), steps), recipe.name
        unsure = {"imagenet_r", "nico_pp"} & set(recipe.datasets)
        assert cost.exact != bool(unsure), recipe.name


def test_steps_that_are_too_large_to_measure_are_not_run(monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("a large network was trained")

    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("afield.studies.costs._step", refuse)
    monkeypatch.setattr("afield.studies.costs._seconds_per_mac", lambda: 1e-9)
    recipe = read_recipe("dmg_table4")
    costs = estimate_costs(recipe)
    # AlexNet with ten classes: 0.71 GMACs, for batches of 64.
    assert costs.seconds == pytest.approx(costs.steps * 64 * 0.710, rel=0.01)
    assert find_dataset("domain_net").missing_files()
