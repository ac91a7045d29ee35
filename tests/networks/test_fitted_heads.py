"""Heads as arrays: what is computed from them, and that nothing impossible is taken."""

import pytest
import torch

from afield.errors import SpecError
from afield.networks.features import MAX_WIDTH, SUMS, added_up
from afield.networks.fitted_heads import (
    BoostedHead,
    ForestHead,
    KernelHead,
    NeighborsHead,
    adopt_arrays,
    tree_depth,
)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


# One stump, and one tree of depth 2: x0 <= 1, then x1 <= 2.
TREES = {
    "columns": ints(),
    "roots": ints(0, 3),
    "feature": ints(0, 0, 0, 0, 0, 1, 0, 0),
    "threshold": torch.tensor([0.5, 0, 0, 1.0, 0, 2.0, 0, 0]),
    "child": ints(1, 1, 2, 4, 4, 6, 6, 7),
    "row": ints(0, 0, 1, 0, 0, 0, 2, 1),
}
FOREST = {**TREES, "table": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.25, 0.75]])}
BOOSTED = {
    **TREES,
    "table": torch.tensor([[1.0], [2.0], [4.0]]),
    "of_class": ints(1, 0),
    "start": torch.tensor([0.5, -0.5]),
}
KERNEL = {
    "columns": ints(),
    "vectors": torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
    "weights": torch.tensor([[1.0, -1.0]]),
    "intercepts": torch.tensor([0.0]),
    "gamma": torch.tensor([0.5]),
    "known": ints(0, 1),
}
NEIGHBORS = {
    "columns": ints(1),
    "points": torch.tensor([[0.0], [1.0], [5.0]]),
    "of_class": ints(0, 0, 1),
    "neighbors": ints(2),
}
HEADS = {ForestHead: FOREST, BoostedHead: BOOSTED, KernelHead: KERNEL, NeighborsHead: NEIGHBORS}
X = torch.tensor([[0.0, 0.0], [1.0, 9.0], [2.0, 2.0], [2.0, 3.0]])


def made(kind):
    head = kind(2, 2)
    head.load_state_dict(HEADS[kind])
    return head.eval()


def test_a_forest_adds_the_shares_at_the_leaves():
    shares = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.25, 1.75], [0.0, 2.0]])
    torch.testing.assert_close(made(ForestHead)(X), (shares + 0.5).log())


def test_boosted_trees_add_values_to_the_score_of_their_class():
    expected = torch.tensor([[1.5, 0.5], [1.5, 1.5], [4.5, 1.5], [2.5, 1.5]])
    torch.testing.assert_close(made(BoostedHead)(X), expected)


def test_a_machine_of_two_classes_votes_by_its_decision():
    scores = made(KernelHead)(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    confidence = 1 - torch.tensor(-1.0).exp()
    margin = confidence / (3 * (confidence + 1))
    torch.testing.assert_close(scores[0], torch.stack([1 + margin, -margin]))
    torch.testing.assert_close(scores[1], scores[0].flip(0))


def test_the_nearest_points_vote_in_the_columns_that_are_used():
    votes = torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0], [2.0, 0.0]])
    x = torch.tensor([[9.0, 0.2], [9.0, 4.0], [9.0, 0.9], [9.0, 2.4]])
    torch.testing.assert_close(made(NeighborsHead)(x), (votes + 0.5).log())


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_gives_the_same_bytes_after_loading_and_in_an_exported_program(kind):
    head = made(kind)
    again = kind(2, 2)
    adopt_arrays(torch.nn.Sequential(again), {f"0.{k}": v for k, v in head.state_dict().items()})
    assert torch.equal(head(X), again(X))
    program = torch.export.export(head, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.testing.assert_close(program.module()(X[:3]), head(X[:3]))


def changed(kind, name, value):
    return {**HEADS[kind], name: value}


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (ForestHead, "child", ints(1, 1, 2, 4, 4, 3, 6, 7), "before its children"),
        (ForestHead, "child", ints(1, 1, 2, 4, 4, 7, 6, 7), "before its children"),
        (ForestHead, "child", ints(1, 1, 2, 4, 4, 2**31 - 1, 6, 7), "before its children"),
        (ForestHead, "child", ints(-1, 1, 2, 4, 4, 6, 6, 7), "before its children"),
        (ForestHead, "feature", ints(2, 0, 0, 0, 0, 1, 0, 0), "feature must be from 0 to 1"),
        (ForestHead, "feature", ints(-1, 0, 0, 0, 0, 1, 0, 0), "feature must be from 0 to 1"),
        (ForestHead, "row", ints(0, 0, 1, 0, 0, 0, 2, 3), "row must be from 0 to 2"),
        (ForestHead, "row", ints(0, 0, 1), "row has the shape"),
        (ForestHead, "roots", ints(0, 8), "roots must be from 0 to 7"),
        (ForestHead, "roots", ints(), "there is no tree"),
        (ForestHead, "columns", ints(0, 2), "columns must be from 0 to 1"),
        (ForestHead, "columns", ints(0), "feature must be from 0 to 0"),
        (ForestHead, "threshold", torch.full((8,), torch.nan), "not finite"),
        (ForestHead, "threshold", torch.zeros(8).double(), "threshold is torch.float64"),
        (ForestHead, "table", torch.ones(3, 3), "table has the shape"),
        (ForestHead, "table", -torch.ones(3, 2), "shares must not be below 0"),
        (BoostedHead, "of_class", ints(0, 2), "of_class must be from 0 to 1"),
        (BoostedHead, "start", torch.zeros(3), "start has the shape"),
        (KernelHead, "known", ints(1, 1), "known must list"),
        (KernelHead, "known", ints(0, 5), "known must be from 0 to 1"),
        (KernelHead, "weights", torch.ones(2, 2), "weights has the shape"),
        (KernelHead, "gamma", torch.zeros(1), "gamma must be above 0"),
        (NeighborsHead, "neighbors", ints(4), "neighbors must be"),
        (NeighborsHead, "of_class", ints(0, -1, 1), "of_class must be"),
        (NeighborsHead, "points", torch.ones(3, 2), "points has the shape"),
    ],
)
def test_impossible_arrays_are_refused_in_one_line(kind, name, value, message):
    head = kind(2, 2)
    with pytest.raises(SpecError, match=message) as caught:
        head.load_state_dict(changed(kind, name, value))
    assert "\n" not in str(caught.value)


def test_missing_and_unknown_arrays_are_refused():
    head = ForestHead(2, 2)
    with pytest.raises(SpecError, match="table is missing"):
        head.load_state_dict(TREES)
    with pytest.raises(SpecError, match="no array more"):
        head.load_state_dict({**FOREST, "more": ints(1)})


def test_a_chain_of_nodes_that_is_too_deep_is_refused():
    count = 5001
    child = torch.arange(1, 2 * count, 2).repeat_interleave(2)[: 2 * count - 1]
    child = torch.where(torch.arange(len(child)) % 2 == 0, torch.arange(len(child)) + 1, 0)
    child[-1] = len(child) - 1
    child[1::2] = torch.arange(1, len(child), 2)
    with pytest.raises(SpecError, match="deeper than 4096"):
        tree_depth(torch.tensor([0]), child)


def test_very_many_features_are_added_up_so_that_distances_stay():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 20_000, generator=generator)
    short = added_up(x)
    assert short.shape == (40, SUMS)
    ratio = torch.pdist(short) / torch.pdist(x)
    assert 0.85 < ratio.min() < ratio.max() < 1.15
    few = torch.zeros(2, MAX_WIDTH)
    assert added_up(few) is few
