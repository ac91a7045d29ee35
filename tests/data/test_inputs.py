"""What goes into a model in use is what goes into it in evaluation, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from afield.data.domains import ReadOptions
from afield.data.inputs import Inputs
from afield.data.log_mel import LogMel
from afield.data.lookup import find_dataset
from afield.data.modalities.audio import Audio
from afield.data.modalities.image import Image
from afield.errors import DataError, SpecError
from tests.files import noise, saved, words

PLAIN = Inputs("arrays", "float32", (4,), (0.0,), (1.0,))
BYTES = Inputs("arrays", "uint8", (1, 8, 8), (127.5,), (127.5,))


def pictures(size: int = 16) -> Inputs:
    side = Image().stored_side(size)
    return Inputs("pictures", "uint8", (3, side, side), (127.5,), (127.5,), size=size)


def decoded(inputs: Inputs, files: list[Path]) -> torch.Tensor:
    (batch,) = inputs.modality.read_batches(inputs, files, len(files))
    return batch.x


def test_pictures_are_decoded_as_the_cache_does(two_colours):
    domains = find_dataset(two_colours).load(ReadOptions(two_colours, side=Image().stored_side(16)))
    inputs = pictures(16)
    for domain in domains.values():
        rows = decoded(inputs, [two_colours / name for name in domain.names])
        assert torch.equal(rows, domain.x)
        # Some kernels depend on how samples lie in memory.
        assert rows.stride() == domain.x.stride()


def test_sounds_are_decoded_as_the_cache_does(tmp_path):
    for number in range(2):
        words(tmp_path / "root")
        (tmp_path / "root" / "ann" / "no" / "0.wav").replace(
            tmp_path / "root" / "ann" / "no" / f"{number + 1}.wav"
        )
    words(tmp_path / "root")
    dataset = find_dataset(tmp_path / "root")
    assert dataset.modality == Audio()
    inputs = Inputs("sounds", "float16", (1, 40, 98), (0.0,), (1.0,), mel=LogMel())
    for domain in dataset.load().values():
        files = [tmp_path / "root" / name for name in domain.names]
        assert torch.equal(decoded(inputs, files), domain.x)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (np.zeros((5, 8, 8), np.uint8), (5, 1, 8, 8)),
        (np.zeros((5, 8, 8, 1), np.uint8), (5, 1, 8, 8)),
        (np.full((5, 1, 8, 8), 255.0), (5, 1, 8, 8)),
        (torch.zeros(5, 1, 8, 8, dtype=torch.int64), (5, 1, 8, 8)),
    ],
)
def test_arrays_of_pictures_come_in_several_forms(given, shape):
    result = BYTES.from_array(given)
    assert tuple(result.shape) == shape
    assert result.dtype == torch.uint8


@pytest.mark.parametrize(
    ("inputs", "given", "message"),
    [
        (PLAIN, np.zeros((5, 3)), r"shape \(3,\); give numbers, samples × 4"),
        (PLAIN, np.zeros(4), r"shape \(4,\)"),
        (PLAIN, np.zeros((0, 4)), "give numbers"),
        (PLAIN, np.array([["a"] * 4]), "give numbers"),
        (PLAIN, np.array([[0, 0, np.nan, 0]]), "NaN or infinity in sample 0"),
        (BYTES, np.full((1, 8, 8), 0.5), "not integers from 0 to 255"),
        (BYTES, np.full((1, 8, 8), 256.0), "not integers from 0 to 255"),
        (BYTES, np.full((1, 8, 8), -1.0), "not integers from 0 to 255"),
    ],
)
def test_arrays_that_do_not_fit_are_reported(inputs, given, message):
    with pytest.raises(DataError, match=message):
        inputs.from_array(given)


@pytest.mark.parametrize("name", ["X", "x", "anything"])
def test_an_archive_may_call_its_only_array_as_it_likes(tmp_path, name):
    np.savez(tmp_path / "some.npz", **{name: np.ones((3, 4))})
    x, names = PLAIN.read_array_file(tmp_path / "some.npz")
    assert x.shape == (3, 4)
    assert names == [f"{tmp_path}/some.npz[{i}]" for i in range(3)]


def test_names_in_an_archive_are_used(tmp_path):
    np.savez(tmp_path / "some.npz", X=np.ones((2, 4)), y=np.zeros(2), names=["ann", "bob"])
    assert PLAIN.read_array_file(tmp_path / "some.npz")[1][1] == f"{tmp_path}/some.npz[bob]"


def test_a_plain_array_file_is_read(tmp_path):
    np.save(tmp_path / "some.npy", np.ones((2, 4)))
    assert PLAIN.read_array_file(tmp_path / "some.npy")[0].shape == (2, 4)


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="nothing is unpickled"):
        PLAIN.read_array_file(tmp_path / "bad.npy")


def test_of_several_arrays_one_must_be_x(tmp_path):
    np.savez(tmp_path / "some.npz", a=np.ones((2, 4)), b=np.ones((2, 4)))
    with pytest.raises(DataError, match="has no array X, but a, b"):
        PLAIN.read_array_file(tmp_path / "some.npz")


def test_arrays_of_pictures_of_another_size_are_squeezed_as_files_are(tmp_path):
    inputs, image = pictures(), noise(40)
    expected = decoded(inputs, [saved(image, tmp_path / "a.png")])
    assert torch.equal(inputs.from_array(np.asarray(image)[None]), expected)


@pytest.mark.parametrize(
    "changed",
    [
        {"stored": ()},
        {"stored": (0,)},
        {"stored": (2**40,)},
        {"stored": (3, 2**15, 2**15)},
        {"size": -1},
        {"mean": (0.0, 1.0)},
        {"std": (0.0,)},
        {"std": (float("nan"),)},
        {"mean": (float("inf"),)},
        {"kind": "sounds"},
        {"mel": LogMel()},
    ],
)
def test_what_no_model_takes_is_refused(changed):
    with pytest.raises(SpecError):
        Inputs(**{**vars(PLAIN), **changed})


def test_a_network_sees_pictures_at_its_size_and_arrays_as_they_are():
    wide = Inputs("arrays", "uint8", (3, 10, 12), (0.0,), (1.0,), size=8)
    assert wide.shape == (3, 8, 8)
    assert Inputs("arrays", "uint8", (3, 10, 12), (0.0,), (1.0,)).shape == (3, 10, 12)
    assert Inputs("arrays", "float32", (5,), (0.0,), (1.0,), size=8).shape == (5,)
