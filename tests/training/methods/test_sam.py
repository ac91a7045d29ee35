"""SAM: the length of its offset, and a vanishing gradient."""

import torch

from afield.training.methods.sam import SAM


def test_the_offset_has_the_length_of_the_radius_and_vanishes_with_the_gradient():
    (moved,) = SAM(rho=0.5).offset([torch.tensor([3.0, 4.0])])
    torch.testing.assert_close(moved, torch.tensor([0.3, 0.4]))
    (still,) = SAM(rho=0.5).offset([torch.zeros(2)])
    assert still.tolist() == [0, 0]
