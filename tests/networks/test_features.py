"""What a network sees of samples is what passes through it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.errors import SpecError
from afield.networks.features import Views, view_samples
from afield.networks.inference import MAX_CHUNK_SAMPLES


def test_views_are_those_of_the_layers_of_the_network(model, samples):
    chosen = torch.tensor([3, 0, 77, 40])
    result = view_samples(model, samples, chosen)
    features = model.features(samples.x.in_memory[chosen])
    torch.testing.assert_close(result.features, features)
    torch.testing.assert_close(result.logits, model.head(features))
    assert torch.equal(result.path, torch.stack([features.argmax(1), result.logits.argmax(1)], 1))
    assert torch.equal(result.y, samples.y[chosen])
    assert torch.equal(result.predictions, result.logits.argmax(1))
    torch.testing.assert_close(
        result.losses, F.cross_entropy(result.logits, result.y, reduction="none")
    )


def test_samples_are_looked_at_in_evaluation_mode_and_as_they_are(model, samples):
    def refuse(x, generator):
        raise AssertionError("augmented")

    noisy = type(model)(nn.Sequential(model.features, nn.Dropout(0.5)), 8, 4).train()
    still = view_samples(noisy, replace(samples, augment=refuse), torch.arange(20))
    torch.testing.assert_close(still.features, model.features(samples.x.in_memory[:20]))
    assert noisy.features[1].training


def test_large_sets_are_looked_at_in_pieces(model, samples, monkeypatch):
    whole = view_samples(model, samples, torch.arange(100))
    monkeypatch.setattr("afield.networks.inference.MAX_CHUNK_NUMBERS", 7 * 8)
    assert MAX_CHUNK_SAMPLES > 100
    pieces = view_samples(model, samples, torch.arange(100))
    for name in ("features", "path", "logits", "y"):
        torch.testing.assert_close(getattr(pieces, name), getattr(whole, name))


def test_views_are_joined_in_order(model, samples):
    parts = [view_samples(model, samples, index) for index in torch.arange(30).split(11)]
    whole = view_samples(model, samples, torch.arange(30))
    assert torch.equal(Views.concatenate(parts).path, whole.path)
    torch.testing.assert_close(Views.concatenate(parts).losses, whole.losses)


def test_nothing_is_left_on_the_network(model, samples):
    view_samples(model, samples, torch.arange(3))
    hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
    assert not any(any(each) for each in hooks)


def test_a_network_without_a_head_is_refused(samples):
    with pytest.raises(SpecError, match="Linear has no features and no head"):
        view_samples(nn.Linear(6, 4), samples, torch.arange(3))
