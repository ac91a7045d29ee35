import copy

import torch
from torch.nn.utils import parameters_to_vector

from afield.training.averages.ema import EMA


def test_it_is_the_formula(model):
    average = EMA(decay=0.6)
    average.setup(model, steps=100)
    expected = parameters_to_vector(model.parameters()).detach().clone()
    for t in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1).add_(0.01 * t)
        average.after_step(model)
        weights = parameters_to_vector(model.parameters()).detach()
        d = min(0.6, (1 + t) / (10 + t))
        expected = d * expected + (1 - d) * weights
    result = parameters_to_vector(average.model.parameters()).detach()
    torch.testing.assert_close(result, expected)


def test_the_random_start_is_forgotten(model):
    average = EMA(decay=0.999)
    average.setup(copy.deepcopy(model), steps=100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    for _ in range(20):
        average.after_step(model)
    result = parameters_to_vector(average.model.parameters())
    torch.testing.assert_close(result, torch.ones_like(result), atol=1e-4, rtol=0)
