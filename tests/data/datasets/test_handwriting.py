"""Omniglot's Sanskrit, from folders and archives, by writer."""

import shutil
from io import BytesIO
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

from afield.data.datasets.handwriting import FOLDER, NAMES, PATHS, handwriting
from afield.data.domains import ReadOptions, data_root
from afield.errors import DataError
from tests.messages import message_of

SMALL = "images_background_small2"


def drawing(character, writer, *, size=(105, 105)):
    """Black on white: a box as high as the character's number, as wide as twice the writer's."""
    image = Image.new("1", size, 1)
    image.paste(0, (10, 10, 10 + 2 * writer, 10 + 2 * character))
    file = BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()


def name_of(character, writer):
    return f"Sanskrit/character{character:02}/{850 + character:04}_{writer:02}.png"


DRAWINGS = {name_of(c, w): drawing(c, w) for c in range(1, 43) for w in range(1, 21)}


def archive(root, drawings=DRAWINGS, *, name=SMALL):
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    path = root / FOLDER / f"{name}.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as file:
        file.writestr(f"{name}/Greek/character01/0394_01.png", drawing(1, 1))
        file.mkdir(f"{name}/Sanskrit")
        for member, content in drawings.items():
            file.writestr(f"{name}/{member}", content)
    return path


def loaded(root):
    return handwriting(root).load(ReadOptions(root))


def refusal(root):
    return message_of(DataError, loaded, root)


def test_every_writer_is_a_domain_with_every_character_once(tmp_path):
    archive(tmp_path)
    domains = loaded(tmp_path)
    assert tuple(domains) == NAMES
    assert (NAMES[0], NAMES[-1], len(NAMES)) == ("writer01", "writer20", 20)
    for domain in domains.values():
        assert domain.x.shape == (42, 1, 32, 32)
        assert domain.x.dtype == torch.uint8
        assert domain.y.tolist() == list(range(42))


def test_a_drawing_is_that_of_its_writer_and_character_in_white_on_black(tmp_path):
    archive(tmp_path)
    for writer, domain in enumerate(loaded(tmp_path).values(), start=1):
        assert (domain.x[:, 0, -1, -1] == 0).all()
        for character, x in enumerate(domain.x[:, 0].float(), start=1):
            bright = x > x.max() / 2
            height, width = bright.any(dim=1).sum().item(), bright.any(dim=0).sum().item()
            assert height == pytest.approx(2 * character * 32 / 105, abs=1.2)
            assert width == pytest.approx(2 * writer * 32 / 105, abs=1.2)


@pytest.mark.parametrize("name", ["images_background", SMALL])
def test_a_folder_gives_what_the_archive_gives(tmp_path, name):
    with ZipFile(archive(tmp_path / "packed", name=name)) as file:
        file.extractall(tmp_path / "unpacked" / FOLDER)
    packed, unpacked = loaded(tmp_path / "packed"), loaded(tmp_path / "unpacked")
    for writer in NAMES:
        assert torch.equal(packed[writer].x, unpacked[writer].x)
        assert torch.equal(packed[writer].y, unpacked[writer].y)


def test_nothing_is_unpacked(tmp_path):
    path = archive(tmp_path)
    loaded(tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == [path]


def test_of_several_places_the_first_is_read(tmp_path):
    archive(tmp_path, {})
    assert handwriting(tmp_path).needs == (f"{FOLDER}/{SMALL}.zip",)
    archive(tmp_path, name="images_background")
    assert handwriting(tmp_path).needs == (f"{FOLDER}/images_background.zip",)
    assert len(loaded(tmp_path)) == 20


def test_without_files_it_is_declared_and_says_what_to_do(tmp_path):
    dataset = handwriting(tmp_path)
    assert dataset.needs == PATHS[:1]
    assert len(dataset.classes) == 42
    assert "`afield data get handwriting` downloads it" in refusal(tmp_path)


def test_what_is_fetched_is_unpacked_to_where_it_is_looked_for(tmp_path):
    (fetched,) = handwriting(tmp_path).download.archives
    made = f"{fetched.folder}/{fetched.name.removesuffix('.zip')}"
    assert handwriting(tmp_path).needs == (made,)


def test_a_missing_drawing_is_reported(tmp_path):
    archive(tmp_path, {k: v for k, v in DRAWINGS.items() if k != name_of(7, 3)})
    assert "domain 'writer03' has 41 samples, not 42" in refusal(tmp_path)


def test_an_archive_without_the_alphabet_is_reported(tmp_path):
    archive(tmp_path, {})
    assert "domain 'writer01' has 0 samples, not 42" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (name_of(7, 3), b"not a picture", "cannot identify image"),
        (name_of(7, 3), drawing(7, 3)[:60], "truncated"),
        (name_of(7, 3), drawing(7, 3, size=(28, 28)), "28 × 28 pixels instead of 105 × 105"),
        (name_of(7, 3), bytes(20_000), "20,000 bytes, too many for a drawing"),
        (name_of(7, 21), drawing(7, 21), "not a drawing of this dataset"),
        (name_of(7, 0), drawing(7, 1), "not a drawing of this dataset"),
        (name_of(43, 1), drawing(43, 1), "not a drawing of this dataset"),
        ("Sanskrit/character01/notes.png", drawing(1, 1), "not a drawing of this dataset"),
    ],
)
def test_a_drawing_that_is_none_is_named(tmp_path, name, content, message):
    archive(tmp_path, DRAWINGS | {name: content})
    refused = refusal(tmp_path)
    assert refused.startswith(f"{tmp_path / FOLDER / SMALL}.zip/{SMALL}/{name}: ")
    assert message in refused
    assert refused.endswith(f"; delete {SMALL}.zip and download it again")


def test_a_broken_archive_is_named(tmp_path):
    path = archive(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert refusal(tmp_path).startswith(f"{path}: File is not a zip file")


def test_a_damaged_member_is_named(tmp_path):
    path = archive(tmp_path)
    whole = bytearray(path.read_bytes())
    place = whole.index(name_of(7, 3).encode()) + len(name_of(7, 3)) + 40
    whole[place : place + 4] = b"\xff\x00\xff\x00"
    path.write_bytes(whole)
    assert name_of(7, 3) in refusal(tmp_path)


@pytest.mark.data
def test_the_real_writers_drew_42_characters_that_are_distinct(tmp_path):
    real = data_root() / FOLDER / f"{SMALL}.zip"
    if not real.is_file():
        pytest.skip(f"no {real}; AFIELD_DATA names the folder with omniglot")
    (tmp_path / FOLDER).mkdir()
    shutil.copy(real, tmp_path / FOLDER)
    domains = loaded(tmp_path)
    x = torch.stack([domain.x.float().flatten(1) for domain in domains.values()]).numpy()
    assert x.shape == (20, 42, 1024)
    # A tenth of a drawing is ink at most: it is white, and the paper black.
    assert 5 < x.mean() < 26
    flat = x.reshape(840, -1)
    assert len(np.unique(flat, axis=0)) == 840
    likeness = np.corrcoef(flat)
    same = np.kron(np.ones((20, 20)), np.eye(42)).astype(bool)
    others = np.kron(1 - np.eye(20), np.ones((42, 42))).astype(bool)
    assert likeness[same & others].mean() > likeness[~same & others].mean() + 0.03
