"""EFDMix: what it does beyond MixStyle. Common behavior: test_mixstyle.py."""

import torch

from afield.training.methods.efdmix import EFDMix
from afield.training.methods.mixstyle import MixStyle


def test_it_matches_every_moment_and_mixstyle_only_two():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 8, 8, generator=generator)
    x[1] = x[1].exp()  # skewed, unlike the first sample
    none, swapped = torch.zeros(2), torch.tensor([1, 0])

    def moments(maps, power):
        values = maps.flatten(2)
        return (values - values.mean(dim=2, keepdim=True)).pow(power).mean(dim=2)

    exact, two = (kind().mix(x, none, swapped, 1) for kind in (EFDMix, MixStyle))
    for power in (2, 3, 4):
        torch.testing.assert_close(moments(exact, power)[0], moments(x, power)[1])
    torch.testing.assert_close(moments(two, 2)[0], moments(x, 2)[1], rtol=1e-3, atol=1e-3)
    assert (moments(two, 3)[0] - moments(x, 3)[1]).abs().min() > 0.1
