"""CIFAR-10 in its binary form: one byte for the class, then the pixels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from afield.data.datasets.cifar10 import CLASSES, FILES, FOLDER, RECORD_BYTES, cifar10
from afield.data.domains import ReadOptions
from afield.errors import DataError
from tests.messages import message_of

EACH = 7


def records(count, *, seed):
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (count, RECORD_BYTES)).astype(np.uint8)
    made[:, 0] = rng.integers(0, 10, count)
    return made


@pytest.fixture
def root(tmp_path):
    """Files of seven pictures each."""
    (tmp_path / FOLDER).mkdir()
    for number, name in enumerate(name for names in FILES.values() for name in names):
        (tmp_path / name).write_bytes(records(EACH, seed=number).tobytes())
    return tmp_path


def loaded(root):
    return replace(cifar10, sizes={}).load(ReadOptions(root))


def test_the_parts_are_the_domains_and_pictures_come_in_the_order_of_the_files(root):
    domains = loaded(root)
    assert tuple(domains) == ("train", "test")
    expected = np.concatenate([records(EACH, seed=number) for number in range(5)])
    assert domains["train"].y.tolist() == expected[:, 0].tolist()
    assert domains["train"].x.dtype == torch.uint8
    assert np.array_equal(domains["train"].x.flatten(1), expected[:, 1:])
    assert np.array_equal(domains["test"].x.flatten(1), records(EACH, seed=5)[:, 1:])


def test_pixels_are_red_first_then_by_rows(root):
    picture = np.zeros((3, 32, 32), np.uint8)
    picture[0, 2, 5] = 200
    content = bytes([3]) + picture.tobytes()
    assert content[1 + 2 * 32 + 5] == 200
    (root / FOLDER / "test_batch.bin").write_bytes(2 * content)
    result = loaded(root)["test"]
    assert result.x.nonzero().tolist() == [[0, 0, 2, 5], [1, 0, 2, 5]]
    assert CLASSES[result.y[0]] == "cat"


@pytest.mark.parametrize(
    "content",
    [b"", bytes(RECORD_BYTES - 1), bytes(RECORD_BYTES + 1), b"\x0a" + bytes(RECORD_BYTES - 1)],
)
def test_a_file_that_holds_no_pictures_is_named(root, content):
    path = root / FOLDER / "data_batch_3.bin"
    path.write_bytes(content)
    message = message_of(DataError, loaded, root)
    assert message.startswith(f"{path}: its {len(content):,} bytes are not images")


def test_a_missing_file_and_another_number_of_pictures_are_reported(root):
    message = message_of(DataError, cifar10.load, ReadOptions(root))
    assert "domain 'train' has 35 samples, not 50000" in message
    path = root / FOLDER / "data_batch_4.bin"
    path.unlink()
    advice = f"{path} is missing; `afield data get cifar10` downloads it"
    assert advice in message_of(DataError, loaded, root)


def test_the_archive_is_the_binary_version():
    (archive,) = cifar10.download.archives
    assert archive.name == "cifar-10-binary.tar.gz"
