"""Arrays as data: what is read, and what is refused in one line with the reason."""

import io
import os
import re
import zipfile

import numpy as np
import pytest
import torch

from afield.data.sources.arrays import array_dataset
from afield.errors import DataError
from tests.files import Trap, arrays, common, forbidden, npz, refusal

HALF = np.isin(np.arange(12), (0, 1, 4, 8, 11))


def test_arrays_are_read_domain_by_domain(tmp_path):
    content = arrays()
    dataset = array_dataset(npz(tmp_path, **content))
    assert (dataset.name, dataset.domains, dataset.classes) == (
        "mine",
        ("art", "photo"),
        ("0", "1", "2"),
    )
    assert dataset.training.backbone == "small:mlp"
    for name, domain in dataset.load().items():
        rows = content["domain"] == name
        assert torch.equal(domain.x, torch.from_numpy(content["X"][rows]))
        assert domain.y.tolist() == content["y"][rows].tolist()


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["cup", "jug", "cup", "ant"], ("ant", "cup", "jug")),
        ([b"cup", b"jug", b"cup", b"ant"], ("ant", "cup", "jug")),
        ([10, 9, 10, -1], ("-1", "9", "10")),
        ([True, False, True, True], ("False", "True")),
    ],
)
def test_labels_and_domains_may_be_names_or_numbers(tmp_path, labels, classes):
    labels = np.array(labels)
    file = npz(tmp_path, X=np.eye(8, 3), y=np.tile(labels, 2), domain=np.repeat([20, 7], 4))
    dataset = array_dataset(file)
    assert dataset.domains == ("7", "20")
    assert dataset.classes == classes
    for domain in dataset.load().values():
        written = [label.decode() if isinstance(label, bytes) else str(label) for label in labels]
        assert [classes[i] for i in domain.y] == written
        assert domain.y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_may_have_their_channels_first_or_last(tmp_path, dtype, channels):
    first = np.arange(12 * channels * 5 * 6).reshape(12, channels, 5, 6) % 251
    first = first.astype(dtype)
    both = []
    for x in (first, first.transpose(0, 2, 3, 1)):
        dataset = array_dataset(npz(tmp_path, **arrays(X=x)))
        assert dataset.training.backbone == "small:cnn"
        both.append(torch.cat([domain.x for domain in dataset.load().values()]))
    assert torch.equal(*both)
    assert torch.equal(both[0].double(), torch.from_numpy(first.astype(np.float64)))
    assert both[0].dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)


def test_pictures_without_channels_get_one(tmp_path):
    x = np.arange(12 * 5 * 6, dtype=np.uint8).reshape(12, 5, 6)
    loaded = array_dataset(npz(tmp_path, **arrays(X=x))).load()
    assert torch.equal(torch.cat([d.x for d in loaded.values()])[:, 0], torch.from_numpy(x))


def test_features_in_bytes_are_numbers_and_no_picture(tmp_path):
    loaded = array_dataset(npz(tmp_path, **arrays(X=np.ones((12, 4), np.uint8)))).load()
    assert loaded["art"].x.dtype == torch.float32


