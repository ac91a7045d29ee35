"""Downloads survive interruptions and are verified, and archives are unpacked without harm."""

import gzip
import hashlib
import io
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread

import pytest

from afield.data import downloads
from afield.data.downloads import Archive, fetch, unpack
from afield.errors import DataError, SpecError
from afield.progress import report_progress_to
from tests.files import CONTENT, there, zip_of
from tests.messages import message_of
from tests.waiting import HANG_SECONDS, wait_until

HALF = len(CONTENT) // 2


@dataclass
class Site:
    """A server: what it has, what it does wrong, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    # After how many bytes each answer in turn is cut; None for whole answers, as are all later.
    cuts: list[int | None] = field(default_factory=list)
    # Codes given in turn instead of an answer.
    refusals: list[int] = field(default_factory=list)
    redirections: dict[str, str] = field(default_factory=dict)
    # Called before a cut connection is reset; without it, the connection is closed.
    before_reset: Callable[[], None] | None = None
    lengths: bool = True
    # Added to the first byte of every part: a server that sends another than was asked for.
    shift: int = 0
    # Path, Range header and bytes sent, or the code below zero, for each request.
    asked: list[tuple[str, str | None, int]] = field(default_factory=list)

    def archive(self, name: str = "a.bin", content: bytes = CONTENT, **settings) -> Archive:
        checksum = "sha256:" + hashlib.sha256(content).hexdigest()
        return Archive(**{"url": self.address + name, "checksum": checksum} | settings)


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self):
        site, name = self.site, self.path[1:]
        if name in site.redirections:
            self.note(-302)
            self.send_response(302)
            self.send_header("Location", site.redirections[name])
            self.end_headers()
        elif site.refusals or name not in site.files:
            self.refuse(site.refusals.pop(0) if site.refusals else 404)
        else:
            self.answer(site.files[name], self.headers["Range"] if site.ranges else None)

    def note(self, sent):
        # Before it is sent: the client may be done before this thread goes on.
        self.site.asked.append((self.path[1:], self.headers["Range"], sent))

    def refuse(self, code):
        self.note(-code)
        self.send_error(code)

    def answer(self, content, asked):
        site = self.site
        start = int(asked[len("bytes=") : -1]) + site.shift if asked else 0
        if start and start >= len(content):
            self.refuse(416)
            return
        cut = site.cuts.pop(0) if site.cuts else None
        body = content[start:][:cut]
        self.note(len(body))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if site.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(body)
        if cut is not None and site.before_reset:
            site.before_reset()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def finish(self):
        # After a reset there is nothing to say goodbye to.
        if self.connection.fileno() >= 0:
            super().finish()

    def log_message(self, *_):
        pass


@contextmanager
def served() -> Iterator[Site]:
    site = Site(files={"a.bin": CONTENT})
    handler = type("SiteHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None
        site.address = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(downloads, "RETRY_DELAYS", (0.01, 0.01, 0.01))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def site():
    with served() as site:
        yield site


@pytest.fixture
def second():
    with served() as site:
        yield site


def test_a_file_is_downloaded_whole_into_a_new_folder(site, tmp_path):
    path = fetch(site.archive(), tmp_path / "deep" / "down")
    assert path == tmp_path / "deep" / "down" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert there(path.parent) == ["a.bin"]
    assert site.asked == [("a.bin", None, len(CONTENT))]


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_that_is_there_is_not_asked_for_again(site, tmp_path, kind):
    checksum = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    (tmp_path / "a.bin").write_bytes(CONTENT)
    before = (tmp_path / "a.bin").stat().st_mtime_ns
    fetch(Archive(site.address + "a.bin", checksum.replace("f", "F")), tmp_path)
    assert site.asked == []
    assert (tmp_path / "a.bin").stat().st_mtime_ns == before
    # No lock either: the folder may be for reading only.
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_wrong_file_of_that_name_is_replaced(site, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"something else")
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT


ALL = len(CONTENT)


@pytest.mark.parametrize(
    ("problem", "part", "asked"),
    [
        # After a break, only the rest is sent.
        ({"cuts": [HALF + 1]}, b"", [(None, HALF + 1), (HALF + 1, HALF - 1)]),
        # A part of an earlier day is continued; a whole one only gets its name.
        ({}, CONTENT[:1000], [(1000, ALL - 1000)]),
        ({}, CONTENT, [(ALL, -416)]),
        # A part of something else is dropped.
        ({}, b"x" * 1000, [(1000, ALL - 1000), (None, ALL)]),
        ({}, CONTENT + b"more", [(ALL + 4, -416), (None, ALL)]),
        ({"cuts": [HALF], "ranges": False}, b"", [(None, HALF), (HALF, ALL)]),
        # A server that sends another part than it was asked for, or does not tell the length.
        ({"shift": 7}, CONTENT[:1000], [(1000, ALL - 1007), (None, ALL)]),
        ({"lengths": False}, b"", [(None, ALL)]),
        ({"refusals": [503, 429]}, b"", [(None, -503), (None, -429), (None, ALL)]),
    ],
)
def test_what_goes_wrong_is_mended_and_nothing_is_sent_twice(site, tmp_path, problem, part, asked):
    vars(site).update(problem)
    if part:
        (tmp_path / "a.bin.part").write_bytes(part)
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT
    ranges = [(start if start is None else f"bytes={start}-", sent) for start, sent in asked]
    assert site.asked == [("a.bin", *each) for each in ranges]
    assert there(tmp_path) == ["a.bin"]


def test_after_a_reset_what_has_arrived_is_not_sent_again(site, tmp_path):
    part = tmp_path / "a.bin.part"
    site.cuts = [HALF]
    site.before_reset = partial(wait_until, lambda: part.exists() and part.stat().st_size >= HALF)
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT
    assert site.asked[1:] == [("a.bin", f"bytes={HALF}-", HALF)]


def test_more_breaks_than_tries_do_no_harm_while_every_try_brings_more(site, tmp_path):
    site.cuts = [len(CONTENT) // 16] * 12
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT
    assert sum(sent for _, _, sent in site.asked) == len(CONTENT)


def test_a_connection_that_never_holds_is_reported_and_the_part_kept(site, tmp_path):
    site.cuts = [HALF, 0, 0, 0, 0, 0, 0]
    message = message_of(DataError, fetch, site.archive(), tmp_path)
    advice = "the partial file is kept; run the command again to resume"
    assert all(text in message for text in ("a.bin", site.address, advice))
    assert len(site.asked) == 1 + len(downloads.RETRY_DELAYS)
    assert there(tmp_path) == ["a.bin.part"]
    assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[:HALF]
    site.cuts, site.asked = [], []
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT
    assert site.asked == [("a.bin", f"bytes={HALF}-", HALF)]


def test_a_server_that_is_not_there_leaves_nothing(tmp_path):
    with served() as site:
        archive = site.archive()
    with pytest.raises(DataError, match=r"a\.bin: .*refused.*run the command again later"):
        fetch(archive, tmp_path)
    assert there(tmp_path) == []


def test_a_missing_file_is_not_asked_for_twice(site, tmp_path):
    with pytest.raises(DataError, match="404"):
        fetch(site.archive("b.bin"), tmp_path)
    assert len(site.asked) == 1
    assert there(tmp_path) == []


def test_a_wrong_checksum_is_reported_with_both_and_the_file_removed(site, tmp_path):
    wrong = "md5:" + 32 * "0"
    message = message_of(DataError, fetch, site.archive(checksum=wrong), tmp_path)
    actual = "md5:" + hashlib.md5(CONTENT).hexdigest()
    advice = f"put the file at {tmp_path / 'a.bin'}"
    assert all(text in message for text in ("a.bin", wrong, actual, advice))
    assert there(tmp_path) == []
    assert len(site.asked) == 1


def test_a_mirror_helps_out_for_a_wrong_file(site, second, tmp_path):
    site.files["a.bin"] = CONTENT[::-1]
    archive = site.archive(mirrors=(second.address + "a.bin",))
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert len(site.asked) == 1
    assert second.asked == [("a.bin", None, len(CONTENT))]


def test_a_mirror_goes_on_where_the_first_broke(site, second, tmp_path):
    site.cuts = [HALF, 0, 0, 0, 0]
    archive = site.archive(mirrors=(second.address + "other/name.bin",))
    second.files = {"other/name.bin": CONTENT}
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert second.asked == [("other/name.bin", f"bytes={HALF}-", HALF)]


def test_a_good_mirror_is_not_blamed_for_a_bad_beginning(site, second, tmp_path):
    site.files["a.bin"] = CONTENT[::-1]
    site.cuts = [HALF, 0, 0, 0, 0]
    archive = site.archive(mirrors=(second.address + "a.bin",))
    assert fetch(archive, tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked, _ in second.asked] == [f"bytes={HALF}-", None]


def test_when_all_mirrors_fail_each_is_named_with_its_reason(site, second, tmp_path):
    site.files["a.bin"] = b"not it"
    second.files = {}
    archive = site.archive(mirrors=(second.address + "a.bin",))
    message = message_of(DataError, fetch, archive, tmp_path)
    assert f"{site.address}a.bin: checksum" in message
    assert f"{second.address}a.bin: the server answered 404" in message


def test_a_redirection_is_followed_with_the_range(site, second, tmp_path):
    site.redirections["a.bin"] = second.address + "a.bin"
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:HALF])
    assert fetch(site.archive(), tmp_path).read_bytes() == CONTENT
    assert second.asked == [("a.bin", f"bytes={HALF}-", HALF)]


def test_a_redirection_to_a_file_of_this_machine_is_not_followed(site, tmp_path):
    (tmp_path / "secret").write_bytes(CONTENT)
    site.redirections["a.bin"] = (tmp_path / "secret").as_uri()
    with pytest.raises(DataError, match="302"):
        fetch(site.archive(), tmp_path / "into")
    assert there(tmp_path / "into") == []


def test_a_redirection_to_ftp_is_not_followed(site, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        site.redirections["a.bin"] = f"ftp://127.0.0.1:{server.getsockname()[1]}/a.bin"
        with pytest.raises(DataError, match=r"redirects to ftp://.* not a web"):
            fetch(site.archive(), tmp_path)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(site.asked) == 1
    assert there(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1 << 60])
def test_a_file_that_does_not_fit_is_not_begun(site, tmp_path, monkeypatch, size):
    free = shutil.disk_usage(tmp_path).free if size else 1000
    usage = shutil._ntuple_diskusage(1 << 40, (1 << 40) - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    site.lengths = not size
    with pytest.raises(DataError, match=f"{free:,} are free; free some space"):
        fetch(site.archive(size=size), tmp_path)
    assert there(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_reported(site, tmp_path):
    (tmp_path / "into").write_text("")
    with pytest.raises(DataError, match="into: File exists"):
        fetch(site.archive(), tmp_path / "into")


def test_progress_is_in_bytes_and_starts_where_the_part_ends(site, tmp_path):
    reports = {}

    @contextmanager
    def listener(what, total):
        yield reports.setdefault((what, total), []).append

    (tmp_path / "a.bin.part").write_bytes(CONTENT[:HALF])
    with report_progress_to(listener):
        fetch(site.archive(), tmp_path)
    done = reports["a.bin", len(CONTENT)]
    assert HALF < done[0] < done[-1] == len(CONTENT)
    assert done == sorted(done)
    assert reports["check a.bin", len(CONTENT)][-1] == len(CONTENT)


def test_threads_at_once_make_one_download(site, tmp_path):
    archive, start, result = site.archive(), Barrier(4), []

    def work():
        start.wait()
        result.append(fetch(archive, tmp_path).read_bytes())

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [CONTENT] * 4
    assert len(site.asked) == 1


@pytest.mark.slow
def test_processes_at_once_make_one_download_and_one_tree(site, tmp_path):
    content = zip_of({f"{i}/{j}.txt": b"x" * 1000 for i in range(5) for j in range(20)})
    site.files["a.zip"] = content
    archive = site.archive("a.zip", content)
    program = (
        "import sys; from pathlib import Path; from afield.data.downloads import Archive, fetch\n"
        "from afield.data.downloads import unpack; into = Path('.')\n"
        "unpack(fetch(Archive(sys.argv[1], sys.argv[2]), into), into / 'tree')"
    )
    command = [sys.executable, "-c", program, archive.url, archive.checksum]
    workers = [subprocess.Popen(command, cwd=tmp_path) for _ in range(3)]
    assert [worker.wait(HANG_SECONDS) for worker in workers] == [0, 0, 0]
    assert len(site.asked) == 1
    expected = ["a.zip", "tree"] + [f"tree/{i}" for i in range(5)]
    expected += [f"tree/{i}/{j}.txt" for i in range(5) for j in range(20)]
    assert there(tmp_path) == sorted(expected)


ZEROS = "md5:" + 32 * "0"


@pytest.mark.parametrize(
    ("url", "checksum", "settings", "message"),
    [
        *(
            (url, ZEROS, {}, "https://")
            for url in ("ftp://x/a.zip", "file:///etc/passwd", "a.zip", "")
        ),
        *(
            ("https://x/a.zip", ZEROS, {"mirrors": (url,)}, "https://")
            for url in ("ftp://x/a.zip", "file:///etc/passwd", "a.zip", "")
        ),
        *(
            ("https://x/a.zip", checksum, {}, r"a\.zip: checksum")
            for checksum in (
                "",
                32 * "0",
                "md5:",
                "md5:123",
                f"sha1:{40 * '0'}",
                f"sha256:{64 * 'g'}",
            )
        ),
        *(
            (f"https://x{path}", ZEROS, {}, "name=")
            for path in ("", "/", "/%2e%2e", "/a%2Fb", "/a%5Cb")
        ),
    ],
)
def test_an_archive_that_cannot_be_is_refused(url, checksum, settings, message):
    with pytest.raises(SpecError, match=message):
        Archive(url, checksum, **settings)


def test_a_name_is_the_last_part_of_the_address_unless_it_is_given():
    assert Archive("https://x/y/a%20b.zip?download=1#top", ZEROS).name == "a b.zip"
    assert Archive("https://x/y/content", ZEROS, name="a.zip").name == "a.zip"


def test_a_server_that_sends_more_than_the_declared_size_is_cut_off(site, tmp_path):
    site.files["a.bin"] = CONTENT * 20
    site.lengths = False
    with pytest.raises(DataError, match="sends more than"):
        fetch(site.archive(size=len(CONTENT)), tmp_path)
    assert there(tmp_path) == []


def test_the_size_of_an_archive_is_unknown_unless_given():
    assert Archive("https://example.org/a.zip", f"md5:{'0' * 32}").size == 0


# An entry is content, None for a folder, or a link as its text with an arrow before it.
def tar_of(entries, mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:
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
    return buffer.getvalue()


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
    result = tmp_path / "x" / "y"
    assert there(result) == ["d", "d/e", "d/e/deep.bin", "d/empty", "d/none.txt", "top.txt"]
    assert (result / "d/e/deep.bin").read_bytes() == CONTENT
    assert (result / "top.txt").read_bytes() == b"top"
    assert (result / "d/none.txt").read_bytes() == b""
    assert there(tmp_path / "x") == ["y", *(f"y/{name}" for name in there(result))]
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
