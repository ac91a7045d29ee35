"""Folders as data: what is read, and what is refused in one line with the name of the culprit."""

import os
import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from afield.data.domains import DomainSet, ReadOptions, missing_class_warnings
from afield.data.log_mel import LogMel
from afield.data.lookup import find_dataset
from afield.data.modalities.audio import Audio
from afield.data.modality import find_modality
from afield.data.sources.folders import LabeledFile, folder_dataset, folder_reader, read_files
from afield.errors import DataError
from tests.files import (
    RED,
    assert_rows_fit,
    bomb,
    common,
    forbidden,
    noise,
    numbered,
    plain,
    powerless,
    refusal,
    saved,
    small,
    spoken,
    tone,
    tree,
    words,
)

IMAGE = find_modality("pictures")
SIDE = IMAGE.stored_side(64)


def test_domains_and_classes_are_read_off_the_tree(tmp_path):
    dataset = folder_dataset(tree(tmp_path / "mine", domains=("b", "a"), classes=("y", "x", "z")))
    assert (dataset.name, dataset.domains, dataset.classes) == ("mine", ("a", "b"), ("x", "y", "z"))
    assert dataset.modality == IMAGE
    loaded = dataset.load()
    assert list(loaded) == ["a", "b"]
    for domain in loaded.values():
        assert domain.y.tolist() == [0, 0, 1, 1, 2, 2]
        assert domain.x.shape == (6, 3, SIDE, SIDE)
        assert domain.x.dtype == torch.uint8
        assert domain.test is None


def test_every_picture_has_the_label_of_its_folder_and_its_own_name(tmp_path):
    loaded = small(numbered(tmp_path))
    assert [len(domain.y) for domain in loaded.values()] == [12, 12]
    assert_rows_fit(loaded)


def test_a_picture_is_stored_at_the_side_that_is_asked_for(tmp_path):
    dataset = folder_dataset(tree(tmp_path))
    for side in (8, 20):
        assert dataset.load(ReadOptions(tmp_path, side=side))["photo"].x.shape == (4, 3, side, side)


def test_up_is_up_and_left_is_left(tmp_path):
    image = plain("L", 0, size=(8, 8))
    image.putpixel((6, 1), 255)
    saved(image, tree(tmp_path) / "photo" / "cup" / "0.png")
    x = small(tmp_path)["photo"].x[0]
    assert (x == 255).nonzero().tolist() == [[channel, 1, 6] for channel in range(3)]


@pytest.mark.parametrize("changed", [plain(size=(200, 9)), plain("L", 7), plain("1", 1)])
def test_what_the_pictures_of_one_domain_are_like_changes_nothing_in_another(tmp_path, changed):
    before = small(tree(tmp_path))["sketch"].x
    for file in (tmp_path / "photo").rglob("*.png"):
        saved(changed, file)
    dataset = small(tmp_path)
    assert torch.equal(dataset["sketch"].x, before)
    assert dataset["photo"].x.shape[1:] == (3, 8, 8)


def test_a_class_missing_in_one_domain_is_fine_and_reported(tmp_path):
    saved(plain(), tree(tmp_path) / "photo" / "jug" / "0.png")
    dataset = folder_dataset(tmp_path)
    loaded = dataset.load()
    assert dataset.classes == ("cup", "jug", "pot")
    assert loaded["sketch"].y.tolist() == [0, 0, 2, 2]
    assert missing_class_warnings(loaded, dataset.classes) == [
        "domain 'sketch' has no sample of class 'jug'"
    ]


def test_the_fingerprint_of_a_tree_changes_with_its_files(tmp_path):
    before = folder_dataset(tree(tmp_path)).fingerprint
    assert folder_dataset(tmp_path).fingerprint == before != ""
    extra = saved(plain(), tmp_path / "photo" / "cup" / "new.png")
    added = folder_dataset(tmp_path).fingerprint
    extra.rename(tmp_path / "photo" / "pot" / "new.png")
    assert len({before, added, folder_dataset(tmp_path).fingerprint}) == 3


def test_a_changed_picture_of_the_same_size_changes_the_fingerprint(tmp_path):
    file = saved(plain(), tree(tmp_path) / "photo" / "cup" / "1.bmp")
    before, size = folder_dataset(tmp_path).fingerprint, file.stat().st_size
    saved(plain(colour=(1, 2, 3)), file)
    assert file.stat().st_size == size
    assert folder_dataset(tmp_path).fingerprint != before


ADVICE = "); replace them, or use"


