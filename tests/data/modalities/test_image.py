"""One picture file: every mode and depth is understood, and what is none is refused quickly."""

import resource
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from afield.data.modalities.image import IMAGE_ERRORS, read_image, silence_pillow
from afield.data.modality import find_modality
from tests.files import RED, bomb, noise, plain, saved
from tests.messages import message_of

IMAGE = find_modality("pictures")
SIDE = 16
MB_IN_KB = 1024


def reason(path: Path) -> str:
    return message_of(IMAGE_ERRORS, read_image, path, SIDE)


def test_pictures_are_kept_an_eighth_larger_than_they_are_seen():
    assert [IMAGE.stored_side(size) for size in (64, 112, 224)] == [73, 128, 256]


@pytest.mark.parametrize("suffix", IMAGE.suffixes)
def test_all_common_formats_are_read(tmp_path, suffix):
    x = read_image(saved(plain(), tmp_path / f"a{suffix}"), SIDE)
    assert x.shape == (SIDE, SIDE, 3)
    assert x.dtype == np.uint8
    # A lossy format may be off by a little.
    assert abs(x.reshape(-1, 3).mean(0) - RED).max() < 8


def test_what_is_in_a_file_counts_and_not_its_name(tmp_path):
    assert read_image(saved(plain(), tmp_path / "a.jpg", format="PNG"), SIDE)[3, 3].tolist() == [
        *RED
    ]


def test_up_is_up_and_left_is_left(tmp_path):
    image = plain("L", 0, size=(SIDE, SIDE))
    image.putpixel((6, 1), 255)
    x = read_image(saved(image, tmp_path / "a.png"), SIDE)
    assert np.argwhere(x[:, :, 0] == 255).tolist() == [[1, 6]]


@pytest.mark.parametrize("size", [(300, 10), (10, 300), (SIDE, SIDE), (4, 4)])
def test_every_shape_is_squeezed_to_a_square(tmp_path, size):
    left = plain(size=size)
    left.paste((0, 0, 0), (size[0] // 2, 0, *size))
    x = read_image(saved(left, tmp_path / "a.png"), SIDE)
    assert x.shape == (SIDE, SIDE, 3)
    assert (x[:, :5] == RED).all()
    assert (x[:, -5:] == 0).all()


@pytest.mark.parametrize(
    ("orientation", "name"),
    [*((n, "a.jpg") for n in range(1, 9)), (6, "a.png"), (6, "a.webp"), (6, "a.tif")],
)
def test_pictures_of_a_turned_camera_are_upright(tmp_path, orientation, name):
    image = plain(size=(64, 48))
    image.paste((0, 0, 250), (0, 0, 32, 12))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = saved(image, tmp_path / name, exif=exif)
    with Image.open(file) as raw:
        expected = ImageOps.exif_transpose(raw).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    result = read_image(file, SIDE)
    # A JPEG is read at a lower resolution than here, so edges differ a little.
    assert abs(result.astype(int) - np.asarray(expected)).mean() < 5
    straight = read_image(saved(image, tmp_path / "straight.png"), SIDE)
    assert (abs(result.astype(int) - straight).mean() > 10) == (orientation != 1)


def test_odd_metadata_beside_the_orientation_do_not_matter(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "hello"
    file = saved(plain(), tmp_path / "a.jpg", exif=exif)
    whole = bytearray(file.read_bytes())
    # The description says that it is a text, under a tag whose values are numbers.
    whole[whole.index(b"Exif") + 17] = 0x01
    file.write_bytes(whole)
    assert abs(read_image(file, SIDE)[3, 3].astype(int) - RED).max() < 8


def palette() -> Image.Image:
    image = plain("P", 1)
    image.putpalette([0, 0, 0, *RED])
    return image


@pytest.mark.parametrize(
    ("image", "options", "colour"),
    [
        (palette(), {}, RED),
        (palette(), {"transparency": b"\x00\x80"}, RED),
        (plain("RGBA", (*RED, 128)), {}, RED),
        (plain("L", 77), {}, (77, 77, 77)),
        (plain("LA", (77, 255)), {}, (77, 77, 77)),
        (plain("1", 0), {}, (0, 0, 0)),
        (plain("1", 1), {}, (255, 255, 255)),
    ],
)
def test_every_mode_is_read_in_its_colours(tmp_path, image, options, colour):
    assert (read_image(saved(image, tmp_path / "a.png", **options), SIDE) == colour).all()


@pytest.mark.parametrize("name", ["a.tif", "a.jpg"])
def test_printing_colours_are_converted(tmp_path, name):
    x = read_image(saved(plain("CMYK", (100, 50, 20, 0)), tmp_path / name), SIDE)
    assert abs(x[3, 3].astype(int) - (155, 205, 235)).max() < 4


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [
        ("a.png", np.uint16, 65_535),
        ("a.tif", np.uint16, 65_535),
        ("a.tif", np.int32, 255),
        ("a.tif", np.int32, 65_535),
        ("a.tif", np.float32, 1.0),
        ("a.tif", np.float32, 255.0),
    ],
)
def test_deeper_grey_is_scaled_and_not_clipped(tmp_path, name, dtype, most):
    values = np.linspace(0, most, SIDE * SIDE).astype(dtype).reshape(SIDE, SIDE)
    x = read_image(saved(Image.fromarray(values), tmp_path / name), SIDE)
    assert abs(x - (values.astype(float) * 255 / most)[..., None]).max() <= 1


def test_pixels_that_are_no_numbers_are_refused(tmp_path):
    values = np.full((8, 8), np.nan, np.float32)
    assert "NaN" in reason(saved(Image.fromarray(values), tmp_path / "a.tif"))


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (200, 3)])
def test_what_is_too_small_to_be_a_picture_is_refused(tmp_path, size):
    message = reason(saved(plain(size=size), tmp_path / "a.png"))
    assert message == f"{size[0]} × {size[1]} pixels, too small for an image"


