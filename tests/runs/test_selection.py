"""The rules on tiny hand-made records, where the right pick is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import afield
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError, UnknownNameError
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.selection import (
    DEFAULT_RULES,
    RULES,
    Division,
    default_rules,
    resolve_rules,
    selection_value,
    source_accuracy,
)
from afield.runs.store import Store
from afield.studies.planning import plan_run
from afield.training.metrics import METRICS
from afield.training.scores import Checkpoint, Score, Scores
from tests.protocols import hold_out

by_sources, by_left_out_source, by_validation, by_target = (rule.pick for rule in RULES.values())
DOMAINS = ("a", "b", "c")


def score(accuracy):
    return None if accuracy is None else Score(accuracy, accuracy, 1 - accuracy, 10)


def record(unseen, checkpoints, *, trial=0, draw=0):
    """Checkpoints as ``{domain: (main, probe)}``, one mapping a step."""
    sources = tuple(domain for domain in DOMAINS if domain not in unseen)
    run = Run("toy", "erm", sources, trial=trial, draw=draw, lr=0.1 * (draw + 1))
    result = tuple(
        Checkpoint(
            10 * (i + 1),
            {d: Scores(score(parts[d][0]), score(parts[d][1])) for d in DOMAINS if d in parts},
            {},
        )
        for i, parts in enumerate(checkpoints)
    )
    return Record(run, result, 1.0, {}, "cpu")


def test_sources_picks_the_best_mean_on_the_sources_probe_parts():
    records = [
        record("c", [{"a": (None, 0.6), "b": (None, 0.7), "c": (0.9, None)}]),
        record("c", [{"a": (None, 0.9), "b": (None, 0.6), "c": (0.3, None)}], draw=1),
    ]
    pick = by_sources(records, "c")
    assert (pick.run.draw, pick.step, pick.value, pick.accuracy) == (1, 10, 0.75, 0.3)


def test_sources_looks_at_every_checkpoint_and_takes_the_first_of_equals():
    checkpoints = [
        {"a": (None, 0.5), "b": (None, 0.5), "c": (0.1, None)},
        {"a": (None, 0.8), "b": (None, 0.8), "c": (0.2, None)},
        {"a": (None, 0.8), "b": (None, 0.8), "c": (0.3, None)},
    ]
    assert by_sources([record("c", checkpoints)], "c").accuracy == 0.2


@pytest.mark.parametrize("rule", [by_sources, by_target])
def test_of_equal_draws_the_first_is_taken_in_whatever_order_the_records_come(rule):
    records = [
        record("c", [{"a": (None, 0.8), "b": (None, 0.8), "c": (main, 0.5)}], draw=draw)
        for draw, main in ((1, 0.2), (0, 0.1), (2, 0.3))
    ]
    assert rule(records, "c").accuracy == rule(records[::-1], "c").accuracy == 0.1


def test_sources_does_not_look_at_the_target():
    def records(target_probe):
        steps = [
            {"a": (None, 0.8), "b": (None, 0.8), "c": (0.4, target_probe)},
            {"a": (None, 0.7), "b": (None, 0.7), "c": (0.9, 1.0)},
        ]
        return [record("c", steps)]

    assert by_sources(records(0.0), "c") == by_sources(records(1.0), "c")
    assert by_sources(records(0.0), "c").accuracy == 0.4


def test_sources_ignores_records_in_which_more_is_unseen():
    twin = record("bc", [{"a": (None, 1.0), "b": (0.9, None), "c": (0.9, None)}])
    assert by_sources([twin], "c") is None


def test_no_record_no_pick():
    assert all(rule.pick([], "c") is None for rule in RULES.values())


def test_a_best_checkpoint_at_which_the_target_was_not_read_is_no_pick():
    steps = [
        {"a": (None, 0.9), "b": (None, 0.9), "c": (None, None)},
        {"a": (None, 0.5), "b": (None, 0.5), "c": (0.7, None)},
    ]
    assert by_sources([record("c", steps)], "c") is None


def test_target_picks_on_its_probe_part_among_last_checkpoints_only():
    tempting = {"a": (None, 0.5), "b": (None, 0.5), "c": (0.99, 0.99)}
    records = [
        record("c", [tempting, {"a": (None, 0.5), "b": (None, 0.5), "c": (0.4, 0.6)}]),
        record("c", [tempting, {"a": (None, 0.5), "b": (None, 0.5), "c": (0.3, 0.7)}], draw=1),
    ]
    pick = by_target(records, "c")
    assert (pick.run.draw, pick.step, pick.value, pick.accuracy) == (1, 20, 0.7, 0.3)


def left_out_records(*, draw=0, base=(0.1, 0.2), without_a=(0.5, 0.9), without_b=(0.5, 0.7)):
    """A record without c, and its twins without c and a, and without c and b; two steps."""
    return [
        record(
            "c",
            [{"a": (None, 0.5), "b": (None, 0.5), "c": (value, None)} for value in base],
            draw=draw,
        ),
        record(
            "ac",
            [{"a": (value, None), "b": (None, 0.5), "c": (0.0, None)} for value in without_a],
            draw=draw,
        ),
        record(
            "bc",
            [{"a": (None, 0.5), "b": (value, None), "c": (0.0, None)} for value in without_b],
            draw=draw,
        ),
    ]


def test_left_out_source_picks_the_step_at_which_left_out_sources_do_best():
    pick = by_left_out_source(left_out_records(), "c")
    assert (pick.step, pick.value, pick.accuracy) == (20, pytest.approx(0.8), 0.2)


def test_left_out_source_picks_among_draws_by_their_own_twins():
    records = left_out_records() + left_out_records(
        draw=1, base=(0.6, 0.7), without_a=(1.0, 0.4), without_b=(0.9, 0.4)
    )
    pick = by_left_out_source(records, "c")
    assert (pick.run.draw, pick.step, pick.accuracy) == (1, 10, 0.6)


def test_left_out_source_needs_a_twin_for_every_source():
    assert by_left_out_source(left_out_records()[:2], "c") is None


def test_left_out_source_does_not_take_the_twins_of_another_trial():
    base, *twins = left_out_records()
    other = record("c", [{"a": (None, 0.5), "b": (None, 0.5), "c": (0.5, None)}] * 2, trial=1)
    assert by_left_out_source([other, *twins], "c") is None
    assert by_left_out_source([base, *twins], "c") is not None


def test_a_twin_serves_both_of_its_unseen_domains():
    shared = record("bc", [{"a": (None, 0.5), "b": (0.8, None), "c": (0.6, None)}])
    for target, other in (("b", "ab"), ("c", "ac")):
        source = {"b": "c", "c": "b"}[target]
        base = record(target, [dict.fromkeys(DOMAINS, (0.3, 0.5))])
        twin = record(other, [dict.fromkeys(DOMAINS, (0.4, 0.5))])
        pick = by_left_out_source([base, twin, shared], target)
        expected = (0.4 + {"b": 0.8, "c": 0.6}[source]) / 2
        assert pick.value == pytest.approx(expected)


def test_rules_are_named_in_their_own_order_and_all_stands_for_all():
    assert resolve_rules(["target", "sources"]) == ("sources", "target")
    assert resolve_rules(["all"]) == tuple(RULES)
    with pytest.raises(UnknownNameError, match="did you mean 'sources'"):
        resolve_rules(["source"])
    with pytest.raises(SpecError, match="no rule is given"):
        resolve_rules([])


def test_rules_say_what_they_fit():
    assert DEFAULT_RULES == ("sources", "target")
    for division, default, every in (
        (Division(), DEFAULT_RULES, ("sources", "left-out-source", "target")),
        (Division(5, 2), ("validation", "target"), ("validation", "target")),
        (Division(5), ("sources", "target"), ("sources", "target")),
    ):
        assert default_rules(division) == default
        assert resolve_rules(["all"], division) == every
    with pytest.raises(SpecError, match=r"the rule validation cannot .* use --rules sources,"):
        resolve_rules(["sources", "validation"], Division())
    assert [name for name, rule in RULES.items() if rule.is_oracle] == ["target"]


MANY = tuple("abcdef")


def held_out(checkpoints, *, draw=0, tested=("e", "f"), sizes=(10, 10)):
    """Trained on a and b, validated on c and d, tested on e and f; parts have these sizes."""
    run = Run("toy", "erm", ("a", "b"), draw=draw, lr=0.1 * (draw + 1), tested=tested)

    def scores(main, probe):
        result = [
            None if accuracy is None else Score(accuracy, accuracy, 1.0, size)
            for accuracy, size in zip((main, probe), sizes, strict=True)
        ]
        return Scores(*result)

    result = tuple(
        Checkpoint(10 * (i + 1), {d: scores(*parts[d]) for d in MANY if d in parts}, {})
        for i, parts in enumerate(checkpoints)
    )
    return Record(run, result, 1.0, {}, "cpu")


def step(validated, *, sources=0.5, tests=((None, None), (None, None))):
    """One checkpoint: accuracies on c and d, on the sources, and on parts of e and f."""
    c, d = validated
    return {
        "a": (None, sources),
        "b": (None, sources),
        "c": (c, c),
        "d": (d, d),
        "e": tests[0],
        "f": tests[1],
    }


def test_validation_picks_the_best_mean_on_the_validation_domains():
    records = [
        held_out([step((0.9, 0.1)), step((0.6, 0.6), tests=((0.3, None), (0.7, None)))]),
        held_out([step((0.2, 0.2)), step((0.5, 0.5))], draw=1),
    ]
    for target, accuracy in (("e", 0.3), ("f", 0.7)):
        pick = by_validation(records, target)
        assert (pick.run.draw, pick.step, pick.accuracy) == (0, 20, accuracy)
        assert pick.value == pytest.approx(0.6)


def test_validation_looks_at_neither_sources_nor_test_domains():
    def records(others):
        tempting = step((0.5, 0.5), sources=others, tests=((others, others), (others, others)))
        return [held_out([tempting, step((0.6, 0.6), tests=((0.1, 0.1), (0.2, 0.2)))])]

    assert by_validation(records(0.0), "e") == by_validation(records(1.0), "e")
    assert by_validation(records(1.0), "e").accuracy == 0.1


def test_validation_takes_the_first_of_equals():
    steps = [step((0.6, 0.6), tests=((value, None), (0.0, None))) for value in (0.1, 0.2)]
    assert by_validation([held_out(steps)], "e").accuracy == 0.1


def test_a_validation_domain_counts_as_a_whole_and_as_much_as_any_other():
    parts = {"a": (None, 0.5), "b": (None, 0.5), "c": (0.5, 1.0), "d": (0.2, 0.2)}
    record = held_out([{**parts, "e": (0.4, None), "f": (0.4, None)}], sizes=(30, 10))
    on_c = (30 * 0.5 + 10 * 1.0) / 40
    assert by_validation([record], "e").value == pytest.approx((on_c + 0.2) / 2)


def test_validation_has_no_pick_where_nothing_validates():
    left_out = record("c", [{"a": (None, 0.6), "b": (None, 0.7), "c": (0.9, 0.9)}])
    assert by_validation([left_out], "c") is None
    whole = step((0.5, 0.5), tests=((0.4, 0.4), (0.4, 0.4)))
    assert by_validation([held_out([whole], tested=("c", "d", "e", "f"))], "e") is None


def test_sources_picks_nothing_where_domains_validate():
    whole = step((0.5, 0.5), tests=((0.4, 0.4), (0.6, 0.6)))
    assert by_sources([held_out([whole])], "e") is None


@pytest.mark.parametrize("rule", [by_validation, by_target])
def test_only_the_domains_that_are_tested_have_picks(rule):
    records = [held_out([step((0.5, 0.5), tests=((0.4, 0.4), (0.6, 0.6)))])]
    assert rule(records, "e").accuracy == 0.4
    assert rule(records, "f").accuracy == 0.6
    assert rule(records, "a") is rule(records, "c") is None


def test_target_picks_on_the_mean_of_all_test_domains():
    records = [
        held_out([step((0.5, 0.5), tests=((0.1, 0.9), (0.2, 0.1)))]),
        held_out([step((0.5, 0.5), tests=((0.3, 0.6), (0.4, 0.6)))], draw=1),
    ]
    for target, accuracy in (("e", 0.3), ("f", 0.4)):
        pick = by_target(records, target)
        assert (pick.run.draw, pick.accuracy) == (1, accuracy)
        assert pick.value == pytest.approx(0.6)


def test_target_has_no_pick_unless_all_test_domains_were_read():
    assert by_target([held_out([step((0.5, 0.5), tests=((0.1, 0.9), (0.2, None)))])], "e") is None


def test_what_is_deployed_is_chosen_by_validation_domains_or_else_by_the_sources():
    whole = step((0.2, 0.4), sources=0.9, tests=((1.0, 1.0), (1.0, 1.0)))
    with_validation = held_out([whole])
    (checkpoint,) = with_validation.checkpoints
    assert selection_value(checkpoint, with_validation.run) == pytest.approx(0.3)
    without = held_out([whole], tested=("c", "d", "e", "f")).run
    assert selection_value(checkpoint, without) == pytest.approx(0.9)
    left_out = record("c", [{"a": (None, 0.6), "b": (None, 0.7), "c": (1.0, 1.0)}])
    assert selection_value(left_out.checkpoints[0], left_out.run) == pytest.approx(0.65)


def test_a_sources_probe_part_that_was_not_read_is_an_error():
    checkpoint = Checkpoint(30, {"a": Scores(probe=score(0.5)), "b": Scores(main=score(0.5))}, {})
    with pytest.raises(DataError, match="step 30: a source's validation split was not evaluated"):
        source_accuracy(checkpoint, ("a", "b"))


def ended(result, *, after):
    """The record of a training in which an average chose: at its last step, after so many steps."""
    *before, last = result.checkpoints
    checkpoints = (*(replace(each, deployed=False) for each in before), replace(last, step=after))
    return replace(result, checkpoints=checkpoints)


def test_the_candidates_are_the_checkpoints_that_would_be_deployed():
    plain = record("c", [{"a": (None, 0.9), "b": (None, 0.9), "c": (0.9, 0.9)}] * 3)
    assert plain.candidates == plain.checkpoints
    assert ended(plain, after=25).candidates == (replace(plain.checkpoints[-1], step=25),)


def test_sources_picks_no_checkpoint_that_would_not_be_deployed():
    tempting = {"a": (None, 0.9), "b": (None, 0.9), "c": (0.9, None)}
    last = {"a": (None, 0.5), "b": (None, 0.6), "c": (0.4, None)}
    plain = record("c", [tempting, tempting, last])
    assert by_sources([plain], "c").step == 10
    pick = by_sources([ended(plain, after=30)], "c")
    assert (pick.step, pick.value, pick.accuracy) == (30, pytest.approx(0.55), 0.4)
    other = ended(record("c", [tempting, {**last, "a": (None, 0.55)}], draw=1), after=17)
    pick = by_sources([ended(plain, after=30), other], "c")
    assert (pick.run.draw, pick.step, pick.value) == (1, 17, pytest.approx(0.575))


def test_validation_picks_no_checkpoint_that_would_not_be_deployed():
    tests = ((0.3, None), (0.7, None))
    steps = [step((0.9, 0.9), tests=tests), step((0.5, 0.6), tests=tests)]
    pick = by_validation([ended(held_out(steps), after=14)], "f")
    assert (pick.step, pick.value, pick.accuracy) == (14, pytest.approx(0.55), 0.7)


@pytest.mark.parametrize("ends", [(20, 20, 20), (20, 14, 18), (11, 20, 20)])
def test_left_out_source_compares_what_was_deployed_wherever_each_twin_ended(ends):
    # At the first checkpoint all of them would look better.
    result = left_out_records(base=(0.9, 0.2), without_a=(0.99, 0.7), without_b=(0.99, 0.5))
    records = [ended(each, after=end) for each, end in zip(result, ends, strict=True)]
    pick = by_left_out_source(records, "c")
    assert (pick.step, pick.value, pick.accuracy) == (ends[0], pytest.approx(0.6), 0.2)


def test_left_out_source_picks_among_draws_that_ended_at_different_steps():
    first = left_out_records(base=(0.9, 0.2), without_a=(0.99, 0.7), without_b=(0.99, 0.5))
    second = left_out_records(draw=1, base=(0.1, 0.3), without_a=(0.0, 0.7), without_b=(0.0, 0.6))
    ends = (20, 14, 18, 16, 12, 20)
    records = [ended(each, after=end) for each, end in zip([*first, *second], ends, strict=True)]
    pick = by_left_out_source(records, "c")
    assert (pick.run.draw, pick.step, pick.accuracy) == (1, 16, 0.3)


def test_left_out_source_still_needs_every_twin():
    result = [ended(each, after=20) for each in left_out_records()]
    assert by_left_out_source(result[:2], "c") is None


def test_where_every_checkpoint_may_be_picked_twins_are_read_at_the_same_step():
    result = left_out_records(base=(0.1, 0.2), without_a=(0.8, 0.4), without_b=(0.6, 0.2))
    assert by_left_out_source(result, "c").step == 10
    later = tuple(replace(each, step=each.step + 1) for each in result[2].checkpoints)
    assert by_left_out_source([*result[:2], replace(result[2], checkpoints=later)], "c") is None


def test_the_oracle_reads_the_last_checkpoint_which_is_deployed():
    tempting = {"a": (None, 0.5), "b": (None, 0.5), "c": (0.99, 0.99)}
    last = {"a": (None, 0.5), "b": (None, 0.5), "c": (0.4, 0.6)}
    pick = by_target([ended(record("c", [tempting, last]), after=13)], "c")
    assert (pick.step, pick.accuracy) == (13, 0.4)


def test_unused_domains_neither_validate_nor_are_tested():
    # Were c one of those that validate, the first checkpoint would be picked.
    steps = [
        step((1.0, 0.1), tests=((0.1, 0.1), (0.1, 0.1))),
        step((0.0, 0.6), tests=((0.3, 0.5), (0.7, 0.9))),
    ]
    result = held_out(steps)
    result = replace(result, run=replace(result.run, unused=("c",)))
    assert [selection_value(each, result.run) for each in result.checkpoints] == pytest.approx(
        [0.1, 0.6]
    )
    pick = by_validation([result], "e")
    assert (pick.step, pick.accuracy) == (20, 0.3)
    assert by_target([result], "e").value == pytest.approx(0.7)
    assert all(rule.pick([result], "c") is None for rule in RULES.values())


def test_where_all_others_are_unused_the_sources_pick():
    unread = [{d: parts for d, parts in step((None, None)).items() if d not in "cd"}]
    unread[0] |= {"e": (0.4, None), "f": (0.6, None)}
    result = held_out(unread)
    result = replace(result, run=replace(result.run, unused=("c", "d")))
    assert result.tests == result.unseen == ("e", "f")
    assert by_validation([result], "e") is None
    assert by_sources([result], "f").accuracy == 0.6
    assert selection_value(result.checkpoints[0], result.run) == 0.5


SETTINGS = {"steps": 30, "every": 3}


def score_with_metrics(accuracy: float, **more) -> Score:
    metrics = {"macro_f1": more.get("f1", 0.5), "auroc": more.get("auroc", 0.5)}
    return Score(accuracy, more.get("balanced", 0.5), more.get("loss", 1.0), 10, metrics=metrics)


def checkpoint(step: int, source: Score, target: Score) -> Checkpoint:
    scores = {"a": Scores(probe=source), "t": Scores(main=target, probe=source)}
    return Checkpoint(step, scores, {})


def record_by_metric(metric: str) -> Record:
    """Accuracy is best at step 1, macro F1 at step 2, the loss at step 3."""
    done = (
        checkpoint(1, score_with_metrics(0.9, f1=0.1, loss=3.0), score_with_metrics(0.6)),
        checkpoint(2, score_with_metrics(0.8, f1=0.9, loss=2.0), score_with_metrics(0.7)),
        checkpoint(3, score_with_metrics(0.7, f1=0.8, loss=0.5), score_with_metrics(0.8)),
    )
    return Record(Run("d", "erm", ("a",), metric=metric), done, 1.0, {}, "cpu")


@pytest.mark.parametrize(("metric", "step"), [("", 1), ("macro_f1", 2), ("nll", 3)])
def test_the_metric_of_the_run_selects_the_checkpoint(metric, step):
    pick = RULES["sources"].pick([record_by_metric(metric)], "t")
    assert pick.step == step
    assert pick.accuracy == pytest.approx(0.5 + step / 10)


def test_another_metric_can_be_shown_without_selecting_by_it():
    pick = RULES["sources"].pick([record_by_metric("")], "t", "macro_f1")
    assert (pick.step, pick.accuracy, pick.in_domain) == (1, 0.5, 0.1)
    lacking = RULES["sources"].pick([record_by_metric("")], "t", "worst_class")
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
