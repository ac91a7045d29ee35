import torch
import torch.nn.functional as F

from afield.training.methods.erm import ERM
from tests.training.methods.reference import assert_equals_the_reference


def test_three_updates_equal_the_reference():
    assert_equals_the_reference(ERM(), "ERM")


def test_one_domain_is_plain_training(model, task, stream):
    only = next(stream)[:1]
    loss, _ = ERM().loss(ERM().setup(model, task), only)
    torch.testing.assert_close(loss, F.cross_entropy(model(only[0].x), only[0].y))
