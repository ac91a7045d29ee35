"""Groups that are what they are said to be, and never more distances at once than fit."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.cluster import KMeans, MiniBatchKMeans

from afield.training import sample_groups
from afield.training.sample_groups import (
    assign_to_seeds,
    consistency,
    find_seed_points,
    indices_by_label,
    kmeans_labels,
    quantile_bins,
    subdivide,
)
from tests.files import GOLDEN

REFERENCE = np.load(GOLDEN / "seed_categories.npz")


def reference(name):
    return torch.from_numpy(REFERENCE[name])


def cloud(seed, n=60, width=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, width, generator=generator, dtype=torch.float64)


def close(points, radius):
    """Which points are nearer than the radius, each to itself too: all pairs, one by one."""
    apart = (points[:, None] - points[None]).square().sum(dim=2).sqrt()
    return (apart < radius) | torch.eye(len(points), dtype=torch.bool)


def blobs(seed, *, size=50, count=4, width=3):
    """Points close to corners of a large cube, and the corner of each."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.arange(count).repeat(size)[torch.randperm(count * size, generator=generator)]
    centres = 100.0 * torch.eye(count, width + 1)[:, :width]
    return centres[corner] + torch.randn(len(corner), width, generator=generator), corner


def same_parts(first, second):
    """Whether two labelings have the same groups, whatever the groups' numbers."""
    both = torch.stack([first, second]).unique(dim=1).shape[1]
    return both == len(first.unique()) == len(second.unique())


# Groups of labels


def test_members_are_the_samples_of_each_label_that_occurs_in_ascending_order():
    result = indices_by_label(torch.tensor([5, 2, 5, 9, 2, 5]))
    assert [group.tolist() for group in result] == [[1, 4], [0, 2, 5], [3]]


def test_each_unit_is_divided_by_labels_of_its_own():
    units = [torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5, 6])]
    result = subdivide(units, lambda unit: unit % 2)
    assert [group.tolist() for group in result] == [[0, 4], [3], [2, 6], [1, 5]]


# By rank


