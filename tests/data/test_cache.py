"""Decode once: an entry is whole or not there, and made anew exactly when the files change."""

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from afield.data import cache
from afield.data.cache import DecodedFiles, cache_arrays, cache_root, contents_digest, decode_files
from afield.data.domains import ReadOptions
from afield.data.sources.folders import folder_dataset
from afield.errors import DataError
from tests.files import common, forbidden, powerless, tree
from tests.messages import message_of
from tests.waiting import HANG_SECONDS

# Forked, everything is imported already; the children leave torch's own threads alone.
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork"
)


@pytest.fixture(autouse=True)
def place(own_cache):
    return own_cache


def numbers(root: Path, count: int = 6) -> list[Path]:
    """Files that each hold their number."""
    root.mkdir(parents=True, exist_ok=True)
    files = [root / f"{i:04}.txt" for i in range(count)]
    for i, file in enumerate(files):
        file.write_text(str(i))
    return files


@pytest.fixture
def mine(tmp_path) -> Path:
    """A folder of six files that each hold their number."""
    numbers(tmp_path / "mine")
    return tmp_path / "mine"


def row(file: Path) -> np.ndarray:
    return np.full((2, 3), int(file.read_text()), np.float32)


def counted(calls: list[str], file: Path) -> np.ndarray:
    calls.append(file.name)
    return row(file)


def read(
    root: Path, decode: Callable[[Path], np.ndarray] = row, form: str = "rows"
) -> DecodedFiles:
    files = sorted(file for file in root.iterdir() if file.suffix == ".txt")
    like = np.empty((2, 3), np.float32)
    return decode_files(
        root, files, decode, description=form, like=like, decode_errors=(ValueError, OSError)
    )


def values(result: DecodedFiles) -> list[int]:
    assert result.rows.shape[1:] == (2, 3)
    assert (result.rows == result.rows[:, :1, :1]).all()
    return result.rows[:, 0, 0].int().tolist()


def entries(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir())


def test_the_cache_is_where_it_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AFIELD_CACHE", "~/elsewhere")
    assert cache_root() == tmp_path / "elsewhere"
    monkeypatch.setenv("AFIELD_CACHE", "")
    assert cache_root() == tmp_path / ".cache" / "afield" / "decoded"


def test_every_file_has_a_row_in_their_order(mine):
    result = read(mine)
    assert values(result) == [0, 1, 2, 3, 4, 5]
    assert result.rows.dtype == torch.float32
    assert result.broken == {}


def test_a_second_load_decodes_nothing(mine):
    calls: list[str] = []
    first, second = (read(mine, partial(counted, calls)) for _ in range(2))
    assert len(calls) == 6
    assert torch.equal(first.rows, second.rows)


def test_a_second_load_of_a_tree_leaves_its_entries_alone(tmp_path, place):
    tree(tmp_path / "mine")
    stamps = []
    for _ in range(2):
        folder_dataset(tmp_path / "mine").load()
        files = sorted(place.glob("*/*"))
        stamps.append([(file, file.stat().st_ino, file.stat().st_mtime_ns) for file in files])
    assert stamps[0] == stamps[1]
    assert len(stamps[0]) == 5


def added(root: Path) -> list[int]:
    (root / "0002b.txt").write_text("9")
    return [0, 1, 2, 9, 3, 4, 5]


def removed(root: Path) -> list[int]:
    (root / "0002.txt").unlink()
    return [0, 1, 3, 4, 5]


def renamed(root: Path) -> list[int]:
    (root / "0002.txt").rename(root / "0009.txt")
    return [0, 1, 3, 4, 5, 2]


def longer(root: Path) -> list[int]:
    file = root / "0002.txt"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("22")
    os.utime(file, ns=times)
    return [0, 1, 22, 3, 4, 5]


def later(root: Path) -> list[int]:
    file = root / "0002.txt"
    file.write_text("7")
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    return [0, 1, 7, 3, 4, 5]


@pytest.mark.parametrize("change", [added, removed, renamed, longer, later])
def test_an_entry_is_made_anew_when_the_files_change(place, change, mine):
    read(mine)
    expected = change(mine)
    calls: list[str] = []
    for _ in range(2):
        assert values(read(mine, partial(counted, calls))) == expected
    assert len(calls) == len(expected)
    # In place of the old one.
    assert len(entries(place)) == 1


