"""Fonts as domains: how glyphs are drawn, and which fonts are refused by name."""

import re
import shutil
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from fontTools.ttLib import reorderFontTables

from afield.data.cache import cache_root
from afield.data.domains import data_root, missing_class_warnings
from afield.data.lookup import find_dataset
from afield.data.modalities.array import Array
from afield.data.sources.fonts import (
    CHARACTERS,
    FONT_SUFFIXES,
    MAX_DEGREES,
    MIN_SCALE,
    SIDE,
    _center,
    _draw_inks,
    _transform,
    _unpack_woff2,
    draw_glyphs,
    font_dataset,
    is_font,
    missing_characters,
)
from afield.errors import DataError
from afield.seeds import derive_seed
from tests.files import build_font, common, font, fonts, forbidden, outline, refusal
from tests.messages import message_of

pytestmark = pytest.mark.usefixtures("own_cache")


def drawn_pictures(result):
    return torch.cat([domain.x for domain in result.values()])


@pytest.mark.parametrize(
    ("name", "known"),
    [("a.ttf", True), ("a.OTF", True), ("a.woff2", True), (".a.ttf", False), ("a.txt", False)],
)
def test_a_font_is_known_by_its_name(tmp_path, name, known):
    assert is_font(tmp_path / name) == known


def test_every_font_is_a_domain_and_every_character_a_class(tmp_path):
    dataset = find_dataset(fonts(tmp_path / "mine"))
    assert (dataset.name, dataset.domains, dataset.classes) == ("mine", ("ann", "bob"), CHARACTERS)
    assert dataset.modality == Array()
    loaded = dataset.load()
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
    assert torch.equal(first, drawn_pictures(font_dataset(root).load()))
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
    dataset = font_dataset(tmp_path / "mine")
    loaded = dataset.load()
    assert missing_class_warnings(loaded, dataset.classes) == [
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


INK = 128
GLYPHS = {
    ".notdef": outline((0, 0, 500, 700)),
    "ell": outline((100, 0, 200, 700), (200, 0, 500, 100)),
    "bar": outline((-300, 200, 900, 300)),
    "dot": outline((400, 700, 700, 1000)),
    "blank": outline(),
}


def box_font(folder, *, name="mine.ttf", flavor=None, **codes):
    """A font of boxes; L, I and O are drawn unless said otherwise."""
    characters = {"L": "ell", "I": "bar", "O": "dot"} | codes
    return build_font(folder / name, GLYPHS, characters, flavor=flavor)


def reason(path):
    return message_of(ValueError, draw_glyphs, path, seed=0)


def box(picture):
    rows, columns = np.nonzero(picture > INK)
    return rows.min(), rows.max(), columns.min(), columns.max()


def test_the_characters_are_the_papers_36_classes():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 36
    assert "".join(CHARACTERS) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def test_a_seed_gives_the_same_pictures_again_and_another_others(tmp_path):
    file = box_font(tmp_path)
    (x, y), (again, y_again), (other, _) = (draw_glyphs(file, seed=s) for s in (3, 3, 4))
    assert x.dtype == np.uint8
    assert np.array_equal(x, again)
    assert y == y_again
    assert x.shape != other.shape or not np.array_equal(x, other)


def test_the_pictures_of_a_character_do_not_depend_on_the_others(tmp_path):
    file = box_font(tmp_path)
    everything, classes = draw_glyphs(file, seed=0)
    alone, zeros = draw_glyphs(file, seed=0, characters="O")
    assert set(zeros) == {0}
    assert np.array_equal(alone, everything[np.array(classes) == CHARACTERS.index("O")])


def test_characters_are_varied_each_in_its_own_way(tmp_path):
    file = box_font(tmp_path, A="ell")
    one, other = (draw_glyphs(file, seed=0, characters=c)[0] for c in "AL")
    assert one.shape != other.shape or not np.array_equal(one, other)


def test_there_are_two_to_eighteen_pictures_of_a_character_and_every_number_occurs(tmp_path):
    file = box_font(tmp_path)
    counts = [len(draw_glyphs(file, seed=s, characters="L", side=8)[1]) for s in range(150)]
    assert set(counts) == set(range(2, 19))


def test_classes_are_indices_of_what_is_drawn(tmp_path):
    x, y = draw_glyphs(box_font(tmp_path), seed=0, characters=("I", "x", "L", "O"))
    assert len(x) == len(y)
    assert set(y) == {0, 2, 3}
    for picture, label in zip(x, y, strict=True):
        top, bottom, left, right = box(picture)
        longer = (right - left + 1) / (bottom - top + 1)
        # The bar lies, the L stands, the dot is as high as it is wide.
        assert (longer > 1.5, longer < 0.85, 0.9 < longer < 1.1).index(True) == [0, 2, 3].index(
            label
        )


def test_copies_differ_in_their_angle_size_and_noise(tmp_path):
    x, _ = draw_glyphs(box_font(tmp_path), seed=1, characters="L")
    assert len(np.unique(x, axis=0)) == len(x) > 2
    assert all((a != b).any() for a, b in combinations((x > 128).astype(int), 2))
    corners = x[:, :3, :3].astype(float)
    # Noise below black is cut off: of a normal distribution, half.
    assert 0.3 < (corners > 0).mean() < 0.6
    assert 5 < corners[corners > 0].mean() < 20


def test_the_angles_of_copies_are_spread_over_their_range(tmp_path):
    file = box_font(tmp_path)
    drawn = np.concatenate([draw_glyphs(file, seed=s, characters="I")[0] for s in range(20)])
    places = [np.nonzero(picture > INK) for picture in drawn]
    slopes = [np.polyfit(columns, rows, 1)[0] for rows, columns in places]
    degrees = np.degrees(np.arctan(slopes))
    assert degrees.max() == pytest.approx(MAX_DEGREES, abs=1)
    assert degrees.min() == pytest.approx(-MAX_DEGREES, abs=1)
    assert degrees.std() == pytest.approx(MAX_DEGREES / np.sqrt(3), rel=0.1)


def test_the_sizes_of_copies_are_spread_over_their_range(tmp_path):
    file = box_font(tmp_path)
    drawn = np.concatenate([draw_glyphs(file, seed=s, characters="O")[0] for s in range(20)])
    sides = np.sqrt((drawn > INK).sum(axis=(1, 2)))
    assert sides.max() == pytest.approx(24, rel=0.03)
    assert sides.min() == pytest.approx(24 * MIN_SCALE, rel=0.03)
    assert sides.mean() == pytest.approx(24 * (1 + MIN_SCALE) / 2, rel=0.03)


@pytest.mark.parametrize("side", [16, 28, 32, 64])
@pytest.mark.parametrize("character", ["L", "I", "O"])
def test_a_glyph_is_centred_fills_three_quarters_and_is_never_cut(tmp_path, side, character):
    frame = _center(_draw_inks(box_font(tmp_path), character, em=6 * side)[character], side)
    top, bottom, left, right = box(np.asarray(frame))
    assert abs(top + bottom + 1 - frame.height) <= 1
    assert abs(left + right + 1 - frame.width) <= 1
    assert max(bottom - top, right - left) + 1 == pytest.approx(0.75 * frame.width, abs=1)
    ink = np.asarray(frame, dtype=float).sum() / 4
    for degrees in np.linspace(-MAX_DEGREES, MAX_DEGREES, 7):
        turned = _transform(frame, degrees, 1.0)
        assert turned.shape == (side, side)
        # What is cut off would be missing from the sum.
        assert turned.sum() == pytest.approx(ink, rel=0.01)


def test_a_glyph_is_turned_by_the_angle_and_drawn_at_the_size_asked_for(tmp_path):
    frame = _center(_draw_inks(box_font(tmp_path), "I")["I"], 64)
    for degrees in (-15.0, -4.0, 0.0, 9.0):
        rows, columns = np.nonzero(_transform(frame, degrees, 1.0) > 128)
        slope = np.polyfit(columns - 31.5, rows - 31.5, 1)
        assert abs(np.degrees(np.arctan(slope[0]))) == pytest.approx(abs(degrees), abs=0.7)
        assert slope[1] == pytest.approx(0, abs=0.3)
    widths = [np.ptp(np.nonzero(_transform(frame, 0.0, s) > 128)[1]) + 1 for s in (1.0, MIN_SCALE)]
    assert widths[1] / widths[0] == pytest.approx(MIN_SCALE, abs=0.03)


def test_ink_outside_the_advance_of_a_glyph_is_drawn(tmp_path):
    ink = _draw_inks(box_font(tmp_path), "I")["I"]
    # 1,200 units wide and 100 high, in a glyph whose advance is 600.
    assert ink.width / ink.height == pytest.approx(12, rel=0.1)


def test_a_character_that_the_font_lacks_is_left_out_and_the_others_keep_their_class(tmp_path):
    file = box_font(tmp_path)
    assert missing_characters(file) == [c for c in CHARACTERS if c not in "LIO"]
    assert {CHARACTERS[i] for i in draw_glyphs(file, seed=0)[1]} == set("LIO")


@pytest.mark.parametrize("glyph", ["blank", ".notdef"])
def test_a_letter_without_an_outline_or_with_that_of_unknown_ones_is_missing(tmp_path, glyph):
    assert missing_characters(box_font(tmp_path, A=glyph), "ALI") == ["A"]


def test_a_font_without_any_of_the_characters_gives_no_pictures(tmp_path):
    x, y = draw_glyphs(box_font(tmp_path), seed=0, characters="xyz", side=20)
    assert x.shape == (0, 20, 20)
    assert y == []


@pytest.mark.parametrize("suffix", FONT_SUFFIXES)
def test_every_format_gives_the_same_pictures(tmp_path, suffix):
    flavor = suffix[1:] if "woff" in suffix else None
    file = box_font(tmp_path, name=f"same{suffix}", flavor=flavor)
    for result, expected in zip(
        draw_glyphs(file, seed=0), draw_glyphs(box_font(tmp_path), seed=0), strict=True
    ):
        assert np.array_equal(result, expected)


def test_a_packed_font_can_be_unpacked_for_a_drawing_library_that_cannot(tmp_path):
    packed = box_font(tmp_path, name="packed.woff2", flavor="woff2")
    plain = tmp_path / "plain.ttf"
    plain.write_bytes(_unpack_woff2(packed.read_bytes()))
    assert plain.read_bytes()[:4] == b"\x00\x01\x00\x00"
    assert np.array_equal(draw_glyphs(packed, seed=0)[0], draw_glyphs(plain, seed=0)[0])


@pytest.mark.parametrize("suffix", FONT_SUFFIXES)
def test_a_file_that_is_no_font_is_refused(tmp_path, suffix):
    file = tmp_path / f"notes{suffix}"
    file.write_text("no font at all\n" * 50)
    assert reason(file).startswith("not a font: ")
    file.write_bytes(b"")
    assert reason(file) == "empty file"


@pytest.mark.parametrize("flavor", [None, "woff", "woff2"])
@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.99])
def test_a_truncated_font_is_refused(tmp_path, flavor, part):
    file = box_font(tmp_path, flavor=flavor)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * part)])
    assert reason(file).startswith(("not a font: ", "truncated: "))