@pytest.mark.parametrize("domain", ["domain0", "domain1", "domain2"])
def test_ranked_groups_equal_the_reference(domain):
    expected = reference(f"{domain}/seed_category_ascending")
    assert torch.equal(quantile_bins(reference(f"{domain}/losses"), 4), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
def test_ranked_parts_are_in_the_order_of_the_values_and_as_equal_as_can_be(count):
    for n in (1, 2, 5, 7, 40, 41, 42, 43):
        values = torch.rand(n, generator=torch.Generator().manual_seed(n))
        label = quantile_bins(values, count)
        sizes = label.bincount(minlength=count)
        assert len(sizes) == count, n
        assert sizes.max() - sizes.min() <= 1, n
        assert (label[values.argsort()].diff() >= 0).all(), n


def test_fewer_values_than_parts_leave_the_last_parts_empty():
    label = quantile_bins(torch.tensor([0.3, 0.1]), 5)
    assert label.tolist() == [1, 0]
    assert [group.tolist() for group in indices_by_label(label)] == [[1], [0]]


def test_equal_values_are_cut_in_the_order_they_come_in():
    assert quantile_bins(torch.ones(7), 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert quantile_bins(torch.tensor([2.0, 1.0, 2.0, 1.0]), 4).tolist() == [2, 0, 3, 1]


# By cluster


def test_clusters_are_the_blobs_where_these_lie_well_apart():
    points, corner = blobs(0)
    assert same_parts(kmeans_labels(points.numpy(), 4, seed=0), corner)


def test_the_same_seed_gives_the_same_clusters_to_the_last_label():
    points = cloud(0, n=500, width=5).float().numpy()
    first, again = (kmeans_labels(points, 10, seed=7) for _ in range(2))
    assert torch.equal(first, again)
    others = [kmeans_labels(points, 10, seed=seed) for seed in range(5)]
    assert not all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("n", [200, 201])
def test_more_points_than_are_few_are_clustered_in_small_batches_and_blobs_are_found(
    n, monkeypatch
):
    used = []

    def watched(kind):
        def make(**settings):
            used.append(kind)
            return kind(**settings)

        return make

    monkeypatch.setattr(sample_groups, "MINIBATCH_THRESHOLD", 200)
    monkeypatch.setattr("sklearn.cluster.KMeans", watched(KMeans))
    monkeypatch.setattr("sklearn.cluster.MiniBatchKMeans", watched(MiniBatchKMeans))
    points, corner = blobs(1, size=51)
    label = kmeans_labels(points[:n].numpy(), 4, seed=3)
    assert used == [KMeans if n == 200 else MiniBatchKMeans]
    assert same_parts(label, corner[:n])
    assert torch.equal(label, kmeans_labels(points[:n].numpy(), 4, seed=3))


def test_fewer_points_than_clusters_are_clusters_of_one():
    points = cloud(0, n=3).float()
    assert kmeans_labels(points.numpy(), 5, seed=0).unique().tolist() == [0, 1, 2]


@pytest.mark.parametrize("large", [10, 10_000])
def test_fewer_distinct_points_than_clusters_are_no_error(large, monkeypatch):
    monkeypatch.setattr(sample_groups, "MINIBATCH_THRESHOLD", large)
    points = cloud(0, n=2).float().repeat(20, 1)
    label = kmeans_labels(points.numpy(), 4, seed=0)
    assert len(label) == 40
    # No two different points in one cluster.
    assert not set(label[::2].tolist()) & set(label[1::2].tolist())


# Around seeds


@pytest.mark.parametrize("radius", [0.05, 0.2, 0.4, 2.0])
def test_every_other_point_is_near_a_seed_and_no_seed_comes_twice(radius):
    for seed in range(5):
        points = cloud(seed)
        chosen = find_seed_points(points, radius)
        assert len(set(chosen.tolist())) == len(chosen), seed
        assert close(points, radius)[chosen].any(dim=0).all(), seed


@pytest.mark.parametrize("seed", range(5))
def test_the_next_seed_is_always_one_with_the_most_neighbours_that_have_none(seed):
    points = cloud(seed)
    near = close(points, 0.2)
    alone = torch.ones(len(points), dtype=torch.bool)
    for chosen in find_seed_points(points, 0.2).tolist():
        gains = (near & alone).sum(dim=1)
        assert gains[chosen] == gains.max() > 0
        alone &= ~near[chosen]
    assert not alone.any()


@pytest.mark.parametrize("radius", [0.15, 0.25, 0.35])
@pytest.mark.parametrize("seed", range(4))
def test_seeds_are_no_fewer_than_the_fewest_and_not_many_more(seed, radius):
    points = cloud(seed, n=40)
    near = close(points, radius)
    fewest = milp(
        np.ones(len(points)),
        constraints=LinearConstraint(near.numpy().astype(float), lb=1),
        integrality=np.ones(len(points)),
        bounds=Bounds(0, 1),
    )
    assert fewest.success
    least, result = round(fewest.fun), len(find_seed_points(points, radius))
    # The greedy set's known bound; the largest degree and the point itself make the largest row.
    assert least <= result <= (1 + math.log(int(near.sum(dim=1).max()))) * least


@pytest.mark.parametrize("radius", [0.05, 0.2, 0.4])
def test_every_point_joins_a_seed_that_is_near_and_a_seed_its_own(radius):
    points = cloud(0)
    chosen = find_seed_points(points, radius)
    label = assign_to_seeds(points, chosen, radius)
    assert close(points, radius)[torch.arange(len(points)), chosen[label]].all()
    assert torch.equal(label[chosen], torch.arange(len(chosen)))


def test_which_of_the_near_seeds_a_point_joins_is_left_to_chance():
    line = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    chosen = torch.tensor([0, 2, 3])
    torch.manual_seed(0)
    joined = torch.stack([assign_to_seeds(line, chosen, 1.5) for _ in range(400)])
    assert joined[:, [0, 2, 3]].unique(dim=0).tolist() == [[0, 1, 2]]
    between = joined[:, 1].bincount(minlength=3)
    # As often one as the other, and never the one that is far.
    assert between[2] == 0
    assert 150 < between[0] < 250


def test_points_choose_their_seeds_one_by_one():
    line = torch.tensor([0.0, 2.0] + [1.0] * 50)[:, None]
    torch.manual_seed(0)
    label = assign_to_seeds(line, torch.tensor([0, 1]), 1.5)
    assert label[2:].unique().tolist() == [0, 1]


def watch_distances(monkeypatch):
    """The shapes of all matrices of distances that are computed from now on."""
    cdist, held = torch.cdist, []

    def watched(rows, columns):
        distance = cdist(rows, columns)
        held.append(tuple(distance.shape))
        return distance

    monkeypatch.setattr(torch, "cdist", watched)
    return held


@pytest.mark.parametrize("most", [1, 59, 60, 150, 60 * 60 - 1])
def test_no_more_distances_are_held_at_once_than_allowed_and_the_result_is_the_same(
    most, monkeypatch
):
    points = cloud(0)

    def result():
        torch.manual_seed(0)
        chosen = find_seed_points(points, 0.2)
        return chosen, assign_to_seeds(points, chosen, 0.2)

    whole = result()
    held = watch_distances(monkeypatch)
    monkeypatch.setattr(sample_groups, "MAX_DISTANCES", most)
    pieces = result()
    # One row is the least that there is.
    assert all(rows * columns <= most or rows == 1 for rows, columns in held)
    assert max(rows * columns for rows, columns in held) <= max(most, 60)
    assert all(map(torch.equal, whole, pieces))


def test_in_a_large_set_most_distances_are_never_held(monkeypatch):
    points = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    held = watch_distances(monkeypatch)
    assign_to_seeds(points, find_seed_points(points, 1.5), 1.5)
    largest = max(rows * columns for rows, columns in held)
    assert 0 < largest <= sample_groups.MAX_DISTANCES < 3000**2


@pytest.mark.parametrize("radius", [0.0, 1e-9, 1.0])
def test_points_that_are_all_the_same_are_no_error(radius):
    points = torch.zeros(40, 3)
    chosen = find_seed_points(points, radius)
    label = assign_to_seeds(points, chosen, radius)
    assert torch.equal(label[chosen], torch.arange(len(chosen)))
    # Nothing is nearer than nothing; else one seed is near to all.
    assert len(chosen) == (1 if radius else 40)


def test_points_that_come_many_times_have_one_seed():
    points = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]]).repeat(30, 1)
    chosen = find_seed_points(points, 1.0)
    assert sorted((chosen % 3).tolist()) == [0, 1, 2]
    assert same_parts(assign_to_seeds(points, chosen, 1.0), torch.arange(90) % 3)