# For PostScript, Pillow would start Ghostscript.
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize("content", [b"", b"not a picture", POSTSCRIPT, b"GIF"])
def test_a_file_of_another_format_is_refused_whatever_its_name_is(tmp_path, content):
    if content == b"GIF":
        saved(plain(size=(32, 32)), tmp_path / "a.png", format="GIF")
    else:
        (tmp_path / "a.png").write_bytes(content)
    assert "cannot identify" in reason(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", IMAGE.suffixes)
def test_half_a_file_is_refused(tmp_path, suffix):
    for share in (0.1, 0.5, 0.9):
        file = saved(noise(), tmp_path / f"{share}{suffix}")
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
        reason(file)


@pytest.mark.parametrize("kind", [2, 5, 12])
def test_a_broken_header_is_refused_whatever_pillow_makes_of_it(tmp_path, kind):
    file = saved(noise(8), tmp_path / "a.tif")
    whole = bytearray(file.read_bytes())
    # Where the rows begin is no longer a whole number, but a text or a fraction.
    whole[whole.index(struct.pack("<H", 0x0111)) + 2] = kind
    file.write_bytes(whole)
    assert reason(file).startswith("broken: ")


def test_a_bomb_is_refused_without_being_unpacked(tmp_path, monkeypatch):
    file = bomb(tmp_path / "bomb.png")
    assert file.stat().st_size < 2**20
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda _: pytest.fail("it is unpacked"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "decompression bomb" in reason(file)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50 * MB_IN_KB


def test_the_bomb_of_these_tests_would_go_off(tmp_path):
    assert (read_image(bomb(tmp_path / "small.png", side=800), SIDE) == 0).all()


def test_large_is_not_yet_a_bomb(tmp_path, monkeypatch):
    file = saved(plain(size=(80, 80)), tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    with pytest.warns(Image.DecompressionBombWarning, match="6400 pixels"):
        read_image(file, SIDE)
    before = list(warnings.filters)
    with silence_pillow():
        assert read_image(file, SIDE)[3, 3].tolist() == [*RED]
    assert warnings.filters == before
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)
    assert "decompression bomb" in reason(file)