def half_a_photograph(path: Path) -> None:
    saved(noise(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "photo/cup/notes.png",
            partial(Path.write_text, data="no"),
            f"cannot identify image file{ADVICE}",
        ),
        ("photo/cup/empty.jpg", Path.touch, "cannot identify"),
        ("sketch/pot/half.jpg", half_a_photograph, "image file is truncated"),
        (
            "photo/cup/dot.png",
            lambda path: saved(plain(size=(1, 1)), path),
            "1 × 1 pixels, too small for an image)",
        ),
        ("photo/cup/bomb.png", bomb, "Image size (400000000 pixels) exceeds limit"),
    ],
)
def test_a_file_that_is_no_picture_is_named(tmp_path, name, write, message):
    write(tree(tmp_path) / name)
    refused = refusal(tmp_path)
    # Once, and without the way to it.
    assert f"1 broken file(s), or not images: {name} ({message}" in refused
    assert ADVICE in refused


@pytest.mark.parametrize(
    ("names", "messages"),
    [
        ({"domains": ("photo",)}, ["mine: 1 domain folder(s)", "at least two"]),
        ({"classes": ("cup",)}, ["mine: only class 'cup'"]),
        ({"domains": ()}, ["0 domain folder"]),
    ],
)
def test_a_single_domain_or_class_is_too_few(tmp_path, names, messages):
    (tmp_path / "mine").mkdir()
    refused = refusal(tree(tmp_path / "mine", **names))
    assert all(message in refused for message in messages)


def test_a_domain_without_a_picture_is_named(tmp_path):
    (tree(tmp_path) / "clipart" / "cup").mkdir(parents=True)
    assert "clipart: no image in this domain" in refusal(tmp_path)


def test_the_folder_above_the_dataset_is_answered_with_a_guess(tmp_path):
    tree(tmp_path / "above" / "PACS")
    assert refusal(tmp_path / "above").endswith(f"; did you mean {tmp_path}/above/PACS?")