def test_rows_that_are_in_use_stay_as_they_are_when_the_entry_is_made_anew(mine):
    before = read(mine)
    longer(mine)
    assert values(read(mine)) == [0, 1, 22, 3, 4, 5]
    assert values(before) == [0, 1, 2, 3, 4, 5]


def test_another_side_is_another_entry(tmp_path, place):
    dataset = folder_dataset(tree(tmp_path / "mine"))
    for side in (8, 12):
        dataset.load(ReadOptions(tmp_path, side=side))
    stamps = {path: path.stat().st_mtime_ns for path in place.glob("*/rows.npy")}
    assert len(stamps) == 2
    for side in (8, 12):
        assert dataset.load(ReadOptions(tmp_path, side=side))["photo"].x.shape[-1] == side
    assert {path: path.stat().st_mtime_ns for path in place.glob("*/rows.npy")} == stamps


def test_folders_of_one_name_have_an_entry_each(tmp_path, place):
    for i, root in enumerate((tmp_path / "a" / "mine", tmp_path / "b" / "mine")):
        numbers(root)[0].write_text(str(50 + i))
    for _ in range(2):
        assert [values(read(tmp_path / name / "mine"))[0] for name in ("a", "b")] == [50, 51]
    assert len(entries(place)) == 2


def test_a_folder_may_have_the_longest_name(tmp_path):
    numbers(tmp_path / ("ü" * 127))
    assert values(read(tmp_path / ("ü" * 127))) == [0, 1, 2, 3, 4, 5]


# Rows are moved 256 at a time.
MANY = 280
BAD = {
    "first": [0],
    "last": [MANY - 1],
    "first two and last": [0, 1, MANY - 1],
    "every third": list(range(0, MANY, 3)),
    "around the border": [255, 256, 257],
    "all but one": [i for i in range(MANY) if i != 217],
    "all": list(range(MANY)),
}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    numbers(root, MANY)
    return root


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_rows_of_broken_files_are_closed_up(many, bad):
    refused = set(bad)

    def decode(file: Path) -> np.ndarray:
        if int(file.stem) in refused:
            raise ValueError("broken\nin two lines")
        return row(file)

    for _ in range(2):
        result = read(many, decode)
        assert values(result) == [i for i in range(MANY) if i not in refused]
        assert result.broken == {many / f"{i:04}.txt": "broken" for i in bad}


@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
def test_an_error_that_is_not_expected_is_raised_and_nothing_is_left(place, error, mine):
    def decode(file: Path) -> np.ndarray:
        if file.name == "0003.txt":
            raise error
        return row(file)

    with pytest.raises(error):
        read(mine, decode)
    assert entries(place) == []
    assert values(read(mine)) == [0, 1, 2, 3, 4, 5]


def test_a_file_that_goes_away_is_named(tmp_path):
    files = [*numbers(tmp_path / "mine"), tmp_path / "mine" / "gone.txt"]
    with pytest.raises(
        DataError, match=r"gone\.txt: cannot be read \(No such file or directory\)$"
    ):
        contents_digest(tmp_path / "mine", files)


@pytest.mark.parametrize("name", ["rows.npy", "broken.json", "state.json"])
@pytest.mark.parametrize("harm", [Path.unlink, partial(os.truncate, length=3)])
def test_an_entry_that_lost_a_part_is_made_anew(place, name, harm, mine):
    read(mine)
    (entry,) = entries(place)
    harm(entry / name)
    assert values(read(mine)) == [0, 1, 2, 3, 4, 5]


def test_the_cache_may_be_deleted_at_any_time(place, mine):
    result = read(mine)
    shutil.rmtree(place)
    assert values(result) == [0, 1, 2, 3, 4, 5]
    assert values(read(mine)) == [0, 1, 2, 3, 4, 5]


def test_rows_are_mapped_from_disk(place, mine):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not tell what is mapped")
    result = read(mine)
    for line in maps.read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= result.rows.data_ptr() < last:
            assert line.endswith("rows.npy")
            assert str(place) in line
            return
    pytest.fail("the rows are nowhere")


def test_writing_to_the_rows_does_not_reach_the_disk(place, mine):
    result = read(mine)
    (file,) = place.glob("*/rows.npy")
    before = file.read_bytes()
    result.rows.fill_(77)
    assert values(result) == [77] * 6
    assert file.read_bytes() == before
    assert values(read(mine)) == [0, 1, 2, 3, 4, 5]


