import torch

from afield.merging.merges.regmean import regmean
from tests.merging.merges.numbers import random


def grams(experts, samples, n):
    x = random(experts, samples, n, seed=7)
    return x, x.mT @ x


def test_with_whole_gram_matrices_it_is_the_least_squares_solution():
    deltas = random(3, 4, 6)
    x, gram = grams(3, 20, 6)
    answers = torch.cat([inputs @ delta.T for inputs, delta in zip(x, deltas, strict=True)])
    expected = torch.linalg.lstsq(x.flatten(0, 1), answers).solution.T
    torch.testing.assert_close(regmean(deltas, statistics=gram, off_diagonal=1.0), expected)


def test_the_off_diagonal_is_scaled():
    deltas = random(2, 4, 6)
    _, gram = grams(2, 20, 6)
    scaled = torch.where(torch.eye(6, dtype=torch.bool), gram, 0.9 * gram)
    expected = (deltas @ scaled).sum(0) @ scaled.sum(0).inverse()
    torch.testing.assert_close(regmean(deltas, statistics=gram), expected)


def test_equal_inputs_give_the_mean():
    deltas = random(3, 4, 6)
    _, gram = grams(1, 20, 6)
    torch.testing.assert_close(regmean(deltas, statistics=gram.expand(3, 6, 6)), deltas.mean(0))


def test_an_input_that_never_was_gets_the_mean():
    deltas = random(2, 4, 6)
    _, gram = grams(2, 20, 6)
    gram[:, 2], gram[:, :, 2] = 0, 0
    result = regmean(deltas, statistics=gram)
    torch.testing.assert_close(result[:, 2], deltas.mean(0)[:, 2])
    assert not torch.allclose(result, deltas.mean(0))
    torch.testing.assert_close(regmean(deltas, statistics=0 * gram), deltas.mean(0))


def test_the_scale_of_the_inputs_does_not_matter():
    deltas = random(2, 4, 6)
    _, gram = grams(2, 20, 6)
    result = [regmean(deltas, statistics=scale * gram) for scale in (1.0, 1e-14)]
    torch.testing.assert_close(*result)
