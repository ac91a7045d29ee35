"""Recipes have the grids and numbers of the papers, and can be changed without losing track."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import afield
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError, UnknownNameError
from afield.networks.backbone import network
from afield.runs.row import MERGE_BASELINES
from afield.studies.costs import Costs, estimate_costs, merge_plans, plan_recipe
from afield.studies.planning import plan_runs
from afield.studies.recipe import Changes, is_recipe, read_recipe, recipe_names
from tests.runs.standins import use_standins

# Runs of one trial, counted by hand as rows × columns of the paper, and the number of trials. Terms
# in brackets are domains; the second one is pairs of domains, where leave-one-domain-out validation
# trains without both. SCORE is counted for one network (see NETWORK) on the 30 domains of the
# stand-ins: rows × domains, an expert of each domain, and a base for each of eight datasets.
GRIDS = {
    "arith_table1": (15 * (4 + 4 + 4 + 4 + 6), 3),
    "arith_table2": (9 * 4, 3),
    "arith_table3": (8 * (4 + 4), 3),
    "arith_table4": (8 * (4 + 4 + 4 + 4 + 6), 3),
    "arith_table5": (3 * 1, 3),
    "seed_category_table1": (1, 1),
    "seed_category_table2": (11 * (4 + 6), 3),
    "seed_category_table3": (10 * (3 + 3) + 1 * 3, 3),
    "seed_category_table4": (6 * (3 + 3) + 6 * (4 + 6), 3),
    "seed_category_table5": (2 * 5, 1),
    "seed_category_table6": (8 * (4 + 6), 3),
    "seed_category_table7": (8 * (4 + 6), 3),
    "seed_category_table8": (5 * (6 + 15), 3),
    "dmg_table1": (3 * 5 * 6, 1),
    "dmg_table2": (3 * 3 * 4, 3),
    "dmg_table3": (3 * 5 * 6, 1),
    "dmg_table4": (1 * 2, 1),
    "dmg_table5": (6 * 6, 1),
    "dmg_table6": (3 * 3 * 4, 3),
    "crossgrad_table3": (0, 0),
    "crossgrad_table4": (4 + 4 + 3 + 4, 3),
    "crossgrad_table5": (4 * 4, 3),
    "crossgrad_table8": (4 * 4, 3),
    "crossgrad_table9": (3 * 6, 3),
    "score_table1": ((8 + 4) * 30 + 30 + 8, 1),
    "score_table2": ((1 + 4) * 30 + 30 + 8, 1),
    "score_table3": ((4 + 4) * 30 + 30 + 8, 1),
    "score_table4": (0, 0),
}
NETWORK = {f"score_table{number}": "ViT-B-32," for number in (1, 2, 3)}
SMALL = """
title = "spirals"
reproduces = "approximate"
differs = "everything"
[options]
dataset = "spirals"
trials = 2
steps = 60
every = 30
[[parts]]
methods = ["erm", "vrex"]
vrex.penalty = 3.0
[[parts.numbers]]
columns = ["turn0", "mean"]
rows.erm = [10.0, 100.0]
rows.other = [1.0, 2.0]
[[parts]]
name = "again"
methods = ["erm"]
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_every_table_of_the_five_papers_has_a_recipe():
    assert len(GRIDS) == 28
    assert {name for name in recipe_names() if "_table" in name} == set(GRIDS)


@pytest.mark.slow
def test_a_recipe_says_what_differs_and_how_long_it_trains():
    for name in recipe_names():
        recipe = read_recipe(name)
        assert recipe.differs, name
        assert "\n" not in recipe.title + recipe.differs, name
        for part in recipe.parts:
            assert {"steps", "epochs"} & set(part.benchmark.settings), f"{name}, {part.name}"
        if not recipe.parts:
            assert recipe.after, name


def targets(run, domains):
    """The domains that a run is tested on; empty for twins, bases and experts."""
    unseen = run.tested or [name for name in domains[run.dataset] if name not in run.sources]
    alone = run.tested or len(unseen) == 1
    return unseen if alone and run.role in ("", "merged") else ()


def cells(part, numbers, domains):
    """The rows and domains that the numbers of a paper need."""
    for row in set(numbers.rows) - set(part.quoted):
        for column in numbers.columns:
            named = column in domains and numbers.value != "group"
            yield from ((row, domain) for domain in ([column] if named else domains))


