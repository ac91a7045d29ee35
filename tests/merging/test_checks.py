"""What is wrong with a base, experts or statistics: errors and warnings."""

import logging

import pytest
import torch

from afield import registry
from afield.errors import MergeError
from afield.merging.job import merge
from afield.merging.scopes import expert_count
from tests.merging.families import NAMES, family, state, statistics_for

# Merges that take any number of experts.
ANY_COUNT = [name for name in NAMES if expert_count(registry.find("merges", name)) is None]


def doubts(caplog, base, experts):
    with caplog.at_level(logging.WARNING):
        merge("average", base, experts)
    result = [record.message for record in caplog.records]
    caplog.clear()
    return result


BASE, (FIRST, SECOND, THIRD) = family(3)
EYES = {"a": 9 * torch.eye(3), "b": 9 * torch.eye(3)}
UP, DOWN = ({name: w + sign for name, w in EYES.items()} for sign in (1, -1))
MIXED = {"a": UP["a"], "b": DOWN["b"]}
LINES = {"a": torch.ones(4), "b": torch.zeros(4)}
ZEROS = {name: torch.zeros_like(tensor) for name, tensor in BASE.items()}


@pytest.mark.parametrize(
    ("base", "experts", "messages"),
    [
        (BASE, [FIRST, SECOND, THIRD], []),
        (BASE, [FIRST, BASE], ["expert 2: has the same weights as base, so as an expert it adds"]),
        (
            BASE,
            [FIRST, SECOND, FIRST],
            ["expert 3: has the same weights as expert 1, so they count twice"],
        ),
        # Opposite, and alike in one tensor and opposite in the other.
        (EYES, [UP, DOWN], []),
        (EYES, [UP, MIXED], []),
        (
            EYES,
            [UP, MIXED, MIXED],
            ["expert 3: has the same weights as expert 2, so they count twice"],
        ),
        (ZEROS, [FIRST, SECOND], ["base: all its weights are 0; is it the experts' base?"]),
        (
            LINES,
            [{"a": torch.ones(4), "b": torch.ones(4)}],
            [
                "expert 1: differs from base by 1.00 times its norm, most in b (0 in the base); "
                "is that its base?"
            ],
        ),
    ],
)
def test_models_that_are_the_same_or_far_from_their_base_are_doubted(
    caplog, base, experts, messages
):
    actual = doubts(caplog, base, experts)
    assert len(actual) == len(messages)
    for message, start in zip(actual, messages, strict=True):
        assert message.startswith(start)
        assert message == start or start.endswith("it adds")


def test_experts_that_differ_in_one_piece_only_are_not_the_same(caplog, monkeypatch):
    monkeypatch.setattr("afield.merging.job.ENTRIES_PER_PIECE", 4)
    base = {"w": torch.full((12,), 9.0)}
    first, second = torch.full((12,), 9.5), torch.full((12,), 9.5)
    second[5] = 8.5
    assert doubts(caplog, base, [{"w": first}, {"w": second}]) == []


def test_a_base_that_is_not_the_experts_base_is_doubted_with_the_tensor(caplog):
    base, _ = family(0)
    far = dict(base) | {name: state(5)[name] for name in ("a.weight", "b.weight", "square.weight")}
    far["b.weight"] = 3 * far["b.weight"]
    (message,) = doubts(caplog, base, [far])
    assert message.startswith("expert 1: differs from base by ")
    assert "most in b.weight" in message
    assert message.endswith("is that its base?")


def test_integers_that_an_expert_has_changed_are_doubted_but_counters_are_not(caplog):
    base, experts = family(1)
    base["ids"] = torch.arange(3)
    base["bn.num_batches_tracked"] = torch.tensor(1)
    experts[0] |= {"ids": torch.ones(3).long(), "bn.num_batches_tracked": torch.tensor(7)}
    (message,) = doubts(caplog, base, experts)
    assert message.startswith("ids changed by the experts")