def test_a_font_that_ends_within_its_outlines_is_refused(tmp_path):
    with box_font(tmp_path).open("rb") as file, (tmp_path / "cut.ttf").open("wb") as cut:
        reorderFontTables(file, cut, tableOrder=["cmap", "head", "maxp", "post"])
    whole = (tmp_path / "cut.ttf").read_bytes()
    assert missing_characters(tmp_path / "cut.ttf", "LIO") == []
    (tmp_path / "cut.ttf").write_bytes(whole[:-20])
    assert reason(tmp_path / "cut.ttf").startswith("truncated: ")


@pytest.mark.parametrize("flavor", [None, "woff", "woff2"])
def test_a_damaged_font_is_drawn_or_refused_but_never_another_error(tmp_path, flavor):
    file = box_font(tmp_path, flavor=flavor)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 5):
            damaged[place] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            missing_characters(file)
        except ValueError:
            refused += 1
    assert refused


def test_a_missing_font_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        draw_glyphs(tmp_path / "none.ttf", seed=0)


@pytest.fixture(scope="module")
def real_fonts():
    folder = data_root() / "fonts"
    if not folder.is_dir():
        pytest.skip(f"no {folder}; AFIELD_DATA names the folder with fonts")
    return sorted(folder.glob("*.woff2"))


