"""Trees of labeled files and their lists: what is read, and what is refused by name."""

import os
from pathlib import Path

import pytest

from afield.data.domains import Domain, ReadOptions
from afield.data.lookup import find_dataset
from afield.data.modalities.image import Image
from afield.data.sources.folders import (
    folder_dataset,
)
from afield.errors import DataError
from tests.files import (
    assert_rows_fit,
    common,
    forbidden,
    numbered,
    plain,
    refusal,
    saved,
    tree,
)

SIDE = Image().stored_side(64)


def small(path: Path, *, skip_broken: bool = False) -> dict[str, Domain]:
    return folder_dataset(path).load(ReadOptions(path, side=8, skip_broken=skip_broken))


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


def test_a_stray_file_in_a_class_folder_is_named(tmp_path):
    (tree(tmp_path) / "photo" / "cup" / "labels.txt").write_text("cup")
    assert "photo/cup/labels.txt: not an image (.png, .jpg" in refusal(tmp_path)


def test_a_picture_outside_a_class_folder_is_named(tmp_path):
    saved(plain(), tree(tmp_path) / "photo" / "lost.png")
    assert "photo/lost.png: outside a class folder; move it to" in refusal(tmp_path)


def test_a_picture_outside_a_domain_folder_is_named(tmp_path):
    saved(plain(), tree(tmp_path) / "lost.png")
    assert "lost.png: outside a domain folder; move it to" in refusal(tmp_path)


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


@pytest.mark.parametrize("name", ["photo/cup/new.png", "photo/cup/new", "photo/new", "new"])
def test_a_dead_link_is_named(tmp_path, name):
    (tree(tmp_path) / name).symlink_to(tmp_path / "nothing.png")
    assert refusal(tmp_path) == f"{tmp_path / name}: a broken link; remove it"


@pytest.mark.parametrize("name", ["photo/cup/new.png", "photo/new", "new"])
def test_a_link_to_itself_is_named(tmp_path, name):
    (tree(tmp_path) / name).symlink_to(tmp_path / name)
    assert refusal(tmp_path) == f"{tmp_path / name}: a broken link; remove it"


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
    found = find_dataset(tmp_path / "link")
    assert found.spec == str(tmp_path / "mine")
    assert_rows_fit(found.load())


def lists(root: Path, lines: dict[str, str]) -> Path:
    for name, content in lines.items():
        (root / f"{name}.txt").write_text(content, encoding="utf-8")
    return root


def with_lists(root: Path, **changed: str) -> Path:
    """Of every class, file 0 is for training, file 3 for the test, and the others are for none."""
    plan = {
        f"{domain}_{part}": "".join(f"{domain}/{c}/{i}.png\n" for c in ("cup", "jug", "pot"))
        for domain in ("photo", "sketch")
        for part, i in (("train", 0), ("test", 3))
    }
    return lists(numbered(root), plan | changed)


def test_lists_say_what_is_tested_and_what_is_left_out(tmp_path):
    found = small(with_lists(tmp_path))
    assert_rows_fit(found)
    for domain in found.values():
        assert [Path(name).stem for name in domain.names] == ["0", "3"] * 3
        assert domain.test.tolist() == [False, True] * 3


def test_a_third_list_is_for_validation(tmp_path):
    thirds = {
        f"{domain}_val": f"{domain}/cup/1.png 0\n{domain}/pot/1.png 2\n"
        for domain in ("photo", "sketch")
    }
    found = small(with_lists(tmp_path, **thirds))
    for domain in found.values():
        splits = zip(domain.names, domain.test.tolist(), domain.validation.tolist(), strict=True)
        for name, test, validation in splits:
            assert (test, validation) == {"0": (0, 0), "1": (0, 1), "3": (1, 0)}[Path(name).stem]
        assert int(domain.validation.sum()) == 2


def test_a_third_list_is_for_all_domains_or_for_none(tmp_path):
    message = refusal(with_lists(tmp_path, photo_val="photo/cup/1.png\n"))
    assert message.startswith(f"{tmp_path / 'sketch_val.txt'}: missing, unlike ")
    both = {"photo_val": "photo/cup/0.png\n", "sketch_val": "sketch/cup/1.png\n"}
    assert "on both lists" in refusal(with_lists(tmp_path, **both))


