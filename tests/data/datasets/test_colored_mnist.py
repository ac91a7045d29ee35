"""Colored MNIST is DomainBed's, on made-up digits and on the real ones."""

from dataclasses import replace

import pytest
import torch

from afield.data.datasets.colored_mnist import colored_mnist
from afield.data.domains import ReadOptions
from afield.data.sources.mnist import read_mnist
from tests.data.datasets.digits import KINDS, assert_rate, root_of

COUNTS = {"made-up": (6_000, 1_001), "real": (60_000, 10_000)}
AGREE = {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """The root, and the domains that are made of its digits."""
    train, t10k = COUNTS[request.param]
    root = root_of(request.param, tmp_path_factory.mktemp("data"), train=train, t10k=t10k)
    dataset = colored_mnist(root)
    if request.param == "made-up":
        dataset = replace(dataset, sizes={})
    return root, dataset.load(ReadOptions(root))


def digits_of(root, domains):
    """The true digits of every domain, in the order of its samples."""
    _, labels = read_mnist(root)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return {name: labels[order[i::3]] for i, name in enumerate(domains)}


def colours(domain):
    return domain.x.flatten(2).any(dim=2).long().argmax(dim=1)


def test_it_is_what_domainbed_makes_of_its_seed_0(case):
    root, domains = case
    images, labels = read_mnist(root)
    torch.manual_seed(0)
    shuffle = torch.randperm(len(images))
    images, labels = images[shuffle], labels[shuffle]
    for i, (domain, e) in enumerate(zip(domains.values(), (0.1, 0.2, 0.9), strict=True)):
        y = (labels[i::3] < 5).float()
        y = (y - (torch.rand(len(y)) < 0.25).float()).abs()
        colour = (y - (torch.rand(len(y)) < e).float()).abs()
        x = torch.stack([images[i::3], images[i::3]], dim=1)
        x[torch.arange(len(x)), (1 - colour).long()] *= 0
        assert torch.equal(domain.x, x)
        assert torch.equal(domain.y, y.long())


def test_domains_are_of_equal_size_and_share_no_picture(case):
    root, domains = case
    sizes = [len(domain.y) for domain in domains.values()]
    assert max(sizes) - min(sizes) <= 1
    seen = [domain.x.sum(dim=1, dtype=torch.uint8).flatten(1) for domain in domains.values()]
    pictures = {bytes(row) for row in torch.cat(seen).numpy()}
    # No two digits are alike to the last pixel, so as many are left when each counts once.
    assert pictures == {bytes(row) for row in read_mnist(root)[0].flatten(1).numpy()}
    assert len(pictures) == sum(sizes)


def test_a_picture_has_one_colour(case):
    _, domains = case
    for domain in domains.values():
        assert domain.x.dtype == torch.uint8
        assert domain.x.shape[1:] == (2, 28, 28)
        assert (domain.x.flatten(2).any(dim=2).sum(dim=1) == 1).all()


def test_a_quarter_of_the_labels_is_wrong(case):
    root, domains = case
    for name, digits in digits_of(root, domains).items():
        assert_rate(domains[name].y != (digits < 5).long(), 0.25)


def test_colour_and_label_agree_as_often_as_the_name_says(case):
    _, domains = case
    assert tuple(domains) == tuple(AGREE)
    for name, share in AGREE.items():
        assert_rate(colours(domains[name]) == domains[name].y, share)


def test_given_the_label_the_colour_says_nothing_about_the_digit(case):
    root, domains = case
    for name, digits in digits_of(root, domains).items():
        domain = domains[name]
        for label in (0, 1):
            for digit in range(10):
                chosen = (domain.y == label) & (digits == digit)
                agree = AGREE[name]
                assert_rate(colours(domain)[chosen] == label, agree)


def test_it_is_declared_and_trained_as_in_domainbed(tmp_path):
    dataset = colored_mnist(tmp_path)
    assert list(dataset.sizes.values()) == [len(range(i, 70_000, 3)) for i in range(3)]
    assert dataset.classes == ("5-9", "0-4")
