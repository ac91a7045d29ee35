"""What must not be unpacked, and what must be, whole."""

import gzip
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from afield.data.downloads import unpack
from afield.errors import DataError
from afield.progress import report_progress_to
from tests.files import CONTENT, there, zip_of
from tests.messages import message_of

HALF = len(CONTENT) // 2


# An entry is content, None for a folder, or a link as its text with an arrow before it.


def tar_of(entries, mode: str = "w") -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode=mode) as file:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type = tarfile.LNKTYPE if content.startswith("=>") else tarfile.SYMTYPE
                info.linkname = content[2:]
            elif content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            file.addfile(info, io.BytesIO(content if isinstance(content, bytes) else b""))
    return found.getvalue()


PACKERS = {
    "a.zip": zip_of,
    "a.tar": tar_of,
    "a.tar.gz": lambda entries: tar_of(entries, "w:gz"),
    "A.TGZ": lambda entries: tar_of(entries, "w:gz"),
}
TREE = {"top.txt": b"top", "d/e/deep.bin": CONTENT, "d/empty": None, "d/none.txt": b""}


@pytest.fixture(params=PACKERS)
def packed(request, tmp_path):
    """A function that makes an archive of some format with these entries."""

    def write(entries) -> Path:
        path = tmp_path / "archives" / request.param
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PACKERS[request.param](entries))
        return path

    return write


def assert_refused(archive: Path, message: str) -> None:
    """It is refused in one line, and nothing is unpacked beside it."""
    before = there(archive.parent)
    refused = message_of(DataError, unpack, archive, archive.parent / "into")
    assert str(archive) in refused
    assert re.search(message, refused)
    assert there(archive.parent) == before


def test_everything_is_unpacked_and_nothing_else_stays(packed, tmp_path):
    archive = packed(TREE)
    unpack(archive, tmp_path / "x" / "y")
    found = tmp_path / "x" / "y"
    assert there(found) == ["d", "d/e", "d/e/deep.bin", "d/empty", "d/none.txt", "top.txt"]
    assert (found / "d/e/deep.bin").read_bytes() == CONTENT
    assert (found / "top.txt").read_bytes() == b"top"
    assert (found / "d/none.txt").read_bytes() == b""
    assert there(tmp_path / "x") == ["y", *(f"y/{name}" for name in there(found))]
    assert archive.exists()


def test_a_folder_that_is_there_is_added_to_and_files_are_replaced(packed, tmp_path):
    into = tmp_path / "into"
    (into / "d/e").mkdir(parents=True)
    (into / "d/e/mine.txt").write_text("mine")
    (into / "top.txt").write_text("old")
    unpack(packed(TREE), into)
    unpack(packed(TREE), into)
    assert (into / "d/e/mine.txt").read_text() == "mine"
    assert (into / "top.txt").read_text() == "top"
    names = ["d", "d/e", "d/e/deep.bin", "d/e/mine.txt", "d/empty", "d/none.txt", "top.txt"]
    assert there(into) == names


def test_what_is_in_the_way_is_named_before_anything_moves(packed, tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    (into / "d").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"into/d: blocks a member"):
        unpack(packed(TREE), into)
    assert there(into) == ["d"]


def test_links_within_the_archive_are_kept(packed, tmp_path):
    links = {"d/up": "->../top.txt", "here": "->d/e", "chain": "->here/deep.bin"}
    for _ in range(2):
        unpack(packed(links | TREE), tmp_path / "into")
    assert (tmp_path / "into/d/up").read_bytes() == b"top"
    assert (tmp_path / "into/here/deep.bin").read_bytes() == CONTENT
    assert (tmp_path / "into/chain").resolve() == tmp_path / "into/d/e/deep.bin"


def test_a_hard_link_gives_the_same_content(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of({"d/one": b"content", "e/two": "=>d/one"}))
    unpack(tmp_path / "a.tar", tmp_path / "into")
    assert (tmp_path / "into/e/two").read_bytes() == b"content"


HOSTILE = {
    "up": ({"../evil": b"!"}, "../evil"),
    "up in the middle": ({"d/../../evil": b"!"}, "d/../../evil"),
    "up as on Windows": ({"..\\evil": b"!"}, "evil"),
    "absolute": ({"/tmp/afield-evil": b"!"}, "/tmp/afield-evil"),
    "a drive": ({"C:evil": b"!"}, "C:evil"),
    "a folder": ({"../evil": None}, "../evil"),
    "a link outwards": ({"link": "->../archives"}, "link"),
    "an absolute link": ({"link": "->/etc"}, "link"),
    "a link out and back in": ({"a": b"", "link": "->../into/a"}, "link"),
    "a link to nowhere": ({"link": "->nothing"}, "link"),
    "a link to itself": ({"link": "->link"}, "link"),
    "through a link": ({"link": "->..", "link/evil": b"!"}, "link"),
    "through a link inside": ({"evil": b"", "s": "->.", "link": "->s/../evil"}, "link"),
    "a link for a file": ({"d/e": b"", "a": b"", "link": "->a", "link/b": "->../d/e"}, "link"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_leaves_the_folder(packed, tmp_path, case):
    entries, named = HOSTILE[case]
    archive = packed({"good.txt": b"good"} | entries)
    (tmp_path / "evil").mkdir()
    before = there(tmp_path)
    message = message_of(DataError, unpack, archive, tmp_path / "into")
    assert all(text in message for text in (str(archive), named, "nothing was unpacked"))
    assert there(tmp_path) == before
    assert not Path("/tmp/afield-evil").exists()


@pytest.mark.parametrize("text", ["=>../evil", "=>/etc/passwd", "=>nothing"])
def test_a_hard_link_to_no_member_is_refused(tmp_path, text):
    (tmp_path / "evil").write_text("secret")
    (tmp_path / "a.tar").write_bytes(tar_of({"d/link": text}))
    assert_refused(tmp_path / "a.tar", "'d/link' is a link")


def test_the_name_of_the_hidden_folder_helps_no_link(packed, tmp_path):
    archive = packed({"a": b""})
    packed({"a": b"", "link": f"->../.{archive.name}.unpacking/a"})
    assert_refused(archive, "'link' is a link")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, stat.S_IFIFO])
