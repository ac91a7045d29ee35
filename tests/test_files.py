"""Files are written completely or not at all, and their digests follow their contents."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from afield import files
from afield.errors import DataError
from afield.files import (
    atomic_write,
    check_regular_file,
    escape_markdown,
    file_digest,
    guard_formula,
    remove_abandoned,
    restore_folder,
    sha256,
    unwritable_reason,
)
from tests.waiting import HANG_SECONDS


def folder_with_a_file(path, name):
    path.mkdir()
    (path / name).write_text("")


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


def test_a_folder_takes_the_place_of_another_unless_it_fails(tmp_path):
    path = tmp_path / "model"
    folder_with_a_file(path, "old")
    with pytest.raises(NotADirectoryError), atomic_write(path) as part:
        half_written(part)
    assert [each.name for each in path.iterdir()] == ["old"]
    with atomic_write(path) as part:
        folder_with_a_file(part, "new")
        assert (path / "old").exists()
    assert [each.name for each in path.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_process_left_is_cleared_away_but_not_what_others_write(tmp_path):
    dead, living = tmp_path / "file.999999999.part", tmp_path / f"file.{os.getppid()}.part"
    for leftover in (dead, living):
        leftover.write_text("")
    with atomic_write(tmp_path / "file") as part:
        part.write_text("")
    assert not dead.exists()
    assert living.exists()


def test_the_temporary_path_lies_beside_the_target_and_names_the_process(tmp_path):
    with atomic_write(tmp_path / "file.txt") as part:
        assert part == tmp_path / f"file.txt.{os.getpid()}.part"
        part.write_text("")


def test_any_exception_removes_the_temporary_file(tmp_path):
    def write_half(part, kind):
        part.write_text("half")
        raise kind

    path = tmp_path / "file.txt"
    path.write_text("old")
    for kind in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(kind), atomic_write(path) as part:
            write_half(part, kind)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("durable", [False, True])
def test_only_what_is_durable_is_flushed_and_that_before_the_rename(tmp_path, monkeypatch, durable):
    path, flushed = tmp_path / "model", []

    def flush(number):
        flushed.append(Path(f"/proc/self/fd/{number}").readlink())
        assert not path.exists()

    monkeypatch.setattr(files.os, "fsync", flush)
    with atomic_write(path, durable=durable) as part:
        (part / "sub").mkdir(parents=True)
        (part / "a").write_text("")
        (part / "sub" / "b").write_text("")
    expected = [part / "a", part / "sub" / "b"]
    assert sorted(flushed) == (expected if durable else [])


def test_missing_parents_are_an_error_where_they_are_not_to_be_made(tmp_path):
    path = tmp_path / "new" / "file"
    with pytest.raises(FileNotFoundError), atomic_write(path, parents=False) as part:
        part.write_text("")
    assert not list(tmp_path.iterdir())


def test_threads_do_not_disturb_each_other(tmp_path):
    path, both = tmp_path / "file", threading.Barrier(2)
    failed = []

    def write(text):
        try:
            with atomic_write(path) as part:
                part.write_text(text)
                both.wait(HANG_SECONDS)
        except Exception as error:  # noqa: BLE001  reported below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_text() in ("a", "b")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def killed(script, *arguments):
    done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=False)
    assert done.returncode == -signal.SIGKILL


KILLED = """
import os, sys
from pathlib import Path
from afield import files
path = Path(sys.argv[1])
if sys.argv[2] == "renaming":
    files._remove = lambda path: os.kill(os.getpid(), 9)
with files.atomic_write(path) as part:
    part.mkdir()
    (part / "new").write_text("")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), 9)
"""


def replace_folder(path, name):
    with atomic_write(path) as part:
        folder_with_a_file(part, name)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "content"), [("writing", "old"), ("renaming", "new")])
def test_a_folder_is_complete_however_its_writer_is_killed(tmp_path, moment, content):
    path = tmp_path / "model"
    folder_with_a_file(path, "old")
    killed(KILLED, path, moment)
    assert [each.name for each in path.iterdir()] == [content]
    assert len(list(tmp_path.iterdir())) == 2
    replace_folder(path, "newest")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    assert [each.name for each in path.iterdir()] == ["newest"]


def test_a_folder_is_back_after_a_kill_between_two_renames(tmp_path):
    """Only where the system cannot exchange two folders in one step."""
    path, aside = tmp_path / "model", tmp_path / "model.999999999.old"
    folder_with_a_file(aside, "old")
    with pytest.raises(NotADirectoryError), atomic_write(path) as part:
        half_written(part)
    assert (path / "old").exists()
    assert not aside.exists()
    replace_folder(path, "new")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["none", "."])
def test_a_file_without_a_digest_is_named(tmp_path, name):
    with pytest.raises(DataError, match=r"cannot be read \("):
        file_digest(tmp_path / name)


def test_a_digest_follows_the_contents_and_not_the_name(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"one")
    second.write_bytes(b"one")
    before = file_digest(first)
    assert before == sha256(first)[:16]
    assert file_digest(second) == before
    # As long, and written at once: the time of a change is not looked at alone.
    first.write_bytes(b"two")
    os.utime(first, ns=(0, second.stat().st_mtime_ns + 1))
    assert file_digest(first) != before


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        check_regular_file(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe.*not a regular file"):
        file_digest(tmp_path / "pipe")


def test_only_text_that_starts_a_formula_is_quoted():
    cells = ["=1+1", "+1", "-x", "@a", "a=b", "", -1.5, None]
    assert [guard_formula(cell) for cell in cells] == [
        *("'=1+1", "'+1", "'-x", "'@a", "a=b", ""),
        *(-1.5, None),
    ]


def test_a_name_in_markdown_is_one_line_without_markup():
    assert escape_markdown("a\n| b <i>[x](y)`") == r"a \| b &lt;i&gt;\[x](y)\`"


def test_folders_are_exchanged_in_one_step_or_by_two_renames(tmp_path, monkeypatch):
    for possible in (True, False):
        if not possible:
            monkeypatch.setattr(files, "_exchange", lambda *_: False)
        path = tmp_path / str(possible) / "model"
        replace_folder(path, "old")
        replace_folder(path, "new")
        assert [each.name for each in path.iterdir()] == ["new"]
        assert [each.name for each in path.parent.iterdir()] == ["model"]


def test_a_folder_of_a_writer_that_lives_is_not_renamed_back(tmp_path):
    aside = tmp_path / f"model.{os.getppid()}.old"
    folder_with_a_file(aside, "old")
    restore_folder(tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == [aside.name]


def test_the_reason_names_a_read_only_file_system_or_missing_permission(tmp_path, monkeypatch):
    for flags, code in ((os.ST_RDONLY | os.ST_NOSUID, errno.EROFS), (os.ST_NOSUID, errno.EACCES)):
        monkeypatch.setattr(os, "statvfs", lambda _, flags=flags: SimpleNamespace(f_flag=flags))
        assert unwritable_reason(tmp_path) == os.strerror(code)


def test_only_what_dead_writers_left_is_removed(tmp_path):
    for name in ("a.999999999.part", f"b.{os.getppid()}.part", "c.part", "d.999999999.old"):
        (tmp_path / name).touch()
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"b.{os.getppid()}.part", "c.part"]