def decode_logged(log: Path, pause: float, file: Path) -> np.ndarray:
    with log.open("a") as lines:
        lines.write(f"{file.name}\n")
    time.sleep(pause)
    return row(file)


def save_values(root: Path, decode: Callable[[Path], np.ndarray], out: Path) -> None:
    np.save(out, read(root, decode).rows.numpy()[:, 0, 0])


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_at_once_make_an_entry_once_and_both_get_it(tmp_path):
    numbers(tmp_path / "mine", 40)
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    outs = [tmp_path / f"{i}.npy" for i in range(2)]
    decode = partial(decode_logged, log, 0.005)
    processes = [
        context.Process(target=save_values, args=(tmp_path / "mine", decode, out)) for out in outs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG_SECONDS)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(log.read_text().split()) == [f"{i:04}.txt" for i in range(40)]
    for out in outs:
        assert np.load(out).tolist() == list(range(40))


def die_at_the_tenth(file: Path) -> np.ndarray:
    if file.name == "0010.txt":
        os.kill(os.getpid(), signal.SIGKILL)
    return row(file)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_in_the_middle_it_leaves_nothing_that_is_taken_for_whole(tmp_path, place):
    numbers(tmp_path / "mine", 150)
    out = tmp_path / "out.npy"
    context = multiprocessing.get_context("fork")
    process = context.Process(target=save_values, args=(tmp_path / "mine", die_at_the_tenth, out))
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    left = entries(place)
    assert [path.suffix for path in left] == [".part"]
    assert (left[0] / "rows.npy").exists()
    calls: list[str] = []
    assert values(read(tmp_path / "mine", partial(counted, calls))) == list(range(150))
    assert len(calls) == 150
    assert [path.suffix for path in entries(place)] == [""]


