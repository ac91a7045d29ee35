"""MNIST's files are checked, whatever is in them, and digits are turned as torchvision does."""

import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from afield.data.sources.mnist import (
    MNIST_DOWNLOAD,
    PACKED_FILES,
    mnist_files,
    read_idx,
    read_mnist,
    rotate_images,
)
from afield.errors import DataError
from tests.data.datasets.digits import RAW, digits, idx, made_up_mnist, real_mnist
from tests.messages import message_of

PICTURES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def refusal(path):
    message = message_of(DataError, read_idx, path)
    assert message.startswith(f"{path}: ")
    assert message.endswith("; delete it and download it again")
    return message


@pytest.mark.parametrize("array", [PICTURES, PICTURES[0], PICTURES[0, 0], PICTURES[:0]])
@pytest.mark.parametrize("packed", [False, True])
def test_bytes_come_back_in_their_shape(tmp_path, array, packed):
    file = tmp_path / ("a.gz" if packed else "a")
    file.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    values = read_idx(file)
    assert values.dtype == np.uint8
    assert values.shape == array.shape
    assert (values == array).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing"),
        (b"\0\0\x08", "starts with 00 00 08"),
        (b"<html>not found</html>", "starts with 3c 68 74 6d"),
        (b"\0\0\x0d\x01" + bytes(20), "starts with 00 00 0d 01"),
        (b"\0\0\x08\x04" + bytes(40), "starts with 00 00 08 04"),
        (b"\0\0\x08\x03\0\0\0\x02\0\0", "ends in its header"),
        (idx(PICTURES)[:-1], "23 bytes instead of 24"),
        (idx(PICTURES) + b"!", "more bytes instead of 24"),
        (b"\0\0\x08\x03" + 12 * b"\xff", "declares 79,228,162,458,924,105,385,300,197,375 bytes"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused(tmp_path, content, message):
    plain, packed = tmp_path / "a", tmp_path / "a.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert message in refusal(plain)
    assert message in refusal(packed)


def test_a_packed_file_that_is_not_packed_or_damaged_is_refused(tmp_path):
    file = tmp_path / "a.gz"
    whole = gzip.compress(idx(PICTURES))
    for content in (idx(PICTURES), whole[:5], whole[: len(whole) // 2], whole[:-1]):
        file.write_bytes(content)
        assert "broken or truncated" in refusal(file)
    damaged = bytearray(gzip.compress(idx(digits(50, seed=0)[0])))
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    refusal(file)


def test_a_file_that_is_not_there_is_reported(tmp_path):
    assert "No such file" in refusal(tmp_path / "none")


@pytest.mark.parametrize("packed", [False, True])
def test_both_parts_are_read_one_after_the_other(tmp_path, packed):
    images, labels = read_mnist(made_up_mnist(tmp_path, train=7, t10k=3, packed=packed))
    expected = [digits(7, seed=0), digits(3, seed=1)]
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert np.array_equal(images, np.concatenate([x for x, _ in expected]))
    assert np.array_equal(labels, np.concatenate([y for _, y in expected]))


def test_one_part_does_not_need_the_other(tmp_path):
    root = made_up_mnist(tmp_path, train=7, t10k=3)
    for file in (root / RAW).glob("t10k-*"):
        file.unlink()
    images, labels = read_mnist(root, ["train"])
    assert (len(images), len(labels)) == (7, 7)
    assert all("train-" in name for name in mnist_files(root, ["train"]))


def test_files_are_packed_ones_unless_they_are_unpacked(tmp_path):
    made_up_mnist(tmp_path, train=7, t10k=3)
    first, *others = mnist_files(tmp_path)
    assert len(others) == 3
    assert all(name.endswith(".gz") and (tmp_path / name).exists() for name in (first, *others))
    (tmp_path / first).with_suffix("").write_bytes(idx(digits(7, seed=0)[0]))
    assert mnist_files(tmp_path) == (first.removesuffix(".gz"), *others)
    assert mnist_files(tmp_path / "empty") == (first, *others)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path):
    root = made_up_mnist(tmp_path, train=7, t10k=3, packed=False)
    labels = root / RAW / "t10k-labels-idx1-ubyte"
    for wrong in (np.zeros(4, np.uint8), np.array([0, 1, 10], np.uint8), np.zeros((3, 1), "u1")):
        labels.write_bytes(idx(wrong))
        with pytest.raises(DataError, match=r"t10k-labels.*not a digit for each of 3 images"):
            read_mnist(root)


def test_images_of_another_size_are_refused(tmp_path):
    root = made_up_mnist(tmp_path, train=7, t10k=3, packed=False)
    (root / RAW / "train-images-idx3-ubyte").write_bytes(idx(np.zeros((7, 28, 27), np.uint8)))
    with pytest.raises(DataError, match=r"train-images.*\(7, 28, 27\), not images of 28 × 28"):
        read_mnist(root)


@pytest.mark.parametrize("degrees", [0, 15, 30, 45, 60, 75])
def test_digits_are_turned_as_torchvision_turns_pictures(degrees):
    images = torch.from_numpy(np.random.default_rng(degrees).integers(0, 256, (20, 28, 28), "u1"))
    rotated = rotate_images(images, degrees)
    assert rotated.dtype == torch.uint8
    for image, one in zip(images, rotated, strict=True):
        picture = Image.fromarray(image.numpy())
        expected = rotate(picture, degrees, interpolation=InterpolationMode.BILINEAR, fill=(0,))
        assert np.array_equal(one, np.asarray(expected))


def test_a_turn_is_counter_clockwise_and_none_changes_nothing():
    marked = torch.zeros(1, 28, 28, dtype=torch.uint8)
    marked[0, 3:6, 20:23] = 255
    assert torch.equal(rotate_images(marked, 0), marked)
    row, column = (rotate_images(marked, 75)[0] > 128).nonzero().float().mean(0).tolist()
    # From the top right to the top left.
    assert row < 14
    assert column < 8
    assert rotate_images(marked[:0], 15).shape == (0, 28, 28)


def test_the_archives_are_the_four_files_and_land_where_they_are_looked_for(tmp_path):
    there = [f"{archive.folder}/{archive.name}" for archive in MNIST_DOWNLOAD.archives]
    assert tuple(there) == mnist_files(tmp_path)
    assert [archive.size for archive in MNIST_DOWNLOAD.archives] == [
        size for size, _ in PACKED_FILES.values()
    ]
    assert all(archive.mirrors[0].endswith(archive.name) for archive in MNIST_DOWNLOAD.archives)


def test_the_header_is_written_as_the_format_has_it():
    assert idx(PICTURES)[:8] == struct.pack(">II", 0x00000803, 2)


@pytest.mark.data
def test_the_real_digits_are_as_many_as_they_should_be():
    images, labels = read_mnist(real_mnist())
    assert images.shape == (70_000, 28, 28)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert labels[:60_000].bincount().tolist() == train
    assert labels[60_000:].bincount().tolist() == [
        *(980, 1135, 1032, 1010, 982),
        *(892, 958, 1028, 974, 1009),
    ]
