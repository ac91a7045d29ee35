"""What a merge declares, and what happens to each tensor."""

import pytest
import torch

from afield import registry
from afield.errors import SpecError
from afield.merging.job import merge
from afield.merging.scopes import (
    TensorSpec,
    expert_count,
    merges_weights,
    needs_statistics,
    required_keywords,
    scale_of,
    scope,
    scope_of,
    tensor_action,
)
from tests.merging.families import NAMES, family

RUNNING = "averaged: running statistics, scale within 0 and 1"


@pytest.mark.parametrize(
    ("kind", "name", "spec", "rule"),
    [
        ("matrix", "w", TensorSpec(torch.float32, (3, 4)), "merged"),
        ("matrix", "w", TensorSpec(torch.bfloat16, (3,)), "averaged: not a matrix"),
        ("matrix", "w", TensorSpec(torch.float32, ()), "averaged: not a matrix"),
        ("matrix", "w", TensorSpec(torch.float16, (3, 4, 2, 2)), "averaged: not a matrix"),
        (
            "matrix",
            "text_projection",
            TensorSpec(torch.float32, (3, 4)),
            "averaged: text_projection",
        ),
        ("tensor", "text_projection", TensorSpec(torch.float32, (3, 4)), "merged"),
        ("entry", "w", TensorSpec(torch.float32, ()), "merged"),
        ("model", "w", TensorSpec(torch.float32, (3,)), "merged"),
        ("model", "bn.running_var", TensorSpec(torch.float32, (3,)), RUNNING),
        ("matrix", "bn.running_mean", TensorSpec(torch.float32, (3,)), RUNNING),
        ("entry", "ids", TensorSpec(torch.int64, (3, 4)), "kept: not floating point"),
        ("matrix", "mask", TensorSpec(torch.bool, (3, 4)), "kept: not floating point"),
        ("matrix", "w", TensorSpec(torch.float32, (0, 4)), "kept: empty"),
    ],
)
def test_what_happens_to_a_tensor(kind, name, spec, rule):
    assert tensor_action(kind, name, spec) == rule


def test_a_merge_may_not_ask_for_what_nobody_has(monkeypatch):
    @scope("entry")
    def greedy(deltas, *, labels):
        return deltas[0]

    monkeypatch.setattr(registry, "find", lambda kind, name: greedy)
    base, experts = family(1)
    with pytest.raises(SpecError, match="greedy: the setting labels needs a default"):
        merge("greedy", base, experts)


def test_a_merge_states_its_scope_its_experts_and_its_needs():
    @scope("tensor", experts=3)
    def triple(deltas, *, base, statistics, weight=1.0):
        return deltas[0]

    assert (scope_of(triple), expert_count(triple)) == ("tensor", 3)
    assert required_keywords(triple) == ("base", "statistics")
    assert needs_statistics(triple)
    assert not merges_weights(triple, 3)


def test_a_benchmark_can_merge_what_needs_only_the_weights_of_its_experts():
    slerp, ties, fisher = (registry.find("merges", name) for name in ("slerp", "ties", "fisher"))
    assert merges_weights(slerp, 2)
    assert not merges_weights(slerp, 3)
    assert merges_weights(ties, 3)
    assert not merges_weights(fisher, 3)


def test_fisher_and_regmean_need_statistics_and_slerp_takes_two_experts():
    merges = {name: registry.find("merges", name) for name in NAMES}
    assert {n for n, merge in merges.items() if needs_statistics(merge)} == {"fisher", "regmean"}
    assert {n: count for n, m in merges.items() if (count := expert_count(m))} == {"slerp": 2}


def test_the_keywords_of_all_merges_can_be_supplied():
    for name in NAMES:
        assert {*required_keywords(registry.find("merges", name))} <= {"base", "name", "statistics"}


def test_a_merge_states_its_usual_scale():
    merges = {name: registry.find("merges", name) for name in registry.names("merges")}
    scales = {name: scale_of(merge) for name, merge in merges.items() if scale_of(merge) != 1}
    assert scales == {"task_arithmetic": 0.3, "breadcrumbs": 0.3, "magmax": 0.5, "pcb": 1.2}
