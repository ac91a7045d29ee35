"""Chunks of an evaluation suit the layers of the network, and change no output."""

import math

import torch
from torch import nn

from afield.data.samples import Rows
from afield.networks.inference import MAX_CHUNK_SAMPLES, compute_outputs


class Recorded(nn.Module):
    """A network that notes the sizes of its batches."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return self.layers(x)


def test_chunks_are_small_enough_for_the_largest_layer(monkeypatch):
    x = Rows([torch.randn(300, 4)])
    monkeypatch.setattr("afield.networks.inference.MAX_CHUNK_NUMBERS", 16 * 50)
    for width, size in ((1, MAX_CHUNK_SAMPLES), (50, 16), (16 * 50 + 1, 1)):
        model = Recorded(width)
        torch.testing.assert_close(compute_outputs(model, x), model.layers(x.in_memory))
        assert sum(model.sizes) == 300
        assert model.sizes[0] == 16
        # As few chunks of equal size as the largest layer allows.
        assert len(model.sizes) - 1 == math.ceil(284 / size)
        assert max(model.sizes[1:]) - min(model.sizes[1:]) <= len(model.sizes)


def test_chunks_are_the_same_in_every_call():
    x, model = Rows([torch.randn(40, 4)]), Recorded(8)
    first, second = compute_outputs(model, x), compute_outputs(model, x)
    assert model.sizes == [16, 24, 16, 24]
    assert torch.equal(first, second)
    assert not any(module._forward_hooks for module in model.modules())


def test_chosen_samples_come_in_their_order():
    x, model = Rows([torch.randn(40, 4)]), Recorded(8)
    chosen = torch.randperm(40)[:21]
    for indices in (chosen, chosen[:3]):
        torch.testing.assert_close(
            compute_outputs(model, x, indices=indices), model.layers(x.in_memory[indices])
        )


def test_a_limit_that_is_given_holds():
    model = Recorded(8)
    compute_outputs(model, Rows([torch.randn(40, 4)]), max_batch_size=5)
    assert model.sizes == [5] * 8
