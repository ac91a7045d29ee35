"""The best recipe of a store is estimated by choosing again without each domain."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from afield.data.domains import DomainSet
from afield.deployment.estimates import estimate_accuracy
from afield.deployment.recipes import choose_recipe, complete_recipes, estimate_choice
from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import Checkpoint, Scores
from tests.stores import DOMAINS, benchmark_records, noisy, score

THINGS = DomainSet("things", DOMAINS, ("a", "b"), dict)


def recipes_of(table, **fields):
    """Recipes by method, each with rows of accuracies (trials) over domains."""
    records = [
        record
        for method, rows in table.items()
        for record in benchmark_records(rows, method=method, **fields)
    ]
    return complete_recipes(records, THINGS)


def twin(method, accuracies, *, trial=0):
    """A run that leaves out two domains, with its accuracies on them."""
    scores = {
        name: Scores(main=score(accuracies[name]))
        if name in accuracies
        else Scores(probe=score(0.9))
        for name in DOMAINS
    }
    sources = tuple(name for name in DOMAINS if name not in accuracies)
    run = Run("things", method, sources, trial=trial, steps=20, every=10)
    return Record(run, (Checkpoint(20, scores, {}),), 1.0, {}, "cpu, 1 thread(s)")


def test_each_domain_is_predicted_by_the_choice_without_it():
    # Without art the others choose b, without photo a, without sketch a.
    recipes = recipes_of({"a": [(0.9, 0.6, 0.6)], "b": [(0.4, 0.7, 0.65)]})
    result = estimate_choice(recipes, DOMAINS)
    assert result.domains == pytest.approx({"art": 0.4, "photo": 0.6, "sketch": 0.6})
    assert result.accuracy == pytest.approx(1.6 / 3)
    assert result.worst == pytest.approx(0.4)
    assert result.recipes == 2
    assert result.selection.accuracy == pytest.approx(2.1 / 3)
    assert result.selection.cost == pytest.approx(0.5 / 3)
    assert result.selection.same == ("photo", "sketch")
    chosen = {name: keys[0].partition("-")[0] for name, keys in result.selection.runs.items()}
    assert chosen == {"art": "b", "photo": "a", "sketch": "a"}
    assert not result.selection.twins


def test_trials_are_averaged_before_choosing_and_give_the_standard_error():
    # Within trial 0, b would be chosen without photo; over both trials it is a.
    recipes = recipes_of(
        {"a": [(0.50, 0.6, 0.50), (0.90, 0.8, 0.90)], "b": [(0.60, 0.5, 0.60), (0.60, 0.5, 0.60)]}
    )
    result = estimate_choice(recipes, DOMAINS)
    means = [(0.50 + 0.6 + 0.50) / 3, (0.90 + 0.8 + 0.90) / 3]
    assert result.accuracy == pytest.approx(np.mean(means))
    assert result.stderr == pytest.approx(np.std(means, ddof=1) / np.sqrt(2))
    assert result.worst == pytest.approx((0.5 + 0.8) / 2)
    assert result.trials == 2
    assert result.selection.cost == pytest.approx(0.0)


def test_twins_choose_without_ever_seeing_the_domain():
    singles = {"a": [(0.9, 0.9, 0.9)], "b": [(0.5, 0.5, 0.5)]}
    records = [r for m, rows in singles.items() for r in benchmark_records(rows, method=m)]
    # Among runs that were not trained on sketch, b is better on art and photo.
    for method, without_sketch in (("a", 0.3), ("b", 0.6)):
        for pair in combinations(DOMAINS, 2):
            values = dict.fromkeys(pair, 0.9 if method == "a" else 0.5)
            if "sketch" in pair:
                values |= {name: without_sketch for name in pair if name != "sketch"}
            records.append(twin(method, values))
    result = estimate_choice(complete_recipes(records, THINGS), DOMAINS)
    assert result.selection.twins
    assert result.domains == pytest.approx({"art": 0.9, "photo": 0.9, "sketch": 0.5})
    # One missing twin, and the runs that leave out one domain choose for all.
    fewer = estimate_choice(complete_recipes(records[:-1], THINGS), DOMAINS)
    assert not fewer.selection.twins
    assert fewer.domains["sketch"] == pytest.approx(0.9)


def test_nothing_of_a_domain_reaches_the_choice_without_it():
    generator = np.random.default_rng(3)
    for seed in range(20):
        table = {f"m{i}": noisy(0.7, 2, 3, seed=100 * seed + i) for i in range(6)}
        before = estimate_choice(recipes_of(table), DOMAINS)
        for place, name in enumerate(DOMAINS):
            other = {method: rows.copy() for method, rows in table.items()}
            for rows in other.values():
                rows[:, place] = generator.random(len(rows))
            after = estimate_choice(recipes_of(other), DOMAINS)
            assert after.selection.runs[name] == before.selection.runs[name]


def test_the_best_of_equal_recipes_promises_too_much_and_the_estimate_does_not():
    best, nested = [], []
    for seed in range(300):
        table = {f"m{i}": noisy(0.7, 2, 3, seed=1000 * seed + i) for i in range(8)}
        result = estimate_choice(recipes_of(table), DOMAINS)
        assert result.selection.cost > -1e-9
        best.append(result.selection.accuracy)
        nested.append(result.accuracy)
    error = np.std(nested) / np.sqrt(len(nested))
    assert np.mean(best) > 0.7 + 0.008
    assert np.mean(nested) == pytest.approx(0.7, abs=3 * error)


def test_recipes_of_different_trials_have_no_standard_error():
    records = [
        *benchmark_records([(0.9, 0.5, 0.5), (0.7, 0.5, 0.5)], method="a"),
        *benchmark_records([(0.1, 0.6, 0.6)], method="b"),
    ]
    result = estimate_choice(complete_recipes(records, THINGS), DOMAINS)
    assert result.domains == pytest.approx({"art": 0.1, "photo": 0.5, "sketch": 0.5})
    assert result.accuracy == pytest.approx(1.1 / 3)
    assert result.worst == pytest.approx(0.1)
    assert result.stderr is None
    assert result.trials == 1


def test_a_single_recipe_was_not_chosen():
    rows = noisy(0.7, 2, 3)
    result = estimate_choice(recipes_of({"a": rows}), DOMAINS)
    assert result == estimate_accuracy(benchmark_records(rows, method="a"))
    assert result.selection is None
    assert result.recipes == 1


def test_of_two_domains_each_is_predicted_by_the_choice_of_the_other():
    domains = DOMAINS[:2]
    dataset = DomainSet("things", domains, ("a", "b"), dict)
    records = [
        *benchmark_records([(0.9, 0.5)], method="a", domains=domains),
        *benchmark_records([(0.6, 0.7)], method="b", domains=domains),
    ]
    result = estimate_choice(complete_recipes(records, dataset), domains)
    assert result.domains == pytest.approx({"art": 0.6, "photo": 0.5})


def test_trials_with_a_missing_domain_and_other_data_do_not_count():
    records = benchmark_records([(0.9, 0.8, 0.7), (0.1, 0.1, 0.1)], method="a")
    (recipe,) = complete_recipes(records[:-1], THINGS)
    assert recipe.accuracy("art") == pytest.approx(0.9)
    assert complete_recipes(records[:2], THINGS) == []
    assert complete_recipes(benchmark_records([(0.9,) * 3], dataset="else"), THINGS) == []
    assert complete_recipes(benchmark_records([(0.9,) * 3], data="print"), THINGS) == []


def test_experts_of_a_merge_are_no_recipes():
    experts = benchmark_records([(0.9,) * 3], role="expert", base="a" * 16)
    assert complete_recipes(experts, THINGS) == []
    assert len(complete_recipes(benchmark_records([(0.9,) * 3]), THINGS)) == 1


def test_of_equal_recipes_the_first_is_chosen():
    recipes = recipes_of({"a": [(0.5, 0.5, 0.5)], "b": [(0.5, 0.5, 0.5)]})
    assert choose_recipe(recipes, DOMAINS) is recipes[0]


def test_runs_with_targets_by_name_are_no_twins_and_no_recipes():
    singles = {"a": [(0.9, 0.9, 0.9)], "b": [(0.5, 0.5, 0.5)]}
    records = [r for m, rows in singles.items() for r in benchmark_records(rows, method=m)]
    before = estimate_choice(complete_recipes(records, THINGS), DOMAINS)
    for method, accuracy in (("a", 0.1), ("b", 0.8)):
        for pair in combinations(DOMAINS, 2):
            for tested in (pair, pair[:1]):
                named = twin(method, dict.fromkeys(pair, accuracy))
                records.append(replace(named, run=replace(named.run, tested=tested)))
    after = estimate_choice(complete_recipes(records, THINGS), DOMAINS)
    assert after == before
    assert not after.selection.twins
    assert complete_recipes(records[6:], THINGS) == []
