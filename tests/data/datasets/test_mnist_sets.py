"""What the datasets that are made of MNIST have in common, on made-up digits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from afield.data.datasets.colored_mnist import colored_mnist
from afield.data.datasets.rotated_mnist import rotated_mnist
from afield.data.datasets.rotated_mnist_1k import rotated_mnist_1k
from afield.data.domains import ReadOptions
from afield.errors import DataError
from tests.data.datasets.digits import RAW, made_up_mnist
from tests.messages import message_of


@pytest.mark.parametrize("declared", [colored_mnist, rotated_mnist, rotated_mnist_1k])
def test_without_files_the_error_says_what_to_do(tmp_path, declared):
    dataset = declared(tmp_path)
    message = message_of(DataError, dataset.load, ReadOptions(tmp_path))
    first = tmp_path / RAW / "train-images-idx3-ubyte.gz"
    advice = f"is missing; `afield data get {dataset.name}` downloads it"
    assert message.startswith(f"{dataset.name}: {first} {advice}")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (colored_mnist, "has 21 samples, not 23334"),
        (rotated_mnist, "domain '0deg' has 11 samples, not 11667"),
    ],
)
def test_another_number_of_digits_is_reported(tmp_path, declared, message):
    root = made_up_mnist(tmp_path, train=50, t10k=13)
    with pytest.raises(DataError, match=message):
        declared(root).load(ReadOptions(root))


@pytest.mark.parametrize("declared", [colored_mnist, rotated_mnist, rotated_mnist_1k])
def test_it_is_the_same_whatever_was_drawn_before(tmp_path, monkeypatch, declared):
    root = made_up_mnist(tmp_path, train=1_500, t10k=20)
    dataset = replace(declared(root), sizes={})
    first = dataset.load(ReadOptions(root))
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002  what a user may have done
    again = dataset.load(ReadOptions(root))
    assert all(torch.equal(again[name].x, first[name].x) for name in first)


@pytest.mark.parametrize("declared", [colored_mnist, rotated_mnist])
def test_it_is_trained_as_in_domainbed(tmp_path, declared):
    training = declared(tmp_path).training
    assert (training.steps, training.every, training.batch) == (5000, 100, 64)
    assert (training.lr, training.weight_decay) == (1e-3, 0.0)
    assert training.backbone == "small:mnist_cnn"
