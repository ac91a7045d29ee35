import torch

from afield.merging.job import merge
from afield.merging.merges.dare import dare
from tests.merging.merges.numbers import random


def test_a_share_is_dropped_and_the_rest_rescaled():
    delta = random(1, 200, 100)
    result = dare(delta, name="w", drop=0.75)
    kept = result != 0
    assert abs(float(kept.double().mean()) - 0.25) < 0.02
    torch.testing.assert_close(result[kept], 4 * delta[0][kept])


def test_over_many_seeds_nothing_is_lost_on_average():
    deltas = random(2, 50)
    mean = torch.stack([dare(deltas, name="w", drop=0.5, seed=s) for s in range(2000)]).mean(0)
    torch.testing.assert_close(mean, deltas.sum(0), rtol=0, atol=0.25)


def test_every_expert_and_every_tensor_is_dropped_on_its_own():
    delta = torch.ones(2, 1000)
    # Were both experts dropped alike, there would be nothing or both.
    assert set(dare(delta, name="w", drop=0.5).tolist()) == {0.0, 2.0, 4.0}
    assert not torch.equal(dare(delta, name="w"), dare(delta, name="v"))


def test_neither_the_order_of_the_tensors_nor_other_draws_matter():
    base = {"a": torch.zeros(40), "b": torch.zeros(40)}
    expert = {"a": random(40).float(), "b": random(40, seed=1).float()}
    first = merge("dare", base, [expert])
    torch.rand(3)
    second = merge("dare", dict(reversed(base.items())), [dict(reversed(expert.items()))])
    assert all(torch.equal(first[name], second[name]) for name in base)
