import pytest
import torch

from afield.training.methods.sand_mask import SANDMask

GRADIENTS = torch.tensor([[1.0, 1.0, 2.0, 0.0], [1.0, -1.0, 1.0, 0.0], [0.5, 1.0, 0.0, 0.0]])


def test_a_steep_mask_is_that_of_strict_agreement():
    mask = SANDMask(agreement=2 / 3 - 1e-6, steepness=1e30).mask(GRADIENTS, GRADIENTS.mean(dim=0))
    assert mask.tolist() == [1, 0, 1, 0]


def test_gradients_that_vary_more_have_smaller_masks():
    mask = SANDMask(agreement=0.5, steepness=0.01).mask(GRADIENTS, GRADIENTS.mean(dim=0))
    expected = (0.01 * 0.5 / GRADIENTS[:, 0].var()).tanh()
    torch.testing.assert_close(mask[0], expected)
    assert mask[0] > mask[2] > 0


def test_no_excess_without_variance_is_nearly_nothing():
    assert SANDMask(agreement=0.0).mask(GRADIENTS, GRADIENTS.mean(dim=0))[3] == pytest.approx(1e-17)
