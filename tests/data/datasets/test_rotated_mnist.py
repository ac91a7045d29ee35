"""Rotated MNIST is DomainBed's, on made-up digits and on the real ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from afield.data.cache import cache_root
from afield.data.datasets.rotated_mnist import ANGLES, rotated_mnist
from afield.data.domains import ReadOptions
from afield.data.sources.mnist import read_mnist
from tests.data.datasets.digits import KINDS, RAW, made_up_mnist, root_of

COUNTS = {"made-up": (50, 13), "real": (60_000, 10_000)}
SAMPLES = 40


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """The root, and the domains that are made of its digits."""
    train, t10k = COUNTS[request.param]
    root = root_of(request.param, tmp_path_factory.mktemp("data"), train=train, t10k=t10k)
    dataset = rotated_mnist(root)
    if request.param == "made-up":
        dataset = replace(dataset, sizes={})
    return root, dataset.load(ReadOptions(root))


def dealt(root):
    """The digits shuffled as by DomainBed with its seed 0, and dealt out."""
    images, labels = read_mnist(root)
    torch.manual_seed(0)
    shuffle = torch.randperm(len(images))
    images, labels = images[shuffle], labels[shuffle]
    return [(images[i::6], labels[i::6]) for i in range(6)]


def test_the_digits_are_dealt_out_to_the_angles_as_in_domainbed(case):
    root, domains = case
    assert tuple(domains) == ("0deg", "15deg", "30deg", "45deg", "60deg", "75deg")
    for angle, domain, (images, labels) in zip(ANGLES, domains.values(), dealt(root), strict=True):
        assert domain.x.shape == (len(labels), 1, 28, 28)
        assert domain.x.dtype == torch.uint8
        assert torch.equal(domain.y, labels)
        for image, x in zip(images[:SAMPLES], domain.x[:SAMPLES, 0], strict=True):
            picture = Image.fromarray(image.numpy())
            expected = rotate(picture, angle, interpolation=InterpolationMode.BILINEAR, fill=(0,))
            assert np.array_equal(x, np.asarray(expected))


def test_every_digit_is_in_one_domain(case):
    root, domains = case
    images, labels = read_mnist(root)
    result = torch.cat([domain.y for domain in domains.values()])
    assert torch.equal(result.bincount(), labels.bincount())
    # Turned or not, a digit that does not reach the frame has nearly the same ink.
    ink = torch.cat([domain.x.flatten(1).sum(1) for domain in domains.values()]).sort().values
    assert (ink / images.flatten(1).sum(1).sort().values - 1).abs().max() < 0.02


def test_it_is_made_once_and_anew_when_the_files_change(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    root = made_up_mnist(tmp_path, train=50, t10k=13)
    dataset = replace(rotated_mnist(root), sizes={})
    dataset.load(ReadOptions(root))
    (kept,) = cache_root().glob("MNIST-*/x0.npy")
    made = kept.stat().st_mtime_ns
    dataset.load(ReadOptions(root))
    assert kept.stat().st_mtime_ns == made
    for file in (root / RAW).iterdir():
        file.unlink()
    (root / RAW).rmdir()
    (root / "MNIST").rmdir()
    made_up_mnist(root, train=60, t10k=13)
    assert len(dataset.load(ReadOptions(root))["0deg"].y) == 13


def test_the_declared_sizes_are_those_of_70000_digits(tmp_path):
    sizes = rotated_mnist(tmp_path).sizes
    assert list(sizes.values()) == [len(range(i, 70_000, 6)) for i in range(6)]