def test_one_point_is_its_own_seed():
    assert find_seed_points(torch.ones(1, 4), 0.5).tolist() == [0]
    assert assign_to_seeds(torch.ones(1, 4), torch.tensor([0]), 0.5).tolist() == [0]


def test_distances_whose_last_digits_depend_on_how_many_are_computed_come_to_an_end(monkeypatch):
    # The product of matrices rounds otherwise than that of a row and a matrix, and not alike in
    # both directions: the last point may be called near to all those that are alike, but by some
    # of the calls only. They have a seed before it, and it still needs its own.
    cdist, calls = torch.cdist, []

    def rounded(rows, columns):
        calls.append(len(rows))
        assert len(calls) < 1000, "there is no end"
        less = 1e-6 * (rows[:, None, 0] < columns[None, :, 0])
        return cdist(rows, columns) - (less if len(rows) > 1 else 0.0)

    monkeypatch.setattr(torch, "cdist", rounded)
    points = torch.tensor([0.0, *[1.0] * 60, 3.0])[:, None]
    assert find_seed_points(points, 2.0).tolist() == [1, 61]


# Whether two groupings agree


def test_consistency_equals_the_reference_in_both_directions():
    first, second = reference("cct/A"), reference("cct/B")
    group = torch.zeros_like(first)
    for name, one, other in (("AB", first, second), ("BA", second, first)):
        expected = float(REFERENCE[f"cct/CCT_{name}_distinct_pairs"])
        assert consistency(one, other, group) == pytest.approx(expected, rel=0, abs=1e-12)


def labels(seed, n, count):
    return torch.randint(count, (n,), generator=torch.Generator().manual_seed(seed))


def by_pairs(first, second, group):
    """Eq. 3 slowly: over all pairs, then over groups."""
    shares = []
    for each in group.unique():
        index = (group == each).nonzero().flatten().tolist()
        alike = [second[i] == second[j] for i, j in combinations(index, 2) if first[i] == first[j]]
        if alike:
            shares.append(sum(map(int, alike)) / len(alike))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("seed", range(5))
def test_consistency_is_what_counting_all_pairs_gives(seed):
    first, second = labels(seed, 70, 4), labels(seed + 10, 70, 3)
    # Labels need not be 0, 1, …, and the last group has samples without a pair only.
    first, group = 7 * first - 3, labels(seed + 20, 70, 5)
    first[-3:], group[-3:] = torch.tensor([90, 91, 92]), 8
    for one, other in ((first, second), (second, first)):
        assert consistency(one, other, group) == pytest.approx(by_pairs(one, other, group))


def test_pairs_across_groups_do_not_count():
    first, group = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 1, 1])
    second = torch.tensor([0, 0, 1, 1])
    assert consistency(first, second, group) == 1
    assert consistency(first, second, torch.zeros(4)) == pytest.approx(2 / 6)


def test_a_grouping_agrees_with_itself_and_with_one_that_has_other_names():
    first, group = labels(0, 90, 6), labels(1, 90, 3)
    assert consistency(first, first, group) == 1
    assert consistency(first, 5 - first, group) == 1


def test_one_group_for_all_holds_every_pair_and_groups_of_one_hold_none():
    first, group = labels(0, 90, 6), labels(1, 90, 3)
    assert consistency(first, torch.zeros(90), group) == 1
    assert consistency(first, torch.arange(90), group) == 0
    assert math.isnan(consistency(torch.arange(90), first, group))


@pytest.mark.parametrize("count", [2, 5, 10])
def test_random_labels_agree_by_chance_only(count):
    first, second = labels(0, 3000, 8), labels(1, 3000, count)
    assert consistency(first, second, labels(2, 3000, 3)) == pytest.approx(1 / count, abs=0.01)