def test_lists_of_paths_and_labels_are_understood(tmp_path):
    train, test = (f"photo/cup/{i}.png 0\nphoto/pot/{i}.png 17\n" for i in (1, 2))
    found = small(with_lists(tmp_path, photo_train=train, photo_test=test))
    assert_rows_fit(found)
    # The folders say what the classes are; the numbers are other people's.
    assert found["photo"].y.tolist() == [0, 0, 2, 2]
    assert found["photo"].test.tolist() == [False, True] * 2


def test_listed_names_may_have_spaces_with_and_without_a_label(tmp_path):
    for i, name in enumerate(("my cup.png", "my cup 2.png", "cup.png 3.png")):
        saved(plain(colour=(i, 0, 0)), tmp_path / "photo" / "cup" / name)
    train = "photo/cup/my cup.png\r\nphoto/cup/my cup 2.png 0\r\n\r\n"
    with_lists(tmp_path, photo_train=train, photo_test="photo/cup/cup.png 3.png")
    found = small(tmp_path)["photo"]
    assert dict(zip(found.names, found.test.tolist(), strict=True)) == {
        "photo/cup/cup.png 3.png": True,
        "photo/cup/my cup 2.png": False,
        "photo/cup/my cup.png": False,
    }
    assert sorted(found.x[:, 0, 0, 0].tolist()) == [0, 1, 2]


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


@pytest.mark.parametrize("twice", ["photo/cup/1.png\n" * 2, "photo/cup/1.png\nphoto/cup/0.png\n"])
def test_a_file_that_is_listed_twice_is_named(tmp_path, twice):
    message = refusal(with_lists(tmp_path, photo_test=twice))
    assert message.startswith(f"{tmp_path / 'photo_test.txt'}: 'photo/cup/")
    assert message.endswith("is listed twice, or on both lists")


@pytest.mark.parametrize("name", ["photo_train.txt", "sketch_test.txt"])
def test_a_list_that_is_missing_is_named(tmp_path, name):
    (with_lists(tmp_path) / name).unlink()
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / name}: missing, unlike ")
    assert message.endswith("give all lists or none")


def test_an_empty_list_is_named(tmp_path):
    message = refusal(with_lists(tmp_path, sketch_test="\n"))
    assert message == f"{tmp_path / 'sketch'}_train.txt, _test.txt: one of the lists is empty"


def test_a_list_that_is_no_text_is_named(tmp_path):
    (with_lists(tmp_path) / "photo_test.txt").write_bytes(b"photo/cup/\xe4.png")
    assert "photo_test.txt: cannot be read as a list (" in refusal(tmp_path)


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
    found = small(tmp_path, skip_broken=True)
    assert_rows_fit(found)
    for domain in found.values():
        assert [name.endswith("3.png") for name in domain.names] == domain.test.tolist()
    # What is on no list is not even opened.
    assert list(found["sketch"].broken) == ["sketch/pot/3.png"]


def test_a_pipe_in_a_class_folder_is_named_and_not_waited_for(tmp_path):
    for domain in ("one", "two"):
        for label in ("a", "b"):
            saved(plain(), tmp_path / domain / label / "1.png")
    os.mkfifo(tmp_path / "one" / "a" / "2.png")
    with pytest.raises(DataError, match=r"2\.png: not a regular file; remove it"):
        folder_dataset(tmp_path)


def test_a_name_that_is_not_utf_8_is_refused_and_a_long_one_is_not(tmp_path):
    for domain in ("a" * 250, "two"):
        for label in ("a", "b"):
            saved(plain(), tmp_path / domain / label / "1.png")
    assert folder_dataset(tmp_path).domains == ("a" * 250, "two")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")  # noqa: PTH102  a path of bytes
    with pytest.raises(DataError, match="the name is not UTF-8; rename it"):
        folder_dataset(tmp_path)
