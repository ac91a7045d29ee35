import pytest
import torch

from afield.errors import MergeError
from afield.merging.merges.wudi import wudi
from tests.merging.merges.matrices import normal, numbers, reference


@pytest.mark.parametrize("matrix", ["a.weight", "b.weight"])
def test_matrices_are_merged_to_the_authors_numbers(matrix):
    expected = numbers("merging_data_free")[f"wudi/D3/{matrix}"]
    torch.testing.assert_close(wudi(reference(3, matrix)), expected, rtol=0, atol=1e-10)


def test_the_gradient_is_that_of_the_loss():
    deltas = normal(3, 5, 4)
    merged = deltas.sum(0).requires_grad_()
    optimizer = torch.optim.Adam([merged], lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        disturbances = [((merged - delta) @ delta.T).norm() / delta.norm() for delta in deltas]
        sum(disturbance**2 for disturbance in disturbances).backward()
        optimizer.step()
    torch.testing.assert_close(wudi(deltas, steps=5, lr=1e-2), merged.detach())


def test_experts_in_separate_rows_of_inputs_simply_add():
    deltas = torch.zeros(2, 5, 6, dtype=torch.float64)
    deltas[0, :, :3], deltas[1, :, 3:] = normal(5, 3), normal(5, 3, seed=1)
    # The sum is the minimum already; around a minimum, Adam circles within its learning rate.
    torch.testing.assert_close(wudi(deltas, lr=1e-5), deltas.sum(0), rtol=0, atol=1e-5)


def test_an_expert_that_learned_nothing_changes_nothing():
    deltas = normal(3, 5, 4)
    torch.testing.assert_close(wudi(torch.cat([deltas, 0 * deltas[:1]])), wudi(deltas))
    assert not wudi(0 * deltas).any()


@pytest.mark.parametrize(("steps", "lr"), [(-1, 1e-5), (1, 0.0), (1, float("nan"))])
def test_settings_that_make_no_sense_are_refused(steps, lr):
    with pytest.raises(MergeError, match=f"steps={steps}, lr={lr}"):
        wudi(normal(2, 3, 3), steps=steps, lr=lr)
