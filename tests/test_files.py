import os

import pytest

from afield.files import atomic_write


def half_written(part):
    part.write_text("half")
    (part / "more").mkdir()


def test_a_file_is_there_at_the_end(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as part:
        part.write_text("all")
        assert not path.exists()
    assert path.read_text() == "all"
    assert [each.name for each in path.parent.iterdir()] == ["file.txt"]


def test_what_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(NotADirectoryError), atomic_write(tmp_path / "new" / "file.txt") as part:
        half_written(part)
    assert not list(tmp_path.iterdir())


def test_a_folder_takes_the_place_of_another(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "old").write_text("")
    with atomic_write(path) as part:
        part.mkdir()
        (part / "new").write_text("")
        assert (path / "old").exists()
    assert [each.name for each in path.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_folder_stays_as_it_is_when_the_new_one_fails(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "old").write_text("")
    with pytest.raises(NotADirectoryError), atomic_write(path) as part:
        half_written(part)
    assert [each.name for each in path.iterdir()] == ["old"]


def test_what_a_killed_process_left_is_cleared_away_but_not_what_others_write(tmp_path):
    dead, living = tmp_path / "file.999999999.part", tmp_path / f"file.{os.getppid()}.part"
    for leftover in (dead, living):
        leftover.write_text("")
    with atomic_write(tmp_path / "file") as part:
        part.write_text("")
    assert not dead.exists()
    assert living.exists()