def test_large_pictures_are_read_without_a_warning_by_many_threads(tmp_path, monkeypatch):
    tree(tmp_path)
    for i in range(40):
        saved(plain(size=(80, 80)), tmp_path / "photo" / "cup" / f"{i}.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    before = list(warnings.filters)
    result = small(tmp_path)["photo"]
    assert warnings.filters == before
    assert (result.x[:, :, 0, 0] == torch.tensor(RED)).all()


def test_of_many_broken_pictures_five_are_named_and_the_rest_counted(tmp_path):
    tree(tmp_path)
    for i in range(7):
        (tmp_path / "photo" / "cup" / f"bad{i}.png").write_text("no")
    message = refusal(tmp_path)
    assert "7 broken file(s)" in message
    assert [f"bad{i}.png" in message for i in range(7)] == [True] * 5 + [False] * 2
    assert " and 2 more" in message


BAD = {
    "first": ["photo/cup/0.png"],
    "last": ["sketch/pot/3.png"],
    "at the border": ["photo/pot/3.png", "sketch/cup/0.png"],
    "a whole class": [f"photo/jug/{i}.png" for i in range(4)],
    "here and there": [
        "photo/cup/0.png",
        "photo/cup/1.png",
        "photo/jug/2.png",
        "sketch/cup/3.png",
        "sketch/jug/0.png",
        "sketch/pot/2.png",
        "sketch/pot/3.png",
    ],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_broken_files_are_left_out_and_counted_and_the_others_keep_label_and_name(tmp_path, bad):
    numbered(tmp_path)
    for name in bad:
        (tmp_path / name).write_text("no")
    for result in (small(tmp_path, skip_broken=True), small(tmp_path, skip_broken=True)):
        assert_rows_fit(result)
        broken = {name: why for domain in result.values() for name, why in domain.broken.items()}
        assert broken == dict.fromkeys(bad, "cannot identify image file")
        kept = [name for domain in result.values() for name in domain.names]
        assert len(kept) == 24 - len(bad)
        for domain, inside in result.items():
            assert all(name.startswith(f"{domain}/") for name in inside.broken)
    assert "--skip-broken" in refusal(tmp_path)


def test_a_domain_of_nothing_but_broken_files_is_refused(tmp_path):
    for file in (tree(tmp_path) / "photo").rglob("*.png"):
        file.write_text("no")
    with pytest.raises(
        DataError, match=r"domain 'photo': 0 sample\(s\); training and validation need"
    ):
        small(tmp_path, skip_broken=True)


def test_a_mended_file_is_read_again(tmp_path):
    file = numbered(tmp_path) / "photo" / "cup" / "1.png"
    whole = file.read_bytes()
    file.write_text("no")
    assert "photo/cup/1.png" in refusal(tmp_path)
    file.write_bytes(whole)
    assert_rows_fit(small(tmp_path))


def test_a_file_that_may_not_be_read_is_named_until_it_may():
    with common() as folder:
        root = numbered(folder / "mine")
        with forbidden(root / "photo" / "cup" / "2.png"):
            assert "photo/cup/2.png ([Errno 13] Permission denied)" in refusal(root)
            dataset = small(root, skip_broken=True)
            assert list(dataset["photo"].broken) == ["photo/cup/2.png"]
            assert_rows_fit(dataset)
            before = folder_dataset(root).fingerprint
        with powerless():
            assert_rows_fit(small(root))
            assert folder_dataset(root).fingerprint != before


def test_names_may_have_spaces_and_letters_of_all_kinds(tmp_path):
    domains, classes = ("Ölbild, groß", "写真 2", "naïve art"), ("tasse à café", "чашка ☕")
    root = tree(tmp_path / "meine Bilder", domains=domains, classes=classes)
    dataset = find_dataset(root)
    assert set(dataset.domains) == set(domains)
    assert set(dataset.classes) == set(classes)
    loaded = dataset.load()
    assert list(loaded) == list(dataset.domains)
    for name, domain in loaded.items():
        assert domain.y.tolist() == [0, 0, 1, 1]
        assert domain.names[0] == f"{name}/{dataset.classes[0]}/0.png"
    (root / domains[0] / classes[0] / "kaputt ß.png").write_text("no")
    assert f"{domains[0]}/{classes[0]}/kaputt ß.png (cannot identify" in refusal(root)


def test_names_that_are_no_unicode_are_read(tmp_path):
    root = tree(tmp_path / "mine")
    try:
        (root / "photo" / "cup" / "0.png").rename(os.fsdecode(bytes(root) + b"/photo/cup/\xe4.png"))
    except OSError:
        pytest.skip("the file system takes nothing but Unicode")
    assert len(find_dataset(root).load()["photo"].y) == 4


def declared(**changed) -> DomainSet:
    names = {"domains": ("photo", "sketch"), "classes": ("cup", "jug", "pot")} | changed
    return DomainSet("mine", **names, reader=folder_reader("here", **names))


def test_a_declared_dataset_has_its_own_order_of_domains_and_classes(tmp_path):
    numbered(tmp_path / "here")
    dataset = declared(domains=("sketch", "photo"), classes=("pot", "cup", "jug"))
    domains = dataset.load(ReadOptions(tmp_path, side=8))
    assert list(domains) == ["sketch", "photo"]
    for domain in domains.values():
        assert [dataset.classes[i] for i in domain.y] == [n.split("/")[1] for n in domain.names]


def test_a_declared_dataset_is_complete_and_has_nothing_else(tmp_path):
    numbered(tmp_path / "here")
    with pytest.raises(DataError, match="here: no folder 'clipart'; the dataset is not complete"):
        declared(domains=("photo", "clipart")).load(ReadOptions(tmp_path))
    with pytest.raises(DataError, match=r"here/photo/pot: not a class of this dataset"):
        declared(classes=("cup", "jug")).load(ReadOptions(tmp_path))


def test_files_of_any_arrangement_are_read(tmp_path):
    flat = [saved(plain(colour=(i, 0, 0)), tmp_path / f"{i}.png") for i in range(6)]
    plan = {
        "odd": [LabeledFile(flat[i], label=i // 2, test=i > 3) for i in (5, 1, 3)],
        "even": [LabeledFile(flat[i], label=i // 2) for i in (0, 2, 4)],
    }
    domains = read_files(tmp_path, plan, IMAGE, ReadOptions(tmp_path, side=8))
    assert domains["odd"].x[:, 0, 0, 0].tolist() == [5, 1, 3]
    assert domains["odd"].y.tolist() == [2, 0, 1]
    assert domains["odd"].test.tolist() == [True, False, False]
    assert domains["even"].x[:, 0, 0, 0].tolist() == [0, 2, 4]
    assert domains["even"].names == ["0.png", "2.png", "4.png"]
    assert domains["even"].test is None


def pitch(features: torch.Tensor) -> int:
    """The loudest bin in the middle of a clip."""
    return int(features[0, :, 49].float().argmax())


def test_a_folder_of_sounds_is_read_as_features(tmp_path):
    dataset = find_dataset(words(tmp_path))
    assert (dataset.domains, dataset.classes) == (("ann", "bob"), ("no", "yes"))
    assert dataset.modality == Audio()
    for domain in dataset.load().values():
        assert domain.y.tolist() == [0, 1]
        assert domain.x.shape == (2, *LogMel().shape)
        assert domain.x.dtype == torch.float16
        assert pitch(domain.x[0]) < pitch(domain.x[1])


def test_a_truncated_sound_is_named(tmp_path):
    file = words(tmp_path) / "bob" / "yes" / "0.wav"
    file.write_bytes(file.read_bytes()[:-1000])
    message = refusal(tmp_path)
    assert "1 broken file(s), or not audio files" in message
    assert "bob/yes/0.wav (truncated: 31000 of 32000 bytes of audio)" in message


def test_broken_sounds_are_left_out_on_request(tmp_path):
    words(tmp_path)
    (tmp_path / "ann" / "no" / "1.wav").write_text("no")
    (tmp_path / "bob" / "yes" / "1.wav").touch()
    domains = folder_dataset(tmp_path).load(ReadOptions(tmp_path, skip_broken=True))
    assert domains["bob"].broken == {"bob/yes/1.wav": "empty file"}
    assert list(domains["ann"].broken) == ["ann/no/1.wav"]
    for domain in domains.values():
        assert domain.y.tolist() == [0, 1]
        assert pitch(domain.x[0]) < pitch(domain.x[1])


@pytest.mark.parametrize(("first", "what"), [("a", "audio file"), ("z", "image")])
def test_pictures_and_sounds_in_one_tree_are_refused(tmp_path, first, what):
    """Whichever comes first says what the others should be."""
    spoken(tree(tmp_path) / "photo" / "cup" / f"{first}.wav", tone(500.0))
    for file in (tmp_path / "photo" / "cup").glob("*.png"):
        file.rename(file.with_name(f"m{file.name}"))
    message = refusal(tmp_path)
    assert f"photo/cup/{'m0.png' if what == 'audio file' else 'z.wav'}: not an {what} (." in message


def test_sounds_may_be_asked_for_in_another_form(tmp_path):
    form = LogMel(rate=8_000, bins=20)
    names = {"domains": ("ann", "bob"), "classes": ("no", "yes")}
    words(tmp_path / "here")
    result = folder_reader("here", **names, modality=Audio(form))(ReadOptions(tmp_path))
    assert result["ann"].x.shape == (2, *form.shape)


def test_a_class_folder_without_files_changes_the_fingerprint_as_it_changes_the_classes(tmp_path):
    before = folder_dataset(tree(tmp_path))
    (tmp_path / "photo" / "vase").mkdir()
    after = folder_dataset(tmp_path)
    assert after.classes == (*before.classes, "vase")
    assert after.fingerprint != before.fingerprint


DEAD_LINK = "a broken link; remove it"


def test_hidden_files_and_clutter_are_passed_over(tmp_path):
    before = folder_dataset(tree(tmp_path))
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", ".hidden.png"):
        (tmp_path / "photo" / "cup" / name).write_bytes(b"clutter")
        (tmp_path / "photo" / name).write_bytes(b"clutter")
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    (tmp_path / "photo" / ".cache").mkdir()
    after = folder_dataset(tmp_path)
    assert (after.domains, after.classes) == (before.domains, before.classes)
    assert after.fingerprint == before.fingerprint
    assert len(after.load()["photo"].y) == 4


def text(path: Path) -> None:
    path.write_text("cup")


def image(path: Path) -> None:
    saved(plain(), path)


def link_to(target: str):
    return lambda path: path.symlink_to(path.parent / target)


@pytest.mark.parametrize(
    ("name", "add", "message"),
    [
        ("photo/cup/labels.txt", text, "not an image (.png, .jpg"),
        ("photo/lost.png", image, "outside a class folder; move it to"),
        ("lost.png", image, "outside a domain folder; move it to"),
        ("photo/cup/2.png", os.mkfifo, "not a regular file; remove it"),
        ("photo/cup/new.png", link_to("nothing.png"), DEAD_LINK),
        ("photo/cup/new", link_to("nothing.png"), DEAD_LINK),
        ("photo/new", link_to("nothing.png"), DEAD_LINK),
        ("new", link_to("nothing.png"), DEAD_LINK),
        # Links to themselves.
        ("photo/cup/new.png", link_to("new.png"), DEAD_LINK),
        ("photo/new", link_to("new"), DEAD_LINK),
        ("new", link_to("new"), DEAD_LINK),
    ],
)
def test_what_does_not_belong_in_a_tree_is_named(tmp_path, name, add, message):
    add(tree(tmp_path) / name)
    actual = refusal(tmp_path)
    assert actual.startswith(f"{tmp_path / name}: {message}")
    assert message != DEAD_LINK or actual.endswith(message)


def test_a_picture_below_a_class_folder_is_named(tmp_path):
    saved(plain(), tree(tmp_path) / "photo" / "cup" / "sub" / "lost.png")
    assert "photo/cup/sub: a folder in a class folder" in refusal(tmp_path)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize("name", [".", "photo", "photo/cup"])
def test_a_folder_that_may_not_be_read_is_named(name, mode):
    with common() as folder:
        path = tree(folder / "mine") / name
        with forbidden(path, mode):
            assert refusal(folder / "mine") == f"{path}: cannot be read (Permission denied)"


@pytest.mark.parametrize("name", ["photo/cup/up", "photo/up", "up"])
def test_a_link_up_the_tree_is_not_followed_for_ever(tmp_path, name):
    (tree(tmp_path) / name).symlink_to(tmp_path)
    message = refusal(tmp_path)
    assert message.startswith(str(tmp_path / name))
    assert ": a folder in a class folder; move its images up" in message


def test_linked_files_and_folders_are_read_as_if_they_were_there(tmp_path):
    elsewhere = numbered(tmp_path / "elsewhere")
    (tmp_path / "mine" / "sketch").mkdir(parents=True)
    (tmp_path / "mine" / "photo").symlink_to(elsewhere / "photo")
    for label in ("cup", "jug", "pot"):
        (tmp_path / "mine" / "sketch" / label).mkdir()
        for i in range(4):
            place = Path("sketch") / label / f"{i}.png"
            (tmp_path / "mine" / place).symlink_to(elsewhere / place)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    dataset = find_dataset(tmp_path / "link")
    assert dataset.spec == str(tmp_path / "mine")
    assert_rows_fit(dataset.load())


def lists(root: Path, lines: dict[str, str | bytes | None]) -> Path:
    for name, content in lines.items():
        if content is not None:
            encoded = content.encode() if isinstance(content, str) else content
            (root / f"{name}.txt").write_bytes(encoded)
    return root


def with_lists(root: Path, **changed: str | bytes | None) -> Path:
    """Of every class, file 0 is for training, file 3 for the test, and the others are for none."""
    plan = {
        f"{domain}_{part}": "".join(f"{domain}/{c}/{i}.png\n" for c in ("cup", "jug", "pot"))
        for domain in ("photo", "sketch")
        for part, i in (("train", 0), ("test", 3))
    }
    return lists(numbered(root), plan | changed)


def test_lists_say_what_is_tested_and_what_is_left_out(tmp_path):
    dataset = small(with_lists(tmp_path))
    assert_rows_fit(dataset)
    for domain in dataset.values():
        assert [Path(name).stem for name in domain.names] == ["0", "3"] * 3
        assert domain.test.tolist() == [False, True] * 3


def test_a_third_list_is_for_validation(tmp_path):
    thirds = {
        f"{domain}_val": f"{domain}/cup/1.png 0\n{domain}/pot/1.png 2\n"
        for domain in ("photo", "sketch")
    }
    for domain in small(with_lists(tmp_path, **thirds)).values():
        splits = zip(domain.names, domain.test.tolist(), domain.validation.tolist(), strict=True)
        for name, test, validation in splits:
            assert (test, validation) == {"0": (0, 0), "1": (0, 1), "3": (1, 0)}[Path(name).stem]
        assert int(domain.validation.sum()) == 2


def test_lists_of_paths_and_labels_are_understood(tmp_path):
    train, test = (f"photo/cup/{i}.png 0\nphoto/pot/{i}.png 17\n" for i in (1, 2))
    dataset = small(with_lists(tmp_path, photo_train=train, photo_test=test))
    assert_rows_fit(dataset)
    # The folders say what the classes are; the numbers are other people's.
    assert dataset["photo"].y.tolist() == [0, 0, 2, 2]
    assert dataset["photo"].test.tolist() == [False, True] * 2


def test_listed_names_may_have_spaces_with_and_without_a_label(tmp_path):
    for i, name in enumerate(("my cup.png", "my cup 2.png", "cup.png 3.png")):
        saved(plain(colour=(i, 0, 0)), tmp_path / "photo" / "cup" / name)
    train = "photo/cup/my cup.png\r\nphoto/cup/my cup 2.png 0\r\n\r\n"
    with_lists(tmp_path, photo_train=train, photo_test="photo/cup/cup.png 3.png")
    result = small(tmp_path)["photo"]
    assert dict(zip(result.names, result.test.tolist(), strict=True)) == {
        "photo/cup/cup.png 3.png": True,
        "photo/cup/my cup 2.png": False,
        "photo/cup/my cup.png": False,
    }
    assert sorted(result.x[:, 0, 0, 0].tolist()) == [0, 1, 2]


def test_a_list_may_begin_with_a_mark_of_its_encoding(tmp_path):
    with_lists(tmp_path, photo_train="\ufeffphoto/cup/0.png\n")
    assert "photo/cup/0.png" in small(tmp_path)["photo"].names


@pytest.mark.parametrize(
    "line", ["photo/cup/gone.png", "photo/cup/my gone.png", "sketch/cup/0.png"]
)
@pytest.mark.parametrize("label", ["", " 7"])
def test_a_listed_file_that_is_not_there_is_named(tmp_path, line, label):
    message = refusal(with_lists(tmp_path, photo_test=f"photo/cup/1.png\n{line}{label}\n"))
    where = tmp_path / "photo_test.txt"
    assert message == f"{where}: '{line}{label}' is not a file of domain 'photo'"


TWICE = (r"/photo_test\.txt: 'photo/cup/", r"is listed twice, or on both lists$")
MISSING = r"\.txt: missing, unlike .*give all lists or none$"


@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        ({"photo_test": "photo/cup/1.png\n" * 2}, TWICE),
        ({"photo_test": "photo/cup/1.png\nphoto/cup/0.png\n"}, TWICE),
        ({"photo_train": None}, (rf"/photo_train{MISSING}",)),
        ({"sketch_test": None}, (rf"/sketch_test{MISSING}",)),
        ({"photo_val": "photo/cup/1.png\n"}, (r"/sketch_val\.txt: missing, unlike ",)),
        (
            {"photo_val": "photo/cup/0.png\n", "sketch_val": "sketch/cup/1.png\n"},
            ("on both lists",),
        ),
        ({"sketch_test": "\n"}, (r"/sketch_train\.txt, _test\.txt: one of the lists is empty$",)),
        ({"photo_test": b"photo/\xe4.png"}, (r"photo_test\.txt: cannot be read as a list \(",)),
    ],
    ids=str,
)
def test_lists_that_cannot_be_used_are_named(tmp_path, changed, messages):
    message = refusal(with_lists(tmp_path, **changed))
    assert message.startswith(str(tmp_path))
    assert re.search(".*".join(messages), message)


def test_a_list_that_may_not_be_read_is_named():
    with common() as folder, forbidden(with_lists(folder / "mine") / "photo_test.txt"):
        assert "photo_test.txt: cannot be read as a list ([Errno 13]" in refusal(folder / "mine")


def test_another_split_of_the_same_files_is_another_fingerprint(tmp_path):
    before = folder_dataset(with_lists(tmp_path)).fingerprint
    train, test = (tmp_path / f"photo_{part}.txt" for part in ("train", "test"))
    lists(tmp_path, {"photo_train": test.read_text(), "photo_test": train.read_text()})
    assert folder_dataset(tmp_path).fingerprint != before


def test_broken_files_leave_the_lists_in_step(tmp_path):
    with_lists(tmp_path)
    for name in ("photo/cup/0.png", "photo/jug/3.png", "sketch/pot/3.png", "sketch/pot/2.png"):
        (tmp_path / name).write_text("no")
    dataset = small(tmp_path, skip_broken=True)
    assert_rows_fit(dataset)
    for domain in dataset.values():
        assert [name.endswith("3.png") for name in domain.names] == domain.test.tolist()
    # What is on no list is not even opened.
    assert list(dataset["sketch"].broken) == ["sketch/pot/3.png"]


def test_a_name_that_is_not_utf_8_is_refused_and_a_long_one_is_not(tmp_path):
    tree(tmp_path, domains=("a" * 250, "two"))
    assert folder_dataset(tmp_path).domains == ("a" * 250, "two")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")  # noqa: PTH102  a path of bytes
    assert "the name is not UTF-8; rename it" in refusal(tmp_path)
