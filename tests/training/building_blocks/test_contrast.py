"""The contrastive loss; its numbers are part of the reference of ADRMX."""

import torch

from afield.training.building_blocks.feature_distances import supervised_contrast


def test_samples_alone_in_their_class_are_left_out():
    assert supervised_contrast(torch.randn(3, 8), torch.tensor([0, 1, 2])) == 0


def test_the_contrast_of_equal_features_is_that_of_a_fair_guess():
    z, y = torch.ones(6, 4, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1])
    # Each sample finds its class among five equal ones; the mean has one row more.
    expected = -6 / 7 * torch.log(torch.tensor(1 / 5 + 1e-5, dtype=torch.float64))
    torch.testing.assert_close(supervised_contrast(z, y), expected, rtol=1e-6, atol=0)
