import torch

from afield.merging.merges.model_stock import model_stock
from tests.merging.merges.numbers import random


def test_the_formula_again_slowly():
    deltas = random(4, 3, 5) + random(3, 5, seed=1)
    pairs = [
        torch.nn.functional.cosine_similarity(deltas[i].flatten(), deltas[j].flatten(), dim=0)
        for i in range(4)
        for j in range(i)
    ]
    cosine = sum(pairs) / 6
    assert cosine > 0
    expected = 4 * cosine / (1 + 3 * cosine) * deltas.mean(0)
    torch.testing.assert_close(model_stock(deltas), expected)


def test_experts_that_agree_are_averaged_and_those_at_right_angles_are_not_followed():
    delta = random(5, 2)
    torch.testing.assert_close(model_stock(torch.stack([delta, 3 * delta])), 2 * delta)
    assert not model_stock(torch.eye(3)).any()


def test_experts_against_each_other_stay_at_the_base():
    delta = random(6)
    assert not model_stock(torch.stack([delta, -0.9 * delta, delta * 0])).any()


def test_one_expert_alone_is_followed():
    delta = random(1, 6)
    assert torch.equal(model_stock(delta), delta[0])
