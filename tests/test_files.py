"""Files are written completely or not at all, and their digests follow their contents."""

import errno
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import Timeout

from afield import files
from afield.errors import DataError, SpecError
from afield.files import (
    acquire_lock,
    atomic_write,
    check_output,
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


def left(path, process, suffix=".part", space=None):
    """The temporary path of a process on this machine."""
    space = files._namespace() if space is None else space
    return path.with_name(f"{path.name}.{files._machine()}-{space}-{process}-0123abcd{suffix}")


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
    with pytest.raises(FileExistsError), atomic_write(path, folder=True) as part:
        part.mkdir()
    assert [each.name for each in path.iterdir()] == ["old"]
    with atomic_write(path, folder=True) as part:
        (part / "new").write_text("")
        assert (path / "old").exists()
    assert [each.name for each in path.iterdir()] == ["new"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_process_left_is_cleared_away_but_not_what_others_write(tmp_path):
    dead, living = left(tmp_path / "file", 999999999), left(tmp_path / "file", os.getppid())
    for leftover in (dead, living):
        leftover.write_text("")
    with atomic_write(tmp_path / "file") as part:
        part.write_text("")
    assert not dead.exists()
    assert living.exists()


def test_the_temporary_path_lies_beside_the_target_and_names_the_process(tmp_path):
    with atomic_write(tmp_path / "file.txt") as part:
        assert part.parent == tmp_path
        assert re.fullmatch(rf"file\.txt\.\w+-\d+-{os.getpid()}-\w+\.part", part.name)
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
    with atomic_write(path, durable=durable, folder=True) as part:
        (part / "sub").mkdir()
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
with files.atomic_write(path, folder=True) as part:
    (part / "new").write_text("")
    if sys.argv[2] == "writing":
        os.kill(os.getpid(), 9)
"""


def replace_folder(path, name):
    with atomic_write(path, folder=True) as part:
        (part / name).write_text("")


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
    path, aside = tmp_path / "model", left(tmp_path / "model", 999999999, ".old")
    folder_with_a_file(aside, "old")
    with pytest.raises(FileExistsError), atomic_write(path, folder=True) as part:
        part.mkdir()
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
    aside = left(tmp_path / "model", os.getppid(), ".old")
    folder_with_a_file(aside, "old")
    restore_folder(tmp_path / "model")
    assert [each.name for each in tmp_path.iterdir()] == [aside.name]


def test_the_reason_names_a_read_only_file_system_or_missing_permission(tmp_path, monkeypatch):
    for flags, code in ((os.ST_RDONLY | os.ST_NOSUID, errno.EROFS), (os.ST_NOSUID, errno.EACCES)):
        monkeypatch.setattr(os, "statvfs", lambda _, flags=flags: SimpleNamespace(f_flag=flags))
        assert unwritable_reason(tmp_path) == os.strerror(code)


def test_only_what_dead_writers_left_is_removed(tmp_path):
    living = left(tmp_path / "b", os.getppid())
    dead = [left(tmp_path / "a", 999999999), left(tmp_path / "d", 999999999, ".old")]
    for path in (living, *dead, tmp_path / "c.part"):
        path.touch()
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == [living, tmp_path / "c.part"]


def test_another_container_shows_that_it_lives_by_its_lock(tmp_path):
    """As a process with its own namespace of process numbers, in which it is number 1."""
    path = left(tmp_path / "file", 1, space=1)
    path.touch()
    remove_abandoned(tmp_path)
    assert path.exists(), "its writer may have yet to lock it"
    os.utime(path, (0, time.time() - 2 * files.UNLOCKED_SECONDS))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_abandoned(tmp_path)
        assert path.exists()
    remove_abandoned(tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("name", ["file.0a0a0a-1-1-0a0a0a0a.part", "file.1234.part"])
def test_what_another_machine_left_goes_after_a_day(tmp_path, name):
    """Or an earlier version of afield, whose names had the process alone."""
    path = tmp_path / name
    path.touch()
    for days, stays in ((0.9, True), (1.1, False)):
        os.utime(path, (0, time.time() - days * files.ABANDONED_SECONDS))
        remove_abandoned(tmp_path)
        assert path.exists() == stays


def test_a_folder_of_another_machine_is_as_old_as_its_newest_file(tmp_path):
    folder = tmp_path / "model.0a0a0a-1-1-0a0a0a0a.part"
    folder_with_a_file(folder, "weights")
    os.utime(folder, (0, 0))
    remove_abandoned(tmp_path)
    assert folder.exists()


def test_a_temporary_file_is_locked_while_it_is_written(tmp_path):
    for folder in (False, True):
        with atomic_write(tmp_path / f"{folder}", folder=folder) as part:
            assert files._is_locked(part)
        assert files._is_locked(tmp_path / f"{folder}") is False


def test_a_long_name_is_shortened_in_its_temporary_name(tmp_path):
    path = tmp_path / ("ü" * 120 + ".html")
    with atomic_write(path) as part:
        part.write_text("all")
    assert path.read_text() == "all"


@pytest.fixture
def null(tmp_path):
    """A device like /dev/null; only root can make one."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")
    return path


def test_a_device_stays_a_device(null):
    check_output(null)
    with atomic_write(null) as part:
        part.write_text("gone")
    assert stat.S_ISCHR(null.stat().st_mode)
    link = null.with_name("link")
    link.symlink_to(null)
    with atomic_write(link) as part:
        part.write_text("gone")
    assert link.is_symlink()
    assert sorted(path.name for path in null.parent.iterdir()) == ["link", "null"]


def test_a_pipe_gets_the_whole_content(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_output(pipe)
    with atomic_write(pipe) as part:
        part.write_text("all")
    reader.join(HANG_SECONDS)
    assert read == ["all"]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "not the name of a file"),
        ("..", "not the name of a file"),
        ("folder", "is a folder"),
        ("file", "exists already.*--force"),
        ("dangling", "exists already.*--force"),
        ("socket", "is a disk or a socket"),
        ("file/below", "file is a file"),
    ],
)
def test_an_output_never_destroys_anything(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("thesis")
    Path("dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
    with pytest.raises(SpecError, match=why):
        check_output(Path(name))
    check_output(Path("file"), overwrite=True)
    check_output(Path("new/file"))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.raises(OSError, match="refuses locks") as caught:
        acquire_lock(tmp_path / "lock")
    assert caught.value.errno == code
    with atomic_write(tmp_path / "file") as part:
        part.write_text("")


def test_a_lock_is_held_until_it_is_released(tmp_path):
    lock = acquire_lock(tmp_path / "lock")
    with pytest.raises(Timeout):
        acquire_lock(tmp_path / "lock", wait=False)
    lock.release()
    acquire_lock(tmp_path / "lock", wait=False).release()