def check_cells(name, part, runs):
    """Every number of the paper has a run, and every row of the plan has a number."""
    domains = {n: find_dataset(n).domains for n in part.benchmark.dataset}
    planned = Counter((run.method, d) for run in runs for d in targets(run, domains))
    tested = list(dict.fromkeys(domain for _, domain in planned))
    for numbers in part.numbers:
        assert set(numbers.rows) <= {*part.rows, *part.quoted, *MERGE_BASELINES}
        if part.benchmark.hold_out:
            assert {run.method for run in runs} == set(part.rows)
            continue
        for cell in cells(part, numbers, tested):
            assert planned[cell], f"{name}, {part.name}: no run for {cell}"


@pytest.mark.slow
def test_the_plan_of_every_table_has_the_rows_columns_and_trials_of_the_paper(monkeypatch):
    use_standins(monkeypatch)
    for name, (size, trials) in GRIDS.items():
        recipe = read_recipe(name, changes=Changes(trials=1, settings={"steps": 1}))
        parts = [part for part in recipe.parts if part.name.startswith(NETWORK.get(name, ""))]
        plans = [plan_runs(part.benchmark, check_inputs=False) for part in parts]
        assert len(merge_plans(plans)) == size, name
        assert {p.benchmark.trials for p in read_recipe(name).parts} == ({trials} - {0}), name
        for part, runs in zip(parts, plans, strict=True):
            check_cells(name, part, runs)
            shown = {row for each in (*part.numbers, *recipe.numbers) for row in each.rows}
            assert not part.numbers or set(part.rows) <= shown, f"{name}, {part.name}"


@pytest.mark.slow
def test_runs_are_rows_times_columns_times_trials(monkeypatch):
    use_standins(monkeypatch)
    for name in ("arith_table5", "crossgrad_table4", "dmg_table2", "seed_category_table8"):
        size, trials = GRIDS[name]
        plans = [plan_runs(p.benchmark, check_inputs=False) for p in read_recipe(name).parts]
        assert len(merge_plans(plans)) == size * trials, name


def test_all_networks_of_score_have_the_same_grid():
    for name, networks in (("score_table1", 2), ("score_table2", 3), ("score_table3", 3)):
        parts = Counter(part.name.partition(",")[0] for part in read_recipe(name).parts)
        assert len(parts) == networks
        assert len(set(parts.values())) == 1


def test_cells_are_those_of_the_papers():
    def cell(name, row, column, *, part=0, block=0):
        numbers = read_recipe(name).parts[part].numbers[block]
        return numbers.rows[row][numbers.columns.index(column)]

    assert cell("arith_table1", "coral", "terra_incognita") == 47.7
    assert cell("arith_table4", "arith", "domain_net", part=1) == 44.9
    assert cell("arith_table5", "arith", "22") == 83.6
    assert cell("seed_category_table2", "seed_category", "sketch", block=2) == 84.3
    assert cell("seed_category_table3", "vrex", "+90%", block=1) == 72.2
    assert cell("dmg_table1", "dmg", "quickdraw", part=6) == 15.68
    assert cell("dmg_table3", "dmg", "mean", block=1) == 54.54
    assert cell("dmg_table6", "MASF", "art_painting") == 70.35
    assert cell("crossgrad_table9", "crossgrad", "75deg") == 91.4
    assert cell("score_table1", "score", "fed_isic", part=6) == 50.12
    assert cell("score_table1", "base", "retina_domains", part=7) == 24.41
    assert read_recipe("score_table3").numbers[-1].rows["score"] == (73.04,)


def test_settings_are_those_of_the_papers():
    part = read_recipe("score_table1").parts[6].benchmark
    assert part.settings["score.divide_by_domains"] is False
    assert part.settings["metric"] == "balanced_accuracy"
    assert part.settings["epochs"] == 20
    assert read_recipe("dmg_table2").parts[0].benchmark.settings["report"] == "whole"
    assert read_recipe("crossgrad_table4").parts[0].benchmark.hold_out == 0.25


def test_recipes_are_in_the_package():
    assert sorted(Path(afield.__file__).parent.glob("studies/recipes/*.toml"))


def test_scale_shortens_training_and_the_title_says_so():
    recipe = read_recipe("arith_table1", changes=Changes(scale=0.1, trials=2))
    benchmark = recipe.parts[0].benchmark
    assert (benchmark.settings["steps"], benchmark.trials) == (500, 2)
    assert recipe.full_title.endswith("[steps × 0.1, trials=2]")
    shortest = read_recipe("arith_table1", changes=Changes(scale=0.001))
    assert shortest.parts[0].benchmark.settings["steps"] == 50
    score = read_recipe("score_table1", changes=Changes(scale=0.1)).parts[0].benchmark
    assert score.settings["epochs"] == 1
    assert score.settings["lr_schedule"] == "cosine:warmup=50"
    with pytest.raises(SpecError, match="scale 0"):
        Changes(scale=0)


