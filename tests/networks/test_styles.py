"""Styles of maps: the reference numbers of MixStyle, EFDMix and SagNet, and limits."""

import torch

from afield.networks.styles import (
    _sorted_places,
    match_distributions,
    mix_styles,
    randomize_content,
    randomize_style,
)
from tests.training.methods.references import Reference


def agree(result, x, v, out, gradient):
    torch.testing.assert_close(result, out, rtol=0, atol=1e-10)
    (slope,) = torch.autograd.grad((result * v).sum(), [x])
    torch.testing.assert_close(slope, gradient, rtol=0, atol=1e-9)


def test_values_and_gradients_of_mixstyle_and_efdmix_equal_the_reference():
    for name, mix in (("mixstyle", mix_styles), ("efdmix", match_distributions)):
        reference = Reference(name)
        x = reference["x"].requires_grad_()
        result = mix(x, reference["lam"], reference["perm"])
        agree(result, x, reference["v"], reference["out"], reference["grad"])


def test_channels_may_be_last():
    x, lam, perm = torch.randn(4, 3, 5, 6), torch.rand(4), torch.tensor([2, 3, 1, 0])
    for mix in (mix_styles, match_distributions, randomize_style):
        last = mix(x.movedim(1, 3), lam, perm, axis=3)
        torch.testing.assert_close(last.movedim(3, 1), mix(x, lam, perm))


def test_style_and_content_on_a_map_equal_the_reference():
    reference = Reference("sagnet_map")
    x = reference["x"].requires_grad_()
    result = randomize_style(x, reference["style/alpha"], reference["style/swap"])
    agree(result, x, reference["v"], reference["style/out"], reference["style/grad"])
    result = randomize_content(x, reference["content/swap"])
    agree(result, x, reference["v"], reference["content/out"], reference["content/grad"])


def test_the_own_style_changes_nothing():
    x, ones = torch.randn(4, 3, 5, 6), torch.ones(4)
    perm, same = torch.tensor([1, 2, 3, 0]), torch.arange(4)
    for mix in (mix_styles, match_distributions, randomize_style):
        torch.testing.assert_close(mix(x, ones, perm), x)
        torch.testing.assert_close(mix(x, torch.rand(4), same), x)
    torch.testing.assert_close(randomize_content(x, same), x)


def test_matching_gives_exactly_the_values_of_the_other_sample():
    x, perm = torch.randn(2, 1, 3, 3), torch.tensor([1, 0])
    result = match_distributions(x, torch.zeros(2), perm)
    torch.testing.assert_close(result[0].flatten().sort().values, x[1].flatten().sort().values)
    assert torch.equal(result[0].flatten().argsort(), x[0].flatten().argsort())


def test_values_are_sorted_as_torch_sorts_them():
    x = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(0)).relu() - 0.1
    x[0, 0, :8] = torch.tensor([0.0, -0.0, 1e30, -1e30, 1e-40, -1e-40, float("inf"), -float("inf")])
    for values in (x, x.transpose(1, 2), x.double(), x[:, :, :1]):
        assert torch.equal(_sorted_places(values), values.sort(dim=-1, stable=True).indices)
