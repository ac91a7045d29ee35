"""A user's own data: what is read, and what is refused with the name of the culprit."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from afield.domains import gaps
from afield.errors import DataError, UnknownNameError
from afield.readers import SIDE, array_file, find_dataset, image_folder

RED = (200, 10, 20)


def picture(mode: str = "RGB", colour=RED, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new(mode, size, colour)


def saved(image: Image.Image, path: Path, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(root: Path, *, domains=("photo", "sketch"), classes=("cup", "pot"), each: int = 2) -> Path:
    for domain in domains:
        for label in classes:
            for i in range(each):
                saved(picture(), root / domain / label / f"{i}.png")
    return root


def everywhere(root: Path, image: Image.Image, name: str) -> torch.Tensor:
    """The first sample of a tree that consists of copies of one picture."""
    for domain in ("photo", "sketch"):
        for label in ("cup", "pot"):
            saved(image, root / domain / label / name)
    return image_folder(root).load()["photo"].x[0]


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


def test_domains_and_classes_are_read_off_the_tree(tmp_path):
    found = image_folder(tree(tmp_path / "mine", domains=("b", "a"), classes=("y", "x", "z")))
    assert (found.name, found.domains, found.classes) == ("mine", ("a", "b"), ("x", "y", "z"))
    loaded = found.load()
    assert list(loaded) == ["a", "b"]
    for domain in loaded.values():
        assert domain.y.tolist() == [0, 0, 1, 1, 2, 2]
        assert domain.x.shape == (6, 3, SIDE, SIDE)
        assert domain.x.dtype == torch.uint8


def test_every_picture_has_the_label_of_its_folder(tmp_path):
    for d, domain in enumerate(("photo", "sketch")):
        for c, label in enumerate(("cup", "jug", "pot")):
            saved(picture(colour=(100 * d, 50 * c, 0)), tmp_path / domain / label / "only.png")
    for d, domain in enumerate(image_folder(tmp_path).load().values()):
        assert domain.y.tolist() == [0, 1, 2]
        assert domain.x[:, :, 0, 0].tolist() == [[100 * d, 50 * c, 0] for c in range(3)]


@pytest.mark.parametrize("name", ["1.png", "1.jpg", "1.jpeg", "1.bmp", "1.webp", "1.tif", "1.TIFF"])
def test_all_common_formats_are_read(tmp_path, name):
    x = everywhere(tmp_path, picture(), name)
    assert x.shape == (3, SIDE, SIDE)
    # A lossy format may be off by a little.
    assert (x.flatten(1).float().mean(1) - torch.tensor(RED)).abs().max() < 8


def test_up_is_up_and_left_is_left(tmp_path):
    image = picture("L", 0, size=(SIDE, SIDE))
    image.putpixel((6, 1), 255)
    x = everywhere(tmp_path, image, "1.png")
    assert (x == 255).nonzero().tolist() == [[channel, 1, 6] for channel in range(3)]


@pytest.mark.parametrize("changed", [picture(size=(200, 9)), picture("L", 7), picture("1", 1)])
def test_what_the_pictures_of_one_domain_are_like_changes_nothing_in_another(tmp_path, changed):
    before = image_folder(tree(tmp_path)).load()["sketch"].x
    for file in (tmp_path / "photo").rglob("*.png"):
        saved(changed, file)
    found = image_folder(tmp_path).load()
    assert torch.equal(found["sketch"].x, before)
    assert found["photo"].x.shape[1:] == (3, SIDE, SIDE)


def test_a_class_missing_in_one_domain_is_fine_and_reported(tmp_path):
    saved(picture(), tree(tmp_path) / "photo" / "jug" / "0.png")
    found = image_folder(tmp_path)
    loaded = found.load()
    assert found.classes == ("cup", "jug", "pot")
    assert loaded["sketch"].y.tolist() == [0, 0, 2, 2]
    assert gaps(loaded, found.classes) == ["domain 'sketch' has no sample of class 'jug'"]


def test_palette_pictures_show_their_colours(tmp_path):
    image = picture("P", 1)
    image.putpalette([0, 0, 0, *RED])
    assert everywhere(tmp_path, image, "1.png")[:, 3, 3].tolist() == list(RED)


def test_pictures_with_transparency_keep_their_colours(tmp_path):
    assert everywhere(tmp_path, picture("RGBA", (*RED, 255)), "1.png")[:, 3, 3].tolist() == list(
        RED
    )


@pytest.mark.parametrize("name", ["1.tif", "1.jpg"])
def test_pictures_in_printing_colours_are_converted(tmp_path, name):
    x = everywhere(tmp_path, picture("CMYK", (100, 50, 20, 0)), name)
    assert (x[:, 3, 3].float() - torch.tensor([155.0, 205.0, 235.0])).abs().max() < 4


@pytest.mark.parametrize("name", ["1.png", "1.tif"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path, name):
    values = np.linspace(0, 65535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE)
    x = everywhere(tmp_path, Image.fromarray(values), name)
    assert np.abs(x[0].numpy() - values / 257).max() <= 1


def test_grey_is_the_same_in_all_three_channels(tmp_path):
    everywhere(tmp_path, picture("L", 77), "1.png")
    saved(picture(), tmp_path / "sketch" / "cup" / "2.png")
    loaded = image_folder(tmp_path).load()
    assert loaded["photo"].x[0, :, 0, 0].tolist() == [77, 77, 77]
    assert loaded["sketch"].x[1, :, 0, 0].tolist() == list(RED)


def test_hidden_files_and_clutter_are_passed_over(tmp_path):
    before = image_folder(tree(tmp_path))
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", ".hidden.png"):
        (tmp_path / "photo" / "cup" / name).write_bytes(b"clutter")
        (tmp_path / "photo" / name).write_bytes(b"clutter")
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    (tmp_path / "photo" / ".cache").mkdir()
    after = image_folder(tmp_path)
    assert (after.domains, after.classes) == (before.domains, before.classes)
    assert after.fingerprint == before.fingerprint
    assert len(after.load()["photo"].y) == 4


def test_the_fingerprint_of_a_tree_changes_with_its_files(tmp_path):
    before = image_folder(tree(tmp_path)).fingerprint
    assert image_folder(tmp_path).fingerprint == before != ""
    extra = saved(picture(), tmp_path / "photo" / "cup" / "new.png")
    added = image_folder(tmp_path).fingerprint
    extra.rename(tmp_path / "photo" / "pot" / "new.png")
    assert len({before, added, image_folder(tmp_path).fingerprint}) == 3


def test_a_domain_without_a_picture_is_named(tmp_path):
    (tree(tmp_path) / "clipart" / "cup").mkdir(parents=True)
    with pytest.raises(DataError, match="clipart: no picture in this domain"):
        image_folder(tmp_path)


def test_a_single_domain_is_too_few(tmp_path):
    with pytest.raises(DataError, match=r"mine: 1 domain folder.* at least two"):
        image_folder(tree(tmp_path / "mine", domains=("photo",)))


def test_a_single_class_is_too_few(tmp_path):
    with pytest.raises(DataError, match="mine: only class 'cup'"):
        image_folder(tree(tmp_path / "mine", classes=("cup",)))


def test_a_folder_without_folders_is_refused(tmp_path):
    with pytest.raises(DataError, match="0 domain folder"):
        find_dataset(tmp_path)


def test_a_text_named_like_a_picture_is_named(tmp_path):
    (tree(tmp_path) / "photo" / "cup" / "notes.png").write_text("not a picture")
    with pytest.raises(DataError, match=r"not an image.*broken.*: .*photo/cup/notes\.png \("):
        image_folder(tmp_path).load()


def test_an_empty_file_is_named(tmp_path):
    (tree(tmp_path) / "photo" / "cup" / "empty.jpg").touch()
    with pytest.raises(DataError, match=r"photo/cup/empty\.jpg"):
        image_folder(tmp_path).load()


@pytest.mark.parametrize("name", ["half.jpg", "half.png", "half.bmp", "half.webp"])
def test_a_truncated_picture_is_named(tmp_path, name):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    file = saved(Image.fromarray(noise), tree(tmp_path) / "sketch" / "pot" / name)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=f"sketch/pot/{name}"):
        image_folder(tmp_path).load()


def test_of_many_broken_pictures_five_are_named_and_the_rest_counted(tmp_path):
    tree(tmp_path)
    for i in range(7):
        (tmp_path / "photo" / "cup" / f"bad{i}.png").write_text("no")
    with pytest.raises(DataError, match=r"bad0.*bad4\.png.* and 2 more") as caught:
        image_folder(tmp_path).load()
    assert "bad5" not in str(caught.value)


def test_a_stray_file_in_a_class_folder_is_named(tmp_path):
    (tree(tmp_path) / "photo" / "cup" / "labels.txt").write_text("cup")
    with pytest.raises(DataError, match=r"photo/cup/labels\.txt: not an image"):
        image_folder(tmp_path)


def test_a_picture_outside_a_class_folder_is_named(tmp_path):
    saved(picture(), tree(tmp_path) / "photo" / "lost.png")
    with pytest.raises(DataError, match=r"photo/lost\.png: outside a class folder"):
        image_folder(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "nothing.npz"])
def test_a_missing_path_is_named(tmp_path, name):
    with pytest.raises(DataError, match=f"no file or folder .*/{name}"):
        find_dataset(tmp_path / name)


def test_a_dataset_is_found_by_name_by_folder_and_by_file(tmp_path, monkeypatch):
    tree(tmp_path / "pictures")
    npz(tmp_path, **arrays())
    monkeypatch.chdir(tmp_path)
    assert find_dataset("spirals").name == "spirals"
    for spec in ("pictures", "mine.npz"):
        found = find_dataset(spec)
        # From elsewhere the same data are found again.
        assert found.spec == str(tmp_path / spec)
        assert find_dataset(found.spec).fingerprint == found.fingerprint


def test_a_name_that_is_neither_dataset_nor_path_is_answered_with_a_guess():
    with pytest.raises(UnknownNameError, match="'spirls'; did you mean 'spirals'"):
        find_dataset("spirls")


def test_arrays_are_read_domain_by_domain(tmp_path):
    content = arrays()
    found = array_file(npz(tmp_path, **content))
    assert (found.name, found.domains, found.classes) == ("mine", ("art", "photo"), ("0", "1", "2"))
    assert found.training.backbone == "small:mlp"
    for name, domain in found.load().items():
        rows = content["domain"] == name
        assert torch.equal(domain.x, torch.from_numpy(content["X"][rows]))
        assert domain.y.tolist() == content["y"][rows].tolist()


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["cup", "jug", "cup", "ant"], ("ant", "cup", "jug")),
        ([b"cup", b"jug", b"cup", b"ant"], ("ant", "cup", "jug")),
        ([10, 9, 10, -1], ("-1", "9", "10")),
        ([True, False, True, True], ("False", "True")),
    ],
)
def test_labels_and_domains_may_be_names_or_numbers(tmp_path, labels, classes):
    labels = np.array(labels)
    file = npz(tmp_path, X=np.eye(8, 3), y=np.tile(labels, 2), domain=np.repeat([20, 7], 4))
    found = array_file(file)
    assert found.domains == ("7", "20")
    assert found.classes == classes
    for domain in found.load().values():
        written = [label.decode() if isinstance(label, bytes) else str(label) for label in labels]
        assert [classes[i] for i in domain.y] == written
        assert domain.y.dtype == torch.int64


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16, np.uint16])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_may_have_their_channels_first_or_last(tmp_path, dtype, channels):
    first = np.arange(12 * channels * 5 * 6).reshape(12, channels, 5, 6) % 251
    first = first.astype(dtype)
    both = []
    for x in (first, first.transpose(0, 2, 3, 1)):
        found = array_file(npz(tmp_path, **arrays(X=x)))
        assert found.training.backbone == "small:cnn"
        both.append(torch.cat([domain.x for domain in found.load().values()]))
    assert torch.equal(*both)
    assert torch.equal(both[0].double(), torch.from_numpy(first.astype(np.float64)))
    assert both[0].dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)


def test_pictures_without_channels_get_one(tmp_path):
    x = np.arange(12 * 5 * 6, dtype=np.uint8).reshape(12, 5, 6)
    loaded = array_file(npz(tmp_path, **arrays(X=x))).load()
    assert torch.equal(torch.cat([d.x for d in loaded.values()])[:, 0], torch.from_numpy(x))


def test_features_in_bytes_are_numbers_and_no_picture(tmp_path):
    loaded = array_file(npz(tmp_path, **arrays(X=np.ones((12, 4), np.uint8)))).load()
    assert loaded["art"].x.dtype == torch.float32


def with_value(value: float) -> np.ndarray:
    x = arrays()["X"]
    x[7, 2] = value
    return x


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"y": np.arange(11) % 3}, r"unequal length \(X 12, y 11, domain 12\)"),
        ({"y": np.array(1)}, "unequal length"),
        ({"X": with_value(np.nan)}, r"NaN or infinity in X, 1 sample\(s\), first 7"),
        ({"X": with_value(np.inf)}, "NaN or infinity in X"),
        ({"domain": None}, "no array domain; it has X, y"),
        ({"X": None, "y": None}, "no array X, y; it has domain"),
        ({"y": np.array([0, "a"] * 6, dtype=object)}, "nothing is unpickled"),
        ({"domain": np.zeros(12, int)}, "all samples are of domain '0'"),
        ({"y": np.array(["cup"] * 12)}, "all samples are of class 'cup'"),
        ({"y": np.linspace(0, 1, 12)}, "y is float64 .* one whole number or name a sample"),
        ({"y": np.eye(12, 3, dtype=int)}, r"y is int64 of shape \(12, 3\)"),
        ({"X": np.arange(12.0)}, r"X is float64 of shape \(12,\)"),
        ({"X": np.array(["a"] * 12)[:, None]}, "X is <U1"),
        ({"X": np.ones((12, 2), complex)}, "X is complex128"),
        ({name: value[:0] for name, value in arrays().items()}, "no samples"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_with_the_reason(tmp_path, changed, told):
    file = npz(tmp_path, **arrays(**changed))
    with pytest.raises(DataError, match=rf"mine\.npz: .*{told}"):
        find_dataset(file)


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "mine.npz").write_text("not a zip")
    with pytest.raises(DataError, match=r"mine\.npz: not an \.npz"):
        find_dataset(tmp_path / "mine.npz")


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_nothing_in_an_archive_is_ever_unpickled(tmp_path):
    trace = tmp_path / "trace"
    file = npz(tmp_path, **arrays(domain=np.array([Trap(trace)] * 12)))
    with pytest.raises(DataError):
        array_file(file)
    assert not trace.exists()
    np.load(file, allow_pickle=True)["domain"]
    assert trace.exists()


def test_the_fingerprint_of_an_archive_changes_with_a_single_number(tmp_path):
    before = array_file(npz(tmp_path, **arrays())).fingerprint
    assert array_file(npz(tmp_path, **arrays())).fingerprint == before != ""
    changed = npz(tmp_path, **arrays(X=with_value(0.0)))
    # Written within one tick of the file system's clock, it would look unchanged.
    os.utime(changed, (1, 1))
    assert array_file(changed).fingerprint != before


def test_an_archive_that_changes_after_it_was_opened_is_noticed(tmp_path):
    found = array_file(npz(tmp_path, **arrays()))
    npz(tmp_path, **arrays(y=np.arange(12) % 2))
    with pytest.raises(DataError, match="changed since it was opened"):
        found.load()


def bad(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        find_dataset(tmp_path / name)


def test_an_empty_archive_is_refused(tmp_path):
    bad(tmp_path, "mine.npz", b"")


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "mine.npy", np.eye(4))
    with pytest.raises(DataError, match="no array X"):
        find_dataset(tmp_path / "mine.npy")


def test_a_truncated_archive_is_refused(tmp_path):
    whole = npz(tmp_path, **arrays()).read_bytes()
    bad(tmp_path, "half.npz", whole[: len(whole) // 2])


def test_a_broken_compressed_archive_is_refused(tmp_path):
    np.savez_compressed(
        tmp_path / "c.npz",
        X=np.random.default_rng(0).random((400, 40)),
        y=np.arange(400) % 2,
        domain=np.arange(400) // 200,
    )
    whole = bytearray((tmp_path / "c.npz").read_bytes())
    start = whole.index(b"X.npy") + 25
    whole[start : start + 8] = b"\xff" * 8
    bad(tmp_path, "d.npz", bytes(whole))


def test_arrays_of_the_other_byte_order_are_read(tmp_path):
    x = arrays()["X"].astype(">f4")
    assert array_file(npz(tmp_path, **arrays(X=x))).load()["art"].x.shape == (6, 4)


def test_a_changed_picture_of_the_same_size_changes_the_fingerprint(tmp_path):
    everywhere(tmp_path, picture(), "1.bmp")
    before = image_folder(tmp_path).fingerprint
    saved(picture(colour=(1, 2, 3)), tmp_path / "photo" / "cup" / "1.bmp")
    assert image_folder(tmp_path).fingerprint != before


def test_a_picture_outside_a_domain_folder_is_named(tmp_path):
    saved(picture(), tree(tmp_path) / "lost.png")
    with pytest.raises(DataError, match="lost"):
        image_folder(tmp_path)


def test_a_picture_below_a_class_folder_is_named(tmp_path):
    saved(picture(), tree(tmp_path) / "photo" / "cup" / "sub" / "lost.png")
    with pytest.raises(DataError, match="sub"):
        image_folder(tmp_path)


def test_a_domain_of_one_sample_is_refused_when_it_is_read(tmp_path):
    domain = np.array(["art"] * 11 + ["photo"])
    with pytest.raises(DataError, match="photo"):
        find_dataset(npz(tmp_path, **arrays(domain=domain))).load()


def test_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = picture("P", 1)
    image.putpalette([0, 0, 0, 200, 10, 20])
    for d in ("a", "b"):
        for c in ("x", "y"):
            saved(image, tmp_path / d / c / "1.png", transparency=b"\x00\x80")
    image_folder(tmp_path).load()


def test_grey_with_transparency_is_grey(tmp_path):
    x = everywhere(tmp_path, Image.new("LA", (8, 8), (77, 255)), "1.png")
    assert x[:, 3, 3].tolist() == [77, 77, 77]