def test_methods_data_and_settings_can_be_replaced():
    changes = Changes(
        methods=("erm", "arith"), data={"pacs": "my/pacs"}, settings={"epochs": "2", "size": "112"}
    )
    benchmark = read_recipe("arith_table4", changes=changes).parts[1].benchmark
    assert benchmark.methods == ("erm", "arith")
    assert benchmark.dataset[:2] == ("my/pacs", "vlcs")
    assert "steps" not in benchmark.settings
    only = read_recipe("arith_table4", changes=Changes(datasets=("vlcs",)))
    assert only.datasets == ("vlcs",)
    (part,) = read_recipe("seed_category_table2", changes=Changes(rules=("target",))).parts
    assert part.benchmark.rules == ("target",)
    assert [numbers.rule for numbers in part.numbers] == ["target"]
    with pytest.raises(SpecError, match="the recipe has no rule 'target'; it has sources"):
        read_recipe("arith_table1", changes=Changes(rules=("target",)))
    with pytest.raises(SpecError, match="no method 'score'; it has arith, erm, fish, mldg"):
        read_recipe("arith_table4", changes=Changes(methods=("erm", "score")))
    for changes in (Changes(datasets=("pasc",)), Changes(data={"pasc": "my/pacs"})):
        with pytest.raises(SpecError, match="no dataset 'pasc'; it has domain_net, office_home"):
            read_recipe("arith_table4", changes=changes)


def test_names_that_no_part_has_together_are_one_error(tmp_path):
    path = tmp_path / "two.toml"
    parts = '[[parts]]\ndataset = "{}"\nmethods = ["{}"]\n'
    head = 'title = "two"\nreproduces = "exact"\n'
    path.write_text(head + parts.format("spirals", "erm") + parts.format("rotated_digits", "vrex"))
    with pytest.raises(SpecError, match="no part of the recipe has all of these: vrex, spirals"):
        read_recipe(path, changes=Changes(methods=("vrex",), datasets=("spirals",)))


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(UnknownNameError, match="arith_table1"):
        read_recipe("arith_table11")
    with pytest.raises(DataError, match="cannot be read"):
        read_recipe(tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text(SMALL.replace("[10.0, 100.0]", "[10.0]"))
    with pytest.raises(SpecError, match=r"bad: .*row 'erm' has 1 numbers for 2 columns"):
        read_recipe(path)


def test_missing_data_are_one_error_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"pacs, vlcs, .*`afield recipe show arith_table1`"):
        plan_recipe(read_recipe("arith_table1"))


def test_a_run_of_two_parts_is_done_once_for_the_rules_of_both(small):
    recipe = read_recipe(small)
    assert is_recipe(small)
    plans = plan_recipe(recipe)
    assert [len(plan) for plan in plans] == [16, 8]
    assert len(merge_plans(plans)) == 16


def test_a_cost_is_described_in_a_few_lines():
    costs = Costs(1200, 34_000, {"a": 5000, "b": None}, 5400.0, 1_234_000_000, {"b": "get it"})
    runs, samples, time, disk, missing = costs.describe()
    assert runs == "runs: 1,200, 34,000 training steps"
    assert samples == "samples: a 5,000, b (unknown)"
    assert time.startswith("time: about 1.5 hours of training on ")
    assert disk == "disk: about 1.1 GB of weights"
    assert missing == "missing: b: get it"
    for seconds, words in ((864_000, "10 days"), (863_999, "240.0 hours"), (3600, "1.0 hours"),
                           (3599, "60 minutes"), (60, "1 minute"),
                           (59, "59 seconds")):  # fmt: skip
        assert f"about {words} of" in replace(costs, seconds=seconds).describe()[2]
    empty = Costs(0, None, {}, missing={"b": "get it"})
    assert empty.describe()[:3] == [
        "runs: 0, steps by epochs",
        "samples: none",
        "time: unknown until the data are here",
    ]
    assert len(replace(empty, missing={}).describe()) == 2


def test_the_cost_is_known_before_training(small, tmp_path, monkeypatch):
    costs = estimate_costs(read_recipe(small))
    assert (costs.runs, costs.steps) == (16, 16 * 60)
    assert costs.seconds > 0
    # The measured network has ten classes.
    weights = network("small:mlp", (2,), 10).parameters()
    assert costs.disk == 16 * 4 * sum(value.numel() for value in weights)
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "empty"))
    missing = estimate_costs(read_recipe("dmg_table2"), measure=False)
    # 377 steps an epoch on four fifths of three domains each, in batches of 64: by hand.
    assert (missing.runs, missing.steps) == (108, 377 * 50 * 9 * 3)
    assert missing.images == {"pacs": 9991}
    assert any(line.startswith("missing: pacs: ") for line in missing.describe())
