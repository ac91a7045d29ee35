import torch

from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.head_derivatives import gradient, with_bias
from afield.training.methods.hutchinson import Hutchinson
from tests.training.methods.references import unequal


def test_many_draws_converge_to_the_diagonals_in_closed_form(model, task, stream):
    torch.manual_seed(0)
    outputs = forward(Hutchinson().setup(model, task), unequal(next(stream)))
    columns = (with_bias(outputs.features), outputs.logits, outputs.y)
    domains = list(zip(*map(outputs.by_domain, columns), strict=True))
    slopes = torch.stack([gradient(*own) for own in domains])
    exact = Hutchinson(draws=0).curvatures(domains, slopes)
    errors = []
    for draws in (100, 10_000):
        result = Hutchinson(draws=draws).curvatures(domains, slopes)
        errors.append([(a - b).norm() / b.norm() for a, b in zip(result, exact, strict=True)])
    for few, many in zip(*errors, strict=True):
        assert many < 0.05
        assert 4 < few / many < 25


def test_signs_are_even_and_independent():
    torch.manual_seed(0)
    signs = Hutchinson(draws=2000).z(2, torch.zeros(1, 3, 5))
    assert signs.shape == (4000, 15)
    assert signs.abs().eq(1).all()
    # The mean products of pairs of columns are those of independent signs, up to 1/√4000 each.
    assert (signs.T @ signs / 4000 - torch.eye(15)).abs().max() < 5 / 4000**0.5
    assert signs.mean(dim=0).abs().max() < 5 / 4000**0.5