def test_a_device_is_refused(tmp_path, kind):
    archive = tmp_path / ("a.zip" if kind == stat.S_IFIFO else "a.tar")
    if kind == stat.S_IFIFO:
        entry = zipfile.ZipInfo("device")
        entry.external_attr = (kind | 0o666) << 16
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(entry, b"")
    else:
        member = tarfile.TarInfo("device")
        member.type = kind
        with tarfile.open(archive, "w") as file:
            file.addfile(member)
    assert_refused(archive, "'device' is neither a file, a folder nor a link")


def test_more_than_the_disk_holds_is_refused_with_the_member_named(packed, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(1 << 40, 0, HALF)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert_refused(packed(TREE), r"'d/e/deep\.bin' has 1,048,576 bytes, but only 524,285")


# Of a tar, that is before, within and after a header, in a file, and before the end.
@pytest.mark.parametrize("cut", [0, 100, 512, 1023, 1024, 1124, 0.5, -1])
def test_an_archive_cut_short_is_reported_and_leaves_nothing(packed, tmp_path, cut):
    archive = packed({"top.txt": b"top", "noise": os.urandom(100_000), "last": b"last"})
    content = archive.read_bytes()
    # A tar ends with many zeros, of which one block is enough.
    content = content[: content.rindex(b"last") + 512] if archive.suffix == ".tar" else content
    archive.write_bytes(content[: int(cut * len(content)) if cut == 0.5 else cut])
    assert_refused(archive, re.escape(archive.name))


def test_a_tar_without_its_end_is_cut_short(tmp_path):
    content = tar_of({"one": b"1", "two": b"2"})
    (tmp_path / "a.tar").write_bytes(content[:1024])
    with pytest.raises(DataError, match="cut short"):
        unpack(tmp_path / "a.tar", tmp_path / "into")
    (tmp_path / "a.tar").write_bytes(content[: 4 * 512 + 2 * 512])
    unpack(tmp_path / "a.tar", tmp_path / "into")


def damaged(content: bytes, place: int, length: int) -> bytes:
    return content[:place] + b"\xff" * length + content[place + length :]


def with_a_size_below_zero() -> bytes:
    info = tarfile.TarInfo("odd")
    info.size = -1024
    return tar_of({"good": b"good"})[:1024] + info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tar", with_a_size_below_zero(), "odd"),
        # A damaged header is not taken for the end.
        ("a.tar", damaged(tar_of({"1": b"1", "2": b"2"}), 1024, 6), "damaged in the middle"),
        ("a.zip", damaged(zip_of({"a.bin": os.urandom(10_000)}), 5000, 3), r"a\.bin"),
        *(
            ("a.csv.gz", gzip.compress(CONTENT, mtime=0)[:cut], r"a\.csv\.gz: .*download it again")
            for cut in (0, 5, 18, 500, -1)
        ),
        *(
            (name, zip_of(TREE), r"use one of \.zip, \.tar, \.tar\.gz, \.tgz, \.gz")
            for name in ("a.rar", "a", "zip")
        ),
        *(
            (name, b"<html>Please log in first</html>" * 40, "download it again")
            for name in ("a.zip", "a.tar", "a.tar.gz", "a.gz")
        ),
    ],
)
def test_a_file_that_is_damaged_or_no_archive_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert_refused(tmp_path / name, message)


def test_a_single_file_is_unpacked_under_its_name(tmp_path):
    (tmp_path / "labels.csv.gz").write_bytes(gzip.compress(CONTENT, mtime=0))
    unpack(tmp_path / "labels.csv.gz", tmp_path / "into")
    assert there(tmp_path / "into") == ["labels.csv"]
    assert (tmp_path / "into/labels.csv").read_bytes() == CONTENT


def test_a_missing_archive_is_reported(tmp_path):
    assert_refused(tmp_path / "a.zip", r"a\.zip: No such file")


def test_what_a_killed_process_left_is_removed(packed, tmp_path):
    archive = packed(TREE)
    left = tmp_path / f".{archive.name}.unpacking"
    left.mkdir()
    (left / "half.txt").write_text("half")
    unpack(archive, tmp_path / "into")
    assert "half.txt" not in there(tmp_path / "into")
    assert not left.exists()


def test_unpacking_tells_how_much_of_the_archive_is_done(packed, tmp_path):
    reports = []

    @contextmanager
    def listener(what, total):
        reports.append((what, total))
        yield reports.append

    archive = packed(TREE)
    size = archive.stat().st_size
    with report_progress_to(listener):
        unpack(archive, tmp_path / "into")
    assert reports[0] == (f"unpack {archive.name}", size)
    assert 0 < max(reports[1:]) <= size
