"""A folder of fonts: every font is a domain, and a font that cannot be drawn is named."""

import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from afield.data.cache import cache_root
from afield.data.domains import missing_class_warnings
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.data.sources.fonts import CHARACTERS, SIDE, draw_glyphs, font_dataset, is_font
from afield.errors import DataError
from afield.seeds import derive_seed
from tests.files import common, font, fonts, forbidden, refusal

pytestmark = pytest.mark.usefixtures("own_cache")


def drawn_pictures(found):
    return torch.cat([domain.x for domain in found.values()])


@pytest.mark.parametrize(
    ("name", "known"),
    [("a.ttf", True), ("a.OTF", True), ("a.woff2", True), (".a.ttf", False), ("a.txt", False)],
)
def test_a_font_is_known_by_its_name(tmp_path, name, known):
    assert is_font(tmp_path / name) == known


def test_every_font_is_a_domain_and_every_character_a_class(tmp_path):
    found = find_dataset(fonts(tmp_path / "mine"))
    assert (found.name, found.domains, found.classes) == ("mine", ("ann", "bob"), CHARACTERS)
    assert found.modality == Array()
    loaded = found.load()
    assert list(loaded) == ["ann", "bob"]
    for name, domain in loaded.items():
        x, y = draw_glyphs(
            tmp_path / "mine" / f"{name}.ttf", side=SIDE, seed=derive_seed("letters", name)
        )
        assert np.array_equal(domain.x[:, 0].numpy(), x)
        assert domain.y.tolist() == y
        assert domain.x.shape[1:] == (1, SIDE, SIDE)
        assert domain.x.dtype == torch.uint8


def test_fonts_that_are_alike_are_drawn_each_in_its_own_way(tmp_path):
    loaded = font_dataset(fonts(tmp_path / "mine")).load()
    one, other = (loaded[name].x for name in ("ann", "bob"))
    assert one.shape != other.shape or not torch.equal(one, other)


def test_letters_are_drawn_once(tmp_path):
    root = fonts(tmp_path / "mine")
    first = drawn_pictures(font_dataset(root).load())
    (rows,) = cache_root().glob("mine-*/x.npy")
    made = rows.stat()
    again = drawn_pictures(font_dataset(root).load())
    assert torch.equal(first, again)
    assert (rows.stat().st_ino, rows.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)


def test_a_font_more_is_a_domain_more_and_leaves_the_others_as_they_were(tmp_path):
    root = fonts(tmp_path / "mine")
    before = font_dataset(root)
    first = before.load()
    font(root / "abe.ttf", "XYZ")
    after = font_dataset(root)
    assert after.domains == ("abe", "ann", "bob")
    assert after.fingerprint != before.fingerprint
    second = after.load()
    for name in ("ann", "bob"):
        assert torch.equal(first[name].x, second[name].x)
        assert torch.equal(first[name].y, second[name].y)


def test_a_character_that_a_font_lacks_is_a_gap_and_noted(tmp_path):
    everything = "".join(CHARACTERS)
    font(tmp_path / "mine" / "ann.ttf", everything)
    font(tmp_path / "mine" / "bob.ttf", everything.replace("Q", "").replace("7", ""))
    found = font_dataset(tmp_path / "mine")
    loaded = found.load()
    assert missing_class_warnings(loaded, found.classes) == [
        "domain 'bob' has no sample of class 'Q', '7'"
    ]
    # The other characters keep their numbers.
    assert set(loaded["bob"].y.tolist()) == set(range(36)) - {CHARACTERS.index(c) for c in "Q7"}


REMOVE = r"; remove it from the folder"


def truncate(file: Path) -> None:
    file.write_bytes(font(file).read_bytes()[:-60])


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "greek.ttf",
            partial(font, characters="αβγ"),
            f"has none of the characters {''.join(CHARACTERS)}; remove it",
        ),
        ("bad.ttf", partial(Path.write_bytes, data=b""), rf".*{REMOVE}"),
        ("bad.ttf", partial(Path.write_bytes, data=b"not a font"), rf".*{REMOVE}"),
        ("bad.ttf", partial(Path.write_bytes, data=b"wOF2 not a font either"), rf".*{REMOVE}"),
        ("cut.ttf", truncate, rf"not a font: unexpected end of .*{REMOVE}"),
        ("bad.ttf", Path.mkdir, rf"Is a directory{REMOVE}"),
        (
            "gone.ttf",
            partial(Path.symlink_to, target="nothing.ttf"),
            r"cannot be read \(No such file or directory\)",
        ),
    ],
)
def test_a_file_that_cannot_be_drawn_is_named(tmp_path, name, write, message):
    file = fonts(tmp_path / "mine") / name
    write(file)
    assert re.fullmatch(f"{re.escape(str(file))}: {message}", refusal(tmp_path / "mine"))
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert list(find_dataset(tmp_path / "mine").load()) == ["ann", "bob"]


def test_a_font_that_may_not_be_read_is_named():
    with common() as folder, forbidden(fonts(folder / "mine") / "bob.ttf"):
        message = refusal(folder / "mine")
        file = folder / "mine" / "bob.ttf"
        assert message == f"{file}: Permission denied; remove it from the folder"


def test_a_folder_of_fonts_that_may_not_be_read_is_named():
    caught = pytest.raises(DataError, match=r"fonts: cannot be read \(Permission denied\)$")
    with common() as folder, forbidden(fonts(folder / "fonts")), caught:
        find_dataset("fonts", folder)


def test_two_files_of_one_name_are_refused(tmp_path):
    font(fonts(tmp_path / "mine") / "bob.otf")
    message = refusal(tmp_path / "mine")
    assert message == f"{tmp_path / 'mine'}: two files are called 'bob'; keep one of them"


def test_a_single_font_is_too_few(tmp_path):
    font(tmp_path / "mine" / "ann.ttf")
    assert "mine: 1 font(s); at least two are needed" in refusal(tmp_path / "mine")
