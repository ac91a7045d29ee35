"""Colored digits: every share holds exactly, and no digit is in two domains."""

from pathlib import Path

import pytest
import torch

from afield.data.datasets import colored_digits as small
from afield.data.datasets import colored_mnist_irm as large
from afield.data.datasets.colored_digits import COPIES, colored_digits
from afield.data.domains import ReadOptions
from afield.networks.backbone import network

AGREE = {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}


@pytest.fixture(scope="module")
def domains():
    return colored_digits.load(ReadOptions(Path()))


def colors(domain):
    return domain.x.flatten(2).any(dim=2).long().argmax(dim=1)


def test_every_digit_has_each_share_exactly(domains):
    for name, domain in domains.items():
        agrees = (colors(domain) == domain.y).view(-1, COPIES).float()
        label = domain.y.view(-1, COPIES)
        majority = label.float().mean(dim=1).round()
        flipped = label != majority[:, None]
        assert (flipped.float().mean(dim=1) == 0.25).all()
        assert torch.allclose(agrees.mean(dim=1), torch.tensor(AGREE[name]))
        # Whether the class is flipped says nothing about the color.
        of_flipped = agrees[flipped].view(len(label), -1).mean(dim=1)
        assert torch.allclose(of_flipped, torch.tensor(AGREE[name]))


def test_no_digit_is_in_two_domains_and_every_sample_has_one_color(domains):
    shapes = []
    for domain in domains.values():
        assert (domain.x.flatten(2).any(dim=2).sum(dim=1) == 1).all()
        pictures = domain.x.sum(dim=1, dtype=torch.uint8).flatten(1)
        shapes.append({bytes(row) for row in pictures.numpy()})
    assert sum(map(len, shapes)) == len(set.union(*shapes)) == 1797


def test_the_classes_are_small_and_large_digits(domains):
    share = torch.cat([domain.y for domain in domains.values()]).float().mean()
    # 901 of 1,797 digits are below 5; a quarter of both classes is flipped.
    assert share == pytest.approx((0.75 * 901 + 0.25 * 896) / 1797, abs=1e-3)


def test_fishr_has_the_penalty_of_irm_as_a_sum_over_the_head(tmp_path):
    for module, dataset, shape in (
        (small, colored_digits, (2, 8, 8)),
        (large, large.colored_mnist_irm(tmp_path), (2, 14, 14)),
    ):
        head = network(dataset.training.backbone, shape, 2).head
        assert sum(weights.numel() for weights in head.parameters()) == module.HEAD_ENTRIES
        penalty = dataset.methods["fishr"]["fishr.penalty"] / module.HEAD_ENTRIES
        assert penalty == dataset.methods["irm"]["irm.penalty"]