def test_too_little_room_is_reported_before_anything_is_made(tmp_path, place, monkeypatch, mine):
    free = shutil.disk_usage(tmp_path)._replace(free=3 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    wanted = partial(cache_arrays, mine, sorted((mine).iterdir()), dict, description="numbers")
    message = message_of(DataError, wanted, needed_bytes=5 * 2**30 + 2**29)
    assert message.startswith(f"{place}: the cache of mine needs 5.5 GB, but only 3.0 MB are free")
    assert entries(place) == []
    wanted(needed_bytes=2 * 2**20)


def test_a_cache_that_may_not_be_written_to_is_named():
    caught = pytest.raises(
        DataError, match=r"cache: Permission denied; set AFIELD_CACHE to another folder$"
    )
    with common() as folder, forbidden(folder / "cache", 0o555), caught:
        contents_digest(folder, [])


def test_a_cache_that_is_read_only_from_now_on_is_named():
    """The lock is still there, and may be taken."""
    with common() as folder:
        files = numbers(folder / "mine")
        with powerless():
            contents_digest(folder / "mine", files)
        files[0].write_text("7")
        assert list((folder / "cache").glob("*.lock"))
        caught = pytest.raises(DataError, match=r"Permission denied.*; set AFIELD_CACHE to another")
        with forbidden(folder / "cache", 0o555), caught:
            contents_digest(folder / "mine", files)


def test_a_cache_that_is_a_file_is_named(tmp_path, place):
    place.write_text("not a folder")
    with pytest.raises(DataError, match="cache: File exists; set AFIELD_CACHE to another"):
        contents_digest(tmp_path, [])


def test_the_size_is_reported_before_a_large_entry_is_made(place, monkeypatch, caplog, mine):
    with caplog.at_level(logging.WARNING, logger="afield"):
        read(mine, form="small")
        assert caplog.messages == []
        monkeypatch.setattr(cache, "LARGE_ENTRY_BYTES", 6 * 2 * 3 * 4)

        def decode(file: Path) -> np.ndarray:
            assert len(caplog.messages) == 1
            return row(file)

        read(mine, decode, form="large rows")
        read(mine, decode, form="large rows")
    (message,) = caplog.messages
    assert message.startswith(f"mine: caching 144 bytes of decoded samples in {place}/mine-")


def test_sixteen_megabytes_are_worth_telling():
    assert cache.LARGE_ENTRY_BYTES == 16 * 2**20


def test_contents_are_the_same_for_a_copy_in_another_place(tmp_path):
    first, second = tmp_path / "here" / "mine", tmp_path / "there" / "yours"
    numbers(first / "sub")
    shutil.copytree(first, second)
    digests = [contents_digest(root, sorted((root / "sub").iterdir())) for root in (first, second)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 16


def rewritten(root: Path) -> None:
    (root / "0003.txt").write_text("4")
    os.utime(root / "0003.txt", (1, 1))


def swapped(root: Path) -> None:
    for old, new in (("0002", "x"), ("0003", "0002"), ("x", "0003")):
        (root / f"{old}.txt").rename(root / f"{new}.txt")


def named_anew(root: Path) -> None:
    """In the same order, with the same bytes."""
    (root / "0005.txt").rename(root / "0006.txt")


def joined(root: Path) -> None:
    """What comes after a file becomes a part of it, name and all."""
    (root / "0000.txt").write_text("00001.txt 1")
    (root / "0001.txt").unlink()


@pytest.mark.parametrize("change", [rewritten, named_anew, swapped, joined, added, removed])
def test_contents_change_with_one_byte_and_with_a_name(tmp_path, change):
    root = tmp_path / "mine"
    before = contents_digest(root, numbers(root))
    change(root)
    assert contents_digest(root, sorted(root.iterdir())) != before


def test_contents_do_not_change_with_the_time_of_a_file(tmp_path):
    files = numbers(tmp_path / "mine")
    before = contents_digest(tmp_path / "mine", files)
    os.utime(files[0], (1, 1))
    assert contents_digest(tmp_path / "mine", files) == before


def test_contents_are_read_only_when_something_changed(tmp_path):
    files = numbers(tmp_path / "mine")
    before = contents_digest(tmp_path / "mine", files)
    stat = files[0].stat()
    files[0].write_text("7")
    # Nobody can see this but by reading.
    os.utime(files[0], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert contents_digest(tmp_path / "mine", files) == before


def test_computed_arrays_are_kept_by_their_names(tmp_path):
    files, calls = numbers(tmp_path / "mine"), []

    def make():
        calls.append(1)
        return {"x": np.arange(6, dtype=np.uint8), "y": np.ones((2, 2))}

    for _ in range(2):
        cached = cache_arrays(tmp_path / "mine", files, make, description="made", needed_bytes=10)
        assert sorted(cached) == ["x", "y"]
        assert cached["x"].tolist() == [0, 1, 2, 3, 4, 5]
        assert cached["y"].dtype == torch.float64
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        # What is wrong with the data is not put down to the cache.
        (DataError("bad.ttf: not a font; remove it"), r"^bad\.ttf: not a font; remove it$"),
        (OSError(28, "No space left on device"), "No space left on device; set AFIELD_CACHE to"),
    ],
)
def test_an_error_in_the_middle_is_reported_and_leaves_no_entry(tmp_path, place, error, message):
    def make():
        raise error

    with pytest.raises(DataError, match=message):
        cache_arrays(tmp_path, [], make, description="made", needed_bytes=0)
    assert entries(place) == []


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux's count of memory")
def test_an_array_larger_than_memory_is_mapped(tmp_path):
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines}
    rows = int(1.25 * (sizes["MemTotal:"] + sizes["SwapTotal:"]) * 1024 / 2**20)
    # Sparse: it takes no room on the disk.
    np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, (rows, 2**20)).flush()
    mapped = cache._map_tensor(tmp_path / "rows.npy")
    assert mapped.shape == (rows, 2**20)
    assert mapped[-1].sum() == 0


def test_an_error_of_the_system_is_not_kept_as_a_broken_file(tmp_path):
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for file in files:
        file.write_bytes(b"x")
    failing = [True]

    def decode(file: Path) -> np.ndarray:
        if failing[0] and file.name == "1.png":
            raise OSError(errno.EIO, "Input/output error")
        return np.ones(2, np.uint8)

    def read() -> cache.DecodedFiles:
        form = {"description": "ones", "like": np.empty(2, np.uint8)}
        return cache.decode_files(tmp_path, files, decode, decode_errors=(OSError,), **form)

    with pytest.raises(DataError, match=r"1\.png: .*Input/output error; try again"):
        read()
    failing[0] = False
    assert not read().broken
    assert read().rows.shape == (3, 2)
