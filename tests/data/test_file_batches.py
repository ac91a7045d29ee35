import os
from pathlib import Path

import numpy as np
import pytest

from afield.data.file_batches import find_files
from afield.data.inputs import Inputs
from tests.files import noise, saved

PICTURE = Inputs("pictures", "uint8", (3, 18, 18), (127.5,), (127.5,), size=16)
ARRAY = Inputs("arrays", "float32", (4,), (0.0,), (1.0,))


def read_file_batches(inputs, files, size):
    return inputs.modality.read_batches(inputs, files, size)


def test_folders_are_gone_through_and_clutter_is_passed_over(tmp_path):
    for name in ("b.png", "a/deep/c.JPG", "a/.hidden.png", ".git/d.png", "e.txt", "Thumbs.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    result = find_files([tmp_path], PICTURE.modality.suffixes)
    assert [str(path.relative_to(tmp_path)) for path in result] == ["b.png", "a/deep/c.JPG"]


def test_a_file_that_is_named_is_taken_whatever_it_is_called(tmp_path):
    assert find_files([tmp_path / "e.txt", tmp_path], (".png",)) == [tmp_path / "e.txt"]


def test_a_link_in_a_circle_does_not_go_on_for_ever(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    saved(noise(), tmp_path / "a" / "b.png")
    assert len(find_files([tmp_path], (".png",))) == 1


@pytest.mark.parametrize("size", [1, 3, 64])
def test_every_file_comes_once_and_in_order(tmp_path, size):
    files = [saved(noise(20 + i), tmp_path / f"{i}.png") for i in range(8)]
    files[5].write_text("broken")
    result = list(read_file_batches(PICTURE, files, size))
    names = [name for portion in result for name in portion.names]
    errors = [error for portion in result for error in portion.errors]
    assert names == [str(file) for file in files]
    assert [bool(error) for error in errors] == [i == 5 for i in range(8)]
    assert sum(len(portion.x) for portion in result if portion.x is not None) == 7
    assert result[-1].files_done == 8
    assert max(len(portion.names) for portion in result) <= size


def test_stopping_early_leaves_no_thread_at_work(tmp_path):
    files = [saved(noise(), tmp_path / f"{i}.png") for i in range(40)]
    rows = read_file_batches(PICTURE, files, 4)
    next(rows)
    rows.close()


def test_reasons_are_short_and_do_not_repeat_the_path(tmp_path):
    (tmp_path / "a.png").write_text("text")
    (tmp_path / "b.png").write_text("")
    (tmp_path / "c.txt").write_text("text")
    files = [tmp_path / name for name in ("a.png", "b.png", "c.txt", "d.png")]
    (portion,) = read_file_batches(PICTURE, files, 9)
    assert portion.x is None
    assert all(error and str(tmp_path) not in error for error in portion.errors)
    assert portion.errors[2].endswith("(this model takes images (.png, .jpg, .jpeg, .bmp, .webp, "
                                      ".tif, .tiff))")  # fmt: skip
    assert portion.errors[3] == "no such file or folder"


def test_a_folder_that_may_not_be_read_stops_nothing(tmp_path):
    (portion,) = read_file_batches(PICTURE, [tmp_path], 9)
    assert portion.errors[0]


def test_array_files_are_cut_into_batches(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 4)))
    np.save(tmp_path / "b.npy", np.zeros((5, 3)))
    files = [tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy", Path("d.txt")]
    result = list(read_file_batches(ARRAY, files, 2))
    assert [len(portion.names) for portion in result] == [2, 2, 1, 1, 1, 1]
    assert result[2].names == [f"{tmp_path}/a.npy[4]"]
    assert [portion.files_done for portion in result] == [0, 0, 1, 2, 3, 4]
    assert "shape (3,)" in result[3].errors[0]
    assert result[4].errors == result[5].errors == ["no such file or folder"]


def test_a_pipe_is_named_and_not_waited_for(tmp_path):
    images = Inputs("pictures", "uint8", (3, 8, 8), (0.0,), (1.0,), size=8)
    arrays = Inputs("arrays", "float32", (2,), (0.0,), (1.0,))
    for inputs, name in ((images, "a.png"), (arrays, "a.npy")):
        os.mkfifo(tmp_path / name)
        (batch,) = read_file_batches(inputs, [tmp_path / name], 4)
        assert batch.x is None
        assert batch.errors[0]
