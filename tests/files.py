"""Made-up files of all kinds, who may read them, and in which words they are refused."""

import io
import os
import stat
import struct
import tempfile
import wave
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib.tables._g_l_y_f import Glyph
from PIL import Image

from afield.data.domains import Domain, ReadOptions
from afield.data.lookup import find_dataset
from afield.data.sources.folders import folder_dataset
from afield.errors import DataError
from tests.messages import message_of

GOLDEN = Path(__file__).parent / "golden"
RED = (200, 10, 20)
NOBODY = 65534
RATE = 16_000


def saved(image: Image.Image, path: Path, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def plain(mode: str = "RGB", colour=RED, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new(mode, size, colour)


def noise(size: int = 32) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    return Image.fromarray(values.astype(np.uint8))


def bomb(path: Path, side: int = 20_000) -> Path:
    """A whole 1-bit PNG, small on disk: without a guard it would be unpacked."""
    packer = zlib.compressobj(1)
    row = bytes(1 + side // 8)
    rows = b"".join(packer.compress(100 * row) for _ in range(side // 100)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
    )
    return path


def tree(root: Path, *, domains=("photo", "sketch"), classes=("cup", "pot"), each: int = 2) -> Path:
    for domain in domains:
        for label in classes:
            for i in range(each):
                saved(plain(), root / domain / label / f"{i}.png")
    return root


def pictures(root: Path, *, domains: Sequence[str] = ("home", "away office")) -> Path:
    """A folder of images of two classes, dark and bright; no two images are alike."""
    generator = np.random.default_rng(0)
    for domain in domains:
        for label, level in (("dark", 40), ("bright", 200)):
            for i in range(6):
                noise = generator.integers(-30, 30, (12, 12, 3))
                image = Image.fromarray((level + noise).astype(np.uint8))
                saved(image, root / domain / label / f"{i}.png")
    return root


def numbered(root: Path, *, each: int = 4) -> Path:
    """Every file has a colour of its own: domain, class, number."""
    for d, domain in enumerate(("photo", "sketch")):
        for c, label in enumerate(("cup", "jug", "pot")):
            for i in range(each):
                saved(plain(colour=(100 * d, 50 * c, i)), root / domain / label / f"{i}.png")
    return root


def assert_rows_fit(domains: Mapping[str, Domain]) -> None:
    """Every row has the colour, the label and the name of one and the same file of `numbered`."""
    for d, (domain, result) in enumerate(domains.items()):
        assert len(result.names) == len(result.y) == len(result.x) > 0
        for name, label, colour in zip(
            result.names, result.y.tolist(), result.x[:, :, 0, 0].tolist(), strict=True
        ):
            where, known, file = name.split("/")
            assert where == domain
            assert ("cup", "jug", "pot").index(known) == label
            assert colour == [100 * d, 50 * label, int(Path(file).stem)]


def small(path: Path, *, skip_broken: bool = False) -> dict[str, Domain]:
    """The domains of a folder of images, stored at a side of 8 pixels."""
    return folder_dataset(path).load(ReadOptions(path, side=8, skip_broken=skip_broken))


def refusal(path: Path) -> str:
    """The one line with which a dataset is refused, when it is found or when it is read."""
    return message_of(DataError, lambda: find_dataset(path).load())


class Trap:
    """Makes a folder when it is unpickled, which must not happen."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.victim),)


@contextmanager
def common() -> Iterator[Path]:
    """A folder that everybody may enter, with a cache that everybody may write to."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        cache = Path(name) / "cache"
        cache.mkdir()
        for path in (Path(name), cache):
            path.chmod(0o777)
        patch.setenv("AFIELD_CACHE", str(cache))
        yield Path(name).resolve()


@contextmanager
def powerless() -> Iterator[None]:
    """As somebody whom permissions bind; root may read everything."""
    if os.geteuid():
        yield
        return
    # What is imported on first use must be there before: it may lie where nobody may read.
    Image.init()
    try:
        os.seteuid(NOBODY)
    except PermissionError:
        pytest.skip("neither bound by permissions nor able to become somebody who is")
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def forbidden(path: Path, mode: int = 0) -> Iterator[None]:
    """Nobody may read the file or folder."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with powerless():
            yield
    finally:
        path.chmod(before)


def tone(hertz: float, *, rate: int = RATE, seconds: float = 1.0) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def spoken(path: Path, *channels: np.ndarray, rate: int = RATE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = (32767 * np.stack(channels, axis=1)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def words(root: Path) -> Path:
    """Two speakers who say two words, one low and one high."""
    for speaker in ("ann", "bob"):
        for word, hertz in (("no", 500.0), ("yes", 2000.0)):
            spoken(root / speaker / word / "0.wav", tone(hertz))
    return root


def arrays(n: int = 12, **changed) -> dict[str, np.ndarray]:
    plain = {
        "X": np.arange(n * 4, dtype=np.float32).reshape(n, 4),
        "y": np.arange(n) % 3,
        "domain": np.array(["art", "photo"])[np.arange(n) // (n // 2)],
    }
    return {name: value for name, value in (plain | changed).items() if value is not None}


def npz(folder: Path, **content: np.ndarray) -> Path:
    np.savez(folder / "mine.npz", **content)
    return folder / "mine.npz"


def outline(*boxes: tuple[int, int, int, int]) -> Glyph:
    pen = TTGlyphPen(None)
    for left, bottom, right, top in boxes:
        pen.moveTo((left, bottom))
        for corner in ((left, top), (right, top), (right, bottom)):
            pen.lineTo(corner)
        pen.closePath()
    return pen.glyph()


def build_font(
    path: Path, glyphs: Mapping[str, Glyph], characters: Mapping[str, str], flavor=None
) -> Path:
    """A font with these glyphs by name, and the names of the glyphs of these characters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap({ord(character): name for character, name in characters.items()})
    builder.setupGlyf(dict(glyphs))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Mine", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.font.flavor = flavor
    builder.save(path)
    return path


def font(path: Path, characters: str = "ABLO01") -> Path:
    """A font with an L for each of these characters."""
    glyphs = {".notdef": outline(), "ell": outline((100, 0, 200, 700), (200, 0, 500, 100))}
    return build_font(path, glyphs, dict.fromkeys(characters, "ell"))


def fonts(root: Path) -> Path:
    for name in ("ann", "bob"):
        font(root / f"{name}.ttf")
    return root


def other_package(folder: Path, kind: str, name: str, target: str, source: str) -> None:
    """An installed package, as an installer would leave it, that adds one name to a kind."""
    module = target.partition(":")[0]
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[afield.{kind}]\n{name} = {target}\n")


CONTENT = bytes(range(256)) * 4096  # 1 MiB


def there(folder: Path) -> list[str]:
    """All that lies in a folder and below, but for locks."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return sorted(name for name in names if not name.endswith(".lock"))


def zip_of(entries) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name + "/" * (content is None))
            if isinstance(content, str):
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            text = content.removeprefix("->") if isinstance(content, str) else content
            file.writestr(info, text or b"", zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