def test_extra_tensors_and_other_types_are_doubted_with_the_tensor(caplog):
    base, experts = family(1)
    experts[0]["head.weight"] = torch.ones(2, 2)
    experts[0]["a.bias"] = experts[0]["a.bias"].half()
    first, second = doubts(caplog, base, experts)
    assert first == "expert 1: head.weight not in base, so not in the result"
    assert second == "expert 1: a.bias stored as float16; the result is float32, like base"


def test_a_missing_tensor_is_an_error_but_a_missing_integer_is_not():
    base, experts = family(1)
    base["position_ids"] = torch.arange(4)
    assert torch.equal(merge("average", base, experts)["position_ids"], torch.arange(4))
    del experts[0]["a.weight"]
    with pytest.raises(MergeError, match=r"expert 1: lacks a.weight of base"):
        merge("average", base, experts)
    del experts[0]["a.bias"]
    with pytest.raises(MergeError, match=r"2 tensors \(e.g. a.weight\)"):
        merge("average", base, experts)


def test_other_names_altogether_are_an_error_that_shows_both():
    base, experts = family(1)
    renamed = {f"module.{name}": tensor for name, tensor in experts[0].items()}
    with pytest.raises(MergeError, match=r"none .*base has a.weight, this has module.a.weight"):
        merge("average", base, [renamed])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"b.weight": torch.ones(8, 11)}, r"expert 2: b.weight has the shape \[8, 11\].*\[8, 12\]"),
        (
            {"a.weight": torch.zeros(12, 8, dtype=torch.int8)},
            r"expert 2: a.weight is int8, but float32",
        ),
        ({None: torch.ones(2)}, "expert 2: the name None is not a string"),
    ],
)
def test_a_tensor_that_does_not_fit_is_an_error_with_its_name(changed, message):
    base, experts = family(2)
    with pytest.raises(MergeError, match=message):
        merge("average", base, [experts[0], experts[1] | changed])


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        *((name, torch.nan, "NaN") for name in ANY_COUNT),
        *((name, torch.inf, "an infinite number") for name in ("average", "ties", "score")),
    ],
)
def test_numbers_that_are_not_finite_are_an_error_with_source_and_tensor(name, bad, message):
    base, experts = family(2)
    broken = dict(experts[1])
    broken["a.weight"] = broken["a.weight"].clone()
    broken["a.weight"][3, 2] = bad
    made = statistics_for(name, experts)
    with pytest.raises(MergeError, match=f"expert 2: {message} in a.weight"):
        merge(name, base, [experts[0], broken], statistics=made)
    with pytest.raises(MergeError, match=f"base: {message} in a.weight"):
        merge(name, broken, experts, statistics=made)


def test_nan_in_base_and_experts_alike_is_an_error_too():
    base, experts = family(1)
    base["a.bias"] = experts[0]["a.bias"] = torch.full((12,), torch.nan)
    with pytest.raises(MergeError, match=r"base: NaN in a.bias"):
        merge("average", base, experts)


def test_statistics_are_needed_by_some_and_used_by_no_other():
    base, experts = family(2)
    for name in ("fisher", "regmean"):
        with pytest.raises(MergeError, match=f"{name} needs statistics, one .* 2 experts .0 given"):
            merge(name, base, experts)
    with pytest.raises(MergeError, match="ties uses no statistics"):
        merge("ties", base, experts, statistics=[{}, {}])
    made = statistics_for("fisher", experts)
    del made[1]["a.bias"]
    with pytest.raises(MergeError, match=r"a.bias: not in statistics 2"):
        merge("fisher", base, experts, statistics=made)
    made[1]["a.bias"] = torch.ones(3)
    with pytest.raises(MergeError, match=r"a.bias: has the shape \[3\] in statistics 2"):
        merge("fisher", base, experts, statistics=made)


def test_a_tensor_of_zeros_is_not_the_farthest_if_another_has_a_ratio(caplog):
    base = {"a": torch.ones(4), "b": torch.zeros(4)}
    far = {"a": torch.full((4,), 1.9), "b": torch.full((4,), 0.1)}
    (message,) = doubts(caplog, base, [far])
    assert "most in a (0.90)" in message