@pytest.mark.data
@pytest.mark.slow
def test_every_real_font_has_36_characters_that_differ_and_are_not_cut(real_fonts):
    assert len(real_fonts) == 122
    for file in real_fonts:
        inks = _draw_inks(file, CHARACTERS)
        assert tuple(inks) == CHARACTERS, file.stem
        pictures = {
            c: _transform(_center(ink, 32), 0.0, 1.0).astype(int) for c, ink in inks.items()
        }
        for one, other in combinations(CHARACTERS, 2):
            apart = abs(pictures[one] - pictures[other]).sum()
            both = np.maximum(pictures[one], pictures[other]).sum()
            assert apart > 0.05 * both, (file.stem, one, other)
        for ink in inks.values():
            turned = _transform(_center(ink, 32), MAX_DEGREES, 1.0)
            assert max(turned[[0, -1]].max(), turned[:, [0, -1]].max()) <= 2, file.stem


@pytest.mark.data
def test_a_real_font_gives_two_to_eighteen_pictures_of_all_36_classes(real_fonts):
    x, y = draw_glyphs(real_fonts[0], seed=0)
    counts = np.bincount(y, minlength=36)
    assert counts.min() >= 2
    assert counts.max() <= 18
    assert x.shape == (counts.sum(), 32, 32)
    assert (x.max(axis=(1, 2)) > 80).all()
