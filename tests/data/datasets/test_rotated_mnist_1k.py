"""The early rotated MNIST: the same digits at every angle."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from afield.data.datasets.rotated_mnist_1k import ANGLES, rotated_mnist_1k
from afield.data.domains import ReadOptions
from afield.data.sources.mnist import read_mnist, rotate_images
from afield.errors import DataError
from tests.data.datasets.digits import KINDS, RAW, made_up_mnist, root_of

COUNTS = {"made-up": (1_500, 20), "real": (60_000, 10_000)}


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """The root, and the domains that are made of its digits."""
    train, t10k = COUNTS[request.param]
    root = root_of(request.param, tmp_path_factory.mktemp("data"), train=train, t10k=t10k)
    return root, rotated_mnist_1k(root).load(ReadOptions(root))


def test_every_domain_has_100_of_each_digit(case):
    _, domains = case
    assert tuple(domains) == tuple(f"{angle}deg" for angle in ANGLES)
    for domain in domains.values():
        assert domain.y.bincount().tolist() == [100] * 10
        assert domain.x.shape == (1_000, 1, 28, 28)
        assert domain.x.dtype == torch.uint8


def test_the_same_digits_are_in_every_domain_turned_by_its_angle(case):
    _, domains = case
    upright = domains["0deg"]
    for angle, domain in zip(ANGLES, domains.values(), strict=True):
        assert torch.equal(domain.y, upright.y)
        assert torch.equal(domain.x[:, 0], rotate_images(upright.x[:, 0], angle))
    assert not torch.equal(domains["15deg"].x, upright.x)


def test_the_digits_are_of_the_training_part_and_no_one_comes_twice(case):
    root, domains = case
    images, labels = read_mnist(root, ["train"])
    known = {bytes(row): int(y) for row, y in zip(images.flatten(1).numpy(), labels, strict=True)}
    drawn = [bytes(row) for row in domains["0deg"].x.flatten(1).numpy()]
    assert len(set(drawn)) == 1_000
    assert [known[row] for row in drawn] == domains["0deg"].y.tolist()


def test_the_digits_are_drawn_and_not_the_first_ones(case):
    root, domains = case
    images, labels = read_mnist(root, ["train"])
    first = images[labels == 0][:100]
    drawn = domains["0deg"].x[domains["0deg"].y == 0, 0]
    assert not np.isin(first.sum(dim=(1, 2)), drawn.sum(dim=(1, 2))).all()


def test_the_test_part_is_not_needed(tmp_path):
    root = made_up_mnist(tmp_path, train=1_500, t10k=20)
    for file in (root / RAW).glob("t10k-*"):
        file.unlink()
    assert len(rotated_mnist_1k(root).load(ReadOptions(root))) == 6


def test_too_few_digits_are_reported(tmp_path):
    root = made_up_mnist(tmp_path, train=995, t10k=20)
    dataset = replace(rotated_mnist_1k(root), sizes={})
    with pytest.raises(DataError, match="99 images of the digit 5, but 100 are needed"):
        dataset.load(ReadOptions(root))