def with_value(value: float) -> np.ndarray:
    x = arrays()["X"]
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.arange(11) % 3}, r"unequal length \(X 12, y 11, domain 12\)"),
        ({"y": np.array(1)}, "unequal length"),
        ({"X": with_value(np.nan)}, r"NaN or infinity in X, 1 sample\(s\), first 7"),
        ({"X": with_value(np.inf)}, "NaN or infinity in X"),
        ({"domain": None}, "no array domain; it has X, y"),
        ({"X": None, "y": None}, "no array X, y; it has domain"),
        ({"y": np.array([0, "a"] * 6, dtype=object)}, "nothing is unpickled"),
        ({"domain": np.zeros(12, int)}, "only domain '0'"),
        ({"y": np.array(["cup"] * 12)}, "only class 'cup'"),
        ({"y": np.linspace(0, 1, 12)}, "y is float64 .* one integer or name per sample"),
        ({"y": np.eye(12, 3, dtype=int)}, r"y is int64 of shape \(12, 3\)"),
        ({"X": np.arange(12.0)}, r"X is float64 of shape \(12,\)"),
        ({"X": np.array(["a"] * 12)[:, None]}, "X is <U1"),
        ({"X": np.ones((12, 2), complex)}, "X is complex128"),
        ({name: value[:0] for name, value in arrays().items()}, "no samples"),
        ({"test": HALF[:11]}, r"unequal length \(X 12, y 12, domain 12, test 11\)"),
        ({"names": np.array(["a.png"])}, r"unequal length \(X 12, y 12, domain 12, names 1\)"),
        ({"test": HALF.astype(str)}, "test must be true or false for every sample"),
        ({"test": np.arange(12)}, "test must be true or false for every sample"),
        ({"test": HALF.astype(float)}, "test is float64"),
        ({"names": np.eye(12, dtype=int)}, r"names is int64 of shape \(12, 12\)"),
        ({"test": np.zeros(12, bool)}, "domain 'art' has no test samples; mark some"),
        ({"test": HALF | (np.arange(12) > 5)}, "domain 'photo' has only test samples"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_the_reason(tmp_path, changed, message):
    file = npz(tmp_path, **arrays(**changed))
    assert re.search(rf"mine\.npz: .*{message}", refusal(file))


def test_nothing_in_an_archive_is_ever_unpickled(tmp_path):
    trace = tmp_path / "trace"
    file = npz(tmp_path, **arrays(domain=np.array([Trap(trace)] * 12)))
    with pytest.raises(DataError):
        array_dataset(file)
    assert not trace.exists()
    np.load(file, allow_pickle=True)["domain"]
    assert trace.exists()


def test_the_fingerprint_of_an_archive_changes_with_a_single_number(tmp_path):
    before = array_dataset(npz(tmp_path, **arrays())).fingerprint
    assert array_dataset(npz(tmp_path, **arrays())).fingerprint == before != ""
    changed = npz(tmp_path, **arrays(X=with_value(0.0)))
    # Written within one tick of the file system's clock, it would look unchanged.
    os.utime(changed, (1, 1))
    assert array_dataset(changed).fingerprint != before


def test_an_archive_that_changes_after_it_was_opened_is_noticed(tmp_path):
    dataset = array_dataset(npz(tmp_path, **arrays()))
    npz(tmp_path, **arrays(y=np.arange(12) % 2))
    with pytest.raises(DataError, match="changed after it was opened"):
        dataset.load()


def packed() -> bytes:
    x = np.random.default_rng(0).random((400, 40))
    content = io.BytesIO()
    np.savez_compressed(content, X=x, y=np.arange(400) % 2, domain=np.arange(400) // 200)
    return content.getvalue()


def overwritten(content: bytes, start: int, new: bytes) -> bytes:
    return content[:start] + new + content[start + len(new) :]


def broken_archives() -> dict[str, bytes]:
    plain = io.BytesIO()
    np.savez(plain, **arrays())
    whole, compressed = plain.getvalue(), packed()
    entry = whole.index(b"PK\x01\x02")
    return {
        "a text": b"not a zip",
        "empty": b"",
        **{f"{share} of it": whole[: int(share * len(whole))] for share in (0.1, 0.5, 0.99)},
        "damaged": overwritten(compressed, compressed.index(b"X.npy") + 25, b"\xff" * 8),
        # Places in the header of a file in a zip archive: what is needed to unpack it, its flags.
        "from the future": overwritten(whole, entry + 6, bytes([200])),
        "with a password": overwritten(whole, entry + 8, bytes([1])),
    }


@pytest.mark.parametrize("content", broken_archives().values(), ids=broken_archives())
def test_a_file_that_is_no_readable_archive_is_refused(tmp_path, content):
    (tmp_path / "mine.npz").write_bytes(content)
    assert "mine.npz: not an .npz" in refusal(tmp_path / "mine.npz")


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "mine.npy", np.eye(4))
    assert "no array X, y, domain; it has no named arrays" in refusal(tmp_path / "mine.npy")


def test_an_array_that_claims_to_be_huge_is_refused(tmp_path):
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**13, 4)}
    claim = io.BytesIO()
    np.lib.format.write_array_header_1_0(claim, header)
    file = npz(tmp_path, **arrays(X=None))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("X.npy", claim.getvalue())
    assert "mine.npz: broken, or too large for the memory (Unable to" in refusal(file)


def test_an_archive_that_may_not_be_read_is_named():
    with common() as folder, forbidden(file := npz(folder, **arrays())):
        assert refusal(file) == f"{file}: cannot be read (Permission denied)"


def test_numbers_too_large_for_half_the_digits_are_reported(tmp_path):
    file = npz(tmp_path, **arrays(X=np.full((12, 4), 1e300)))
    assert refusal(file).startswith("mine: domain 'art': NaN or infinity in sample 0")


def test_arrays_of_the_other_byte_order_are_read(tmp_path):
    x = arrays()["X"].astype(">f4")
    assert array_dataset(npz(tmp_path, **arrays(X=x))).load()["art"].x.shape == (6, 4)


def test_a_domain_of_one_sample_is_refused_when_it_is_read(tmp_path):
    domain = np.array(["art"] * 11 + ["photo"])
    message = refusal(npz(tmp_path, **arrays(domain=domain)))
    assert message == "mine: domain 'photo': 1 sample(s); training and validation need at least two"


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64])
def test_an_archive_may_mark_test_samples(tmp_path, kind):
    content = arrays(test=HALF.astype(kind))
    for name, domain in array_dataset(npz(tmp_path, **content)).load().items():
        assert domain.test.dtype == torch.bool
        assert domain.test.tolist() == HALF[content["domain"] == name].tolist()


@pytest.mark.parametrize("kind", ["U", "S"])
def test_an_archive_may_name_its_samples(tmp_path, kind):
    names = np.array([f"{i}.png" for i in range(12)]).astype(kind)
    content = arrays(names=names, domain=np.array(["art", "photo"] * 6))
    loaded = array_dataset(npz(tmp_path, **content)).load()
    assert loaded["art"].names == [f"{i}.png" for i in range(0, 12, 2)]
    assert loaded["photo"].names == [f"{i}.png" for i in range(1, 12, 2)]
    for domain in loaded.values():
        assert [f"{int(x[0]) // 4}.png" for x in domain.x] == domain.names


def test_an_archive_without_them_has_no_test_samples_and_no_names(tmp_path):
    for domain in array_dataset(npz(tmp_path, **arrays())).load().values():
        assert domain.test is None
        assert not domain.names


def test_square_images_as_bytes_are_augmented_by_default(tmp_path):
    for shape, dtype, level in [
        ((4, 8, 8), np.uint8, "light"),
        ((4, 1, 8, 8), np.uint8, "light"),
        ((4, 1, 8, 9), np.uint8, None),
        ((4, 1, 8, 8), np.float32, None),
        ((4, 8), np.uint8, None),
    ]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npz"
        np.savez(path, X=np.zeros(shape, dtype), y=[0, 1, 0, 1], domain=[0, 0, 1, 1])
        assert array_dataset(path).training.augment == level
