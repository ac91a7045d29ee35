import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from afield.errors import SpecError
from afield.training.averages.wise import Wise


def flat(model):
    return parameters_to_vector(model.parameters()).detach().clone()


def moved(model, alpha):
    average = Wise(alpha=alpha)
    average.setup(model, steps=10)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3).add_(0.1)
        average.after_step(model)
    return flat(average.model)


def test_it_lies_between_the_first_and_the_last_weights(model):
    first = flat(model)
    torch.testing.assert_close(moved(model, 0.3), 0.7 * first + 0.3 * flat(model))


def test_both_ends_are_exact(model):
    first = flat(model)
    assert torch.equal(moved(model, 0.0), first)
    assert torch.equal(moved(model, 1.0), flat(model))


def test_alpha_is_a_share():
    with pytest.raises(SpecError, match="must be a share"):
        Wise(alpha=1.5)


def test_buffers_are_those_of_the_present_weights():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = Wise(alpha=0.5)
    average.setup(model, steps=2)
    model(torch.randn(8, 3))
    average.after_step(model)
    for name, buffer in model.named_buffers():
        assert torch.equal(dict(average.model.named_buffers())[name], buffer)
    assert average.model[1].running_mean.any()
