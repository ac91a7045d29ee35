"""Colored MNIST as in the IRM paper, on made-up digits and on the real ones."""

from dataclasses import replace

import pytest
import torch

from afield.data.datasets.colored_mnist_irm import colored_mnist_irm
from afield.data.domains import ReadOptions
from afield.data.sources.mnist import read_mnist
from afield.studies.settings import resolve_run
from tests.data.datasets.digits import KINDS, assert_rate, root_of

AGREE = {"+80%": 0.8, "+90%": 0.9, "-90%": 0.1}


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    count = {"made-up": 6_000, "real": 60_000}[request.param]
    root = root_of(request.param, tmp_path_factory.mktemp("data"), train=count, t10k=10)
    dataset = colored_mnist_irm(root)
    if request.param == "made-up":
        dataset = replace(dataset, sizes={})
    return root, count, dataset.load(ReadOptions(root))


def test_it_is_the_papers_construction(case):
    root, count, domains = case
    images, digits = read_mnist(root, ["train"])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    ends = 5 * count // 6
    for rows, (name, domain) in zip(
        (order[:ends:2], order[1:ends:2], order[ends:]), domains.items(), strict=True
    ):
        assert len(domain.y) == len(rows)
        assert torch.equal(domain.x.sum(dim=1, dtype=torch.uint8), images[rows][:, ::2, ::2])
        assert domain.x.shape[1:] == (2, 14, 14)
        assert_rate(domain.y != (digits[rows] < 5).long(), 0.25)
        shown = domain.x.flatten(2).any(dim=2).bool()
        colors = shown.long().argmax(dim=1)
        assert_rate((colors == domain.y)[shown.any(dim=1)], AGREE[name])


def test_the_default_settings_are_the_papers(tmp_path):
    dataset = colored_mnist_irm(tmp_path)
    run = resolve_run(dataset, "irm", dataset.without("-90%"))
    assert (run.batch, run.steps, run.backbone) == (0, 501, "small:irm_mlp")
    assert run.weight_decay == pytest.approx(0.0022, rel=0.01)
    assert run.params["penalty"] == 91_257
    assert round(run.params["warmup"] * run.steps) == 190
    assert not resolve_run(dataset, "erm", dataset.without("-90%")).params
    drawn = resolve_run(dataset, "irm", dataset.without("-90%"), draw=3)
    assert drawn.batch == 0
    assert drawn.params["penalty"] != 91_257
