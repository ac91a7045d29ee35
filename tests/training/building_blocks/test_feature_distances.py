"""Distances between sets of samples, and the contrastive loss."""

import pytest
import torch

from afield.training.building_blocks.feature_distances import (
    block_means,
    kernel,
    kernel_distance,
    moment_distance,
    supervised_contrast,
)


def test_sets_that_are_equal_have_no_distance_and_others_have():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(5, 3, generator=generator)
    for distance in (moment_distance, kernel_distance):
        assert distance([a, a]) < 1e-6
        assert distance([a]) == 0
        assert distance([a, a + 1]) > 0.1
        # A copy of every set changes nothing but the number of equal pairs: 2 of 6.
        torch.testing.assert_close(distance([a, a + 1, a, a + 1]), distance([a, a + 1]) * 4 / 6)


def test_a_sample_has_the_kernel_one_with_itself_at_every_width():
    x = 100 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert kernel(x, (1e-3, 1.0, 1e3)).diagonal().tolist() == [3.0] * 4


def test_the_gradient_of_a_kernel_is_finite_for_equal_samples():
    x = torch.ones(3, 2, requires_grad=True)
    kernel(x).sum().backward()
    assert not x.grad.any()


def test_blocks_of_unequal_size_have_their_own_means():
    values = torch.arange(9.0).view(3, 3)
    assert block_means(values, [1, 2]).tolist() == [[0.0, 1.5], [4.5, 6.0]]


def test_the_kernels_have_the_widths_that_are_given():
    first, second = torch.randn(5, 3), torch.randn(4, 3) + 1
    widths = (0.5, 3.0)

    def mean(one, other):
        distances = (one[:, None] - other).square().sum(dim=2)
        return sum(torch.exp(-width * distances).mean() for width in widths)

    expected = mean(first, first) + mean(second, second) - 2 * mean(first, second)
    torch.testing.assert_close(kernel_distance([first, second], widths), expected)
    torch.testing.assert_close(kernel(first, widths).mean(), mean(first, first))


def test_samples_alone_in_their_class_are_left_out():
    assert supervised_contrast(torch.randn(3, 8), torch.tensor([0, 1, 2])) == 0


def test_the_contrast_of_equal_features_is_that_of_a_fair_guess():
    z, y = torch.ones(6, 4, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    # Each sample finds its class among five equal ones; the mean has one row more.
    expected = -6 / 7 * torch.log(torch.tensor(1 / 5 + 1e-5, dtype=torch.float64))
    torch.testing.assert_close(supervised_contrast(z, y), expected, rtol=1e-6, atol=0)


def slow_moment_distance(sets):
    """The formula, pair by pair: mean squared difference of means and of covariances."""
    pairs = [(a, b) for i, a in enumerate(sets) for b in sets[:i]]
    means = [(a.mean(0) - b.mean(0)).square().mean() for a, b in pairs]
    covariances = [(a.T.cov() - b.T.cov()).square().mean() for a, b in pairs]
    return torch.stack(means).mean() + torch.stack(covariances).mean()


@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 4, 3), (20, 20), (30, 12, 25)])
def test_moments_of_more_features_than_samples_are_compared_by_the_same_formula(sizes):
    generator = torch.Generator().manual_seed(0)
    sets = [(i + 1) * torch.randn(n, 12, generator=generator) + i for i, n in enumerate(sizes)]
    torch.testing.assert_close(moment_distance(sets), slow_moment_distance(sets))
