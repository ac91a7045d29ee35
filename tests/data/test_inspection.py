"""What is found in data that were spoiled on purpose."""

import hashlib
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from afield import registry
from afield.data.domains import DomainSet, ReadOptions
from afield.data.inspection import (
    MAX_CELLS,
    contact_sheet,
    describe_facts,
    describe_prompts,
    get_dataset,
    inspect_dataset,
    list_availability,
)
from afield.data.lookup import find_dataset
from afield.errors import DataError, SpecError, UnknownNameError
from afield.progress import report_progress_to
from tests.data.downloadable import NAME, archive_of, served
from tests.files import words
from tests.messages import message_of
from tests.texts import reviews, write_reviews

EACH = 4


def save(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def noise(number):
    return np.random.default_rng(number).integers(0, 256, (20, 24, 3)).astype(np.uint8)


def pictures(root, counts):
    """As many pictures of noise of each domain and class as asked for, no two alike."""
    number = 0
    for (domain, label), count in counts.items():
        for i in range(count):
            save(noise(number), root / domain / label / f"{i}.png")
            number += 1
    return root


@pytest.fixture
def own(tmp_path):
    labels = ("cup", "pot")
    return pictures(tmp_path / "own", {(d, c): EACH for d in ("a", "b", "c") for c in labels})


def arrays(path, x, *, domains=("a", "b"), classes=("x", "y")):
    """Two samples of each domain and class, with these values."""
    many = len(domains) * len(classes) * 2
    np.savez(
        path,
        X=np.resize(x, (many, *x.shape[1:])),
        y=np.tile(np.repeat(classes, 2), len(domains)),
        domain=np.repeat(domains, 2 * len(classes)),
    )
    return path


def test_samples_are_counted_by_domain_and_class(tmp_path):
    counts = {("a", "cup"): 2, ("a", "pot"): 3, ("b", "cup"): 4, ("b", "pot"): 5}
    inspection = inspect_dataset(pictures(tmp_path / "own", counts))
    assert inspection.dataset.domains == ("a", "b")
    assert inspection.dataset.classes == ("cup", "pot")
    assert inspection.counts.tolist() == [[2, 3], [4, 5]]
    assert not inspection.broken
    assert inspection.remarks == []


def sizes_of(data):
    sizes = {}
    for fact in inspect_dataset(data).facts:
        sizes.setdefault(fact.subject, []).append(fact.value)
    return sizes


def test_the_original_sizes_of_images_are_those_of_the_files(own, tmp_path):
    assert sizes_of(own) == {name: [(24, 20)] * 3 for name in "abc"}
    for number, side in enumerate((8, 30, 300)):
        save(
            np.resize(noise(100 + number), (side, 2 * side, 3)), own / "b" / "cup" / f"z{side}.png"
        )
    sizes = sizes_of(own)
    assert sizes["b"] == [(16, 8), (24, 20), (600, 300)]
    assert sizes["a"] == [(24, 20)] * 3
    features = arrays(tmp_path / "numbers.npz", np.random.default_rng(0).normal(size=(8, 3)))
    assert sizes_of(features) == {}


def test_broken_files_are_named_with_the_reason_and_not_counted(own):
    whole = (own / "b" / "pot" / "1.png").read_bytes()
    (own / "b" / "pot" / "1.png").write_bytes(whole[: len(whole) // 2])
    (own / "c" / "cup" / "2.png").write_bytes(b"")
    inspection = inspect_dataset(own)
    assert sorted(inspection.broken) == ["b/pot/1.png", "c/cup/2.png"]
    assert "truncated" in inspection.broken["b/pot/1.png"]
    assert inspection.counts.tolist() == [[4, 4], [4, 3], [3, 4]]
    assert len(inspection.remarks) == 2
    for remark, name in zip(inspection.remarks, ("b/pot/1.png", "c/cup/2.png"), strict=True):
        assert remark.startswith(f"broken: {name} (")
        assert str(own) not in remark


def test_a_domain_that_broken_files_have_emptied_is_an_error_that_names_them(own):
    for file in (own / "b").rglob("*.png"):
        file.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"8 broken file.*b/cup/0\.png"):
        inspect_dataset(own)


def test_a_copy_in_another_domain_is_found_however_it_was_saved(own):
    save(noise(0), own / "b" / "pot" / "copy.png")
    Image.fromarray(noise(0)).save(own / "c" / "pot" / "other.bmp")
    Image.fromarray(noise(1)).convert("RGBA").save(own / "c" / "pot" / "again.png")
    assert (own / "c/pot/again.png").read_bytes() != (own / "a/cup/1.png").read_bytes()
    inspection = inspect_dataset(own)
    assert set(inspection.duplicates) == {
        ("b/pot/copy.png", "a/cup/0.png"),
        ("c/pot/other.bmp", "a/cup/0.png"),
        ("c/pot/again.png", "a/cup/1.png"),
    }
    (remark,) = inspection.remarks
    assert remark.startswith("3 sample(s) are duplicates")
    assert "b/pot/copy.png equals a/cup/0.png" in remark


def test_a_copy_within_a_domain_is_harmless_and_a_changed_pixel_is_no_copy(own):
    save(noise(0), own / "a" / "pot" / "copy.png")
    changed = noise(1)
    changed[10:, 10:] ^= 255
    save(changed, own / "b" / "cup" / "changed.png")
    assert not inspect_dataset(own).duplicates


def test_copies_of_arrays_are_reported_by_their_number(tmp_path):
    x = np.random.default_rng(0).random((8, 5))
    x[6] = x[1]
    np.savez(tmp_path / "own.npz", X=x, y=[0, 1] * 4, domain=["a"] * 4 + ["b"] * 4)
    assert inspect_dataset(tmp_path / "own.npz").duplicates == [("sample 2 of b", "sample 1 of a")]


WITHIN = "imbalanced within the domain"


@pytest.mark.parametrize(
    ("counts", "remarks"),
    [
        # Less than three times as many is even enough.
        ({"big": {"cup": 11, "pot": 4}, "small": {"cup": 3, "pot": 3}}, []),
        (
            {"big": {"cup": 20, "pot": 4}, "small": {"cup": 4, "pot": 4}},
            [
                # What balances classes does nothing for domains.
                r"domain 'big' has 24 samples, 'small' has 8: imbalanced((?!balance=true).)*",
                r"class 'cup' has 24 samples, 'pot' has 8: imbalanced.*--set balance=true.*",
                rf"domain 'big' has 20 samples of 'cup', 4 of 'pot': {WITHIN}",
            ],
        ),
        # A class that a domain lacks is no imbalance within it.
        (
            {"a": {"cup": 10, "pot": 2, "tin": 5}, "b": {"cup": 4, "pot": 4}},
            [
                "domain 'b' has no sample of tin",
                rf"domain 'a' has 10 samples of 'cup', 2 of 'pot': {WITHIN}",
            ],
        ),
        (
            {
                "all": dict.fromkeys(["ash", "elm", "fir", "oak", "yew"], 2),
                "few": {"oak": 8},
                "some": dict.fromkeys(["elm", "yew", "oak", "ash"], 2),
            },
            [
                "domain 'few' has no sample of ash, elm, fir and 1 more",
                "domain 'some' has no sample of fir",
                ".*",
            ],
        ),
    ],
)
def test_gaps_and_uneven_counts_are_remarks(tmp_path, counts, remarks):
    flat = {(domain, label): n for domain, own in counts.items() for label, n in own.items()}
    actual = inspect_dataset(pictures(tmp_path / "own", flat)).remarks
    assert len(actual) == len(remarks)
    assert all(re.fullmatch(*pair) for pair in zip(remarks, actual, strict=True))


def test_progress_is_reported_after_every_domain(tmp_path):
    reports = []

    @contextmanager
    def listener(what, total):
        yield lambda done: reports.append((what, done, total))

    counts = {("a", "cup"): 2, ("a", "pot"): 1, ("b", "cup"): 1, ("b", "pot"): 4}
    with report_progress_to(listener):
        inspect_dataset(pictures(tmp_path / "own", counts))
    result = [(done, total) for what, done, total in reports if what == "looking for duplicates"]
    assert result == [(3, 8), (8, 8)]


def test_prompts_are_shown_for_images_or_on_request(tmp_path):
    spirals = find_dataset("spirals")
    assert describe_prompts(spirals) == []
    (tmp_path / "templates.txt").write_text("a {}.\nthe {}.\n")
    own = describe_prompts(spirals, templates=str(tmp_path / "templates.txt"))
    counts = {(domain, label): 1 for domain in "ab" for label in "cd"}
    images = find_dataset(pictures(tmp_path / "own", counts))
    names = [f"n{number:02}" for number in range(21)]
    shown = ", ".join(names[:20])
    for count, more in ((20, ""), (21, " and 1 more")):
        first, second = describe_prompts(replace(images, classes=tuple(names[:count])))
        assert first.startswith("prompts for CLIP: a photo of a n00. a photo of the n00.")
        assert second == f"class names for CLIP: {shown}{more}"
    first_class = spirals.classes[0]
    assert own[0] == f"prompts for CLIP: a {first_class}. the {first_class}."


COLOUR = np.random.default_rng(0).integers(0, 256, (8, 3, 16, 16)).astype(np.uint8)
SHEETS = {
    "colour": COLOUR,
    "grey": COLOUR[:, 0],
    "two channels": COLOUR[:, :2],
    "four channels": COLOUR[:, [0, 1, 2, 0]],
    "numbers beyond 0…1": 40 * np.random.default_rng(0).normal(size=(8, 3, 16, 16)),
    "all alike": np.full((8, 1, 16, 16), 0.5),
}


@pytest.mark.parametrize("x", SHEETS.values(), ids=SHEETS)
def test_a_contact_sheet_is_a_picture_of_all_domains_and_classes(x, tmp_path, caplog):
    path = arrays(tmp_path / "own.npz", x, domains=("a", "b", "c"))
    sheet = contact_sheet(inspect_dataset(path), tmp_path / "sheet.png")
    assert sheet == tmp_path / "sheet.png"
    with Image.open(sheet) as image:
        image.load()
        assert image.format == "PNG"
        wide, high = image.size
    # Two classes and three domains of square pictures: taller than wide, none a mere speck.
    assert 200 < wide < 400
    assert 1.2 * wide < high < 2 * wide
    assert not caplog.records
    assert sorted(child.name for child in tmp_path.iterdir()) == ["own.npz", "sheet.png"]


def test_the_samples_on_a_sheet_are_those_of_their_domain_and_class(tmp_path):
    for d, domain in enumerate(("a", "b")):
        for c, label in enumerate(("x", "y")):
            for i in range(2):
                pixels = np.zeros((16, 16, 3), dtype=np.uint8)
                pixels[:] = (200 * d + 20, 200 * c + 20, 255)
                save(pixels, tmp_path / "own" / domain / label / f"{i}.png")
    sheet = contact_sheet(inspect_dataset(tmp_path / "own"), tmp_path / "sheet.png")
    with Image.open(sheet) as image:
        pixels = np.asarray(image.convert("RGB"))
    centres = {}
    for d in range(2):
        for c in range(2):
            where = np.argwhere((pixels == (200 * d + 20, 200 * c + 20, 255)).all(axis=2))
            assert len(where) > 1000
            centres[d, c] = where.mean(axis=0)
    # Domains are rows, classes are columns.
    assert centres[0, 0][0] == pytest.approx(centres[0, 1][0], abs=3)
    assert centres[0, 0][1] == pytest.approx(centres[1, 0][1], abs=3)
    assert centres[1, 0][0] - centres[0, 0][0] > 50
    assert centres[0, 1][1] - centres[0, 0][1] > 50


def test_sounds_are_drawn_flat_with_low_tones_below(tmp_path):
    sheet = contact_sheet(inspect_dataset(words(tmp_path / "spoken")), tmp_path / "sheet.png")
    with Image.open(sheet) as image:
        pixels = np.asarray(image.convert("L"))
    # Around the tones it is dark.
    dark = pixels < 60
    rows, columns = (np.flatnonzero(dark.mean(axis=axis) > 0.2) for axis in (1, 0))
    cells = pixels[rows[0] : rows[-1], columns[0] : columns[-1]]
    assert cells.shape[1] > 1.5 * cells.shape[0]
    first = np.array_split(cells, 2)[0]
    low, high = (half.mean(axis=1).argmax() for half in np.array_split(first, 2, axis=1))
    assert low > high + 5


@pytest.mark.parametrize("many", ["domains", "classes"])
def test_of_many_domains_or_classes_a_dozen_is_drawn(tmp_path, many):
    sizes = []
    for count in (MAX_CELLS, MAX_CELLS + 3):
        names = [f"name {i:02}" for i in range(count)]
        path = arrays(tmp_path / f"{count}.npz", COLOUR[:, :, :8, :8], **{many: names})
        with Image.open(contact_sheet(inspect_dataset(path), tmp_path / f"{count}.png")) as image:
            sizes.append(max(image.size))
    assert 1000 < sizes[0] == sizes[1] < 1500


def test_names_may_be_long_in_any_script_and_full_of_signs(tmp_path):
    domains = ("$a_{$", "東京の写真 🙂", "a very long name of a domain, with commas")
    path = arrays(tmp_path / "own.npz", COLOUR, domains=domains, classes=("50% $x^", "[b]y[/]"))
    assert contact_sheet(inspect_dataset(path), tmp_path / "sheet.png").stat().st_size > 1000


def test_a_class_that_a_domain_lacks_is_an_empty_cell(tmp_path):
    counts = {("a", "cup"): 2, ("a", "pot"): 2, ("b", "pot"): 2}
    inspection = inspect_dataset(pictures(tmp_path / "own", counts))
    assert contact_sheet(inspection, tmp_path / "sheet.png").is_file()


def test_a_sheet_without_suffix_is_a_png_and_an_old_one_is_replaced(own, tmp_path):
    (tmp_path / "sheet.png").write_bytes(b"old")
    assert contact_sheet(inspect_dataset(own), tmp_path / "sheet") == tmp_path / "sheet.png"
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.format == "PNG"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("sheet.xyz", "'xyz' is not supported"),
        ("no/sheet.png", "No such file or directory"),
        ("folder.png", "Is a directory"),
        ("own.npz/sheet.png", "Not a directory"),
    ],
)
def test_a_sheet_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, out, message):
    inspection = inspect_dataset(arrays(tmp_path / "own.npz", COLOUR))
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.iterdir())
    refused = message_of(SpecError, contact_sheet, inspection, tmp_path / out)
    assert refused.startswith(str(tmp_path / out))
    assert message in refused
    assert sorted(tmp_path.iterdir()) == before


def test_features_have_no_contact_sheet(tmp_path):
    inspection = inspect_dataset("spirals")
    assert inspection.counts.tolist() == [[100, 100]] * 4
    with pytest.raises(SpecError, match="spirals: no images or audio files; leave out --out"):
        contact_sheet(inspection, tmp_path / "sheet.png")


def test_named_datasets_are_looked_for_under_the_given_root(tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        inspect_dataset("pacs", tmp_path)


def test_texts_are_described_by_their_lengths_and_empty_or_equal_ones_are_reported(tmp_path):
    frame = reviews(3)
    frame.loc[0, "text"] = " "
    frame.loc[7, "text"] = frame.loc[1, "text"]
    frame.loc[13, "text"] = "long " * 300
    inspection = inspect_dataset(write_reviews(tmp_path, frame))
    median, long = describe_facts(inspection.facts)
    lengths = frame.text[frame.domain == "food"].str.len()
    assert f"food {lengths.sort_values().iloc[2]}, hotels" in median
    assert long == "1 of 17 texts have more than 1024 bytes"
    assert "broken: row 0 (no text)" in inspection.remarks
    assert "another domain: row 7 equals row 1" in inspection.remarks[-1]
    assert inspect_dataset("spirals").facts == []


def test_a_dataset_is_fetched_unpacked_and_can_be_read(tmp_path, declare):
    first = archive_of(tmp_path / "www" / "here.tar.gz", ["here"])
    second = archive_of(tmp_path / "www" / "there.tgz", ["there"])
    (tmp_path / "www" / "notes.txt").write_text("as it is")
    third = f"md5:{hashlib.md5(b'as it is', usedforsecurity=False).hexdigest()}"
    root = tmp_path / "data" / "root"
    with served(tmp_path / "www") as address:
        declare(
            (f"{address}/here.tar.gz", first, "theirs"),
            (f"{address}/there.tgz", second, "theirs"),
            (f"{address}/notes.txt", third, "theirs/more"),
        )
        dataset = get_dataset(NAME, root)
    assert dataset.name == NAME
    domains = dataset.load(ReadOptions(root, side=8))
    assert [len(domain.y) for domain in domains.values()] == [4, 4]
    assert domains["there"].x.flatten(1)[:, 0].tolist() == [60, 70, 60, 70]
    assert (root / "theirs" / "more" / "notes.txt").read_text() == "as it is"
    assert not list(root.rglob("*.part"))
    # The server is gone; nothing is asked of it.
    assert get_dataset(NAME, root).missing_files(root) == []


def test_what_is_here_is_not_fetched_again_and_takes_its_room_once(tmp_path, declare):
    checksum = archive_of(tmp_path / "www" / "all.tar.gz", ["here", "there"])
    root = tmp_path / "root"
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", checksum, "theirs"))
        get_dataset(NAME, root)
    # The server is gone: a second request would fail.
    assert get_dataset(NAME, root).missing_files(root) == []
    assert not list((root / "downloads").glob("all.tar.gz"))


def test_a_wrong_checksum_is_reported_and_nothing_is_unpacked(tmp_path, declare):
    archive_of(tmp_path / "www" / "all.tar.gz", ["here", "there"])
    root, wrong = tmp_path / "root", "sha256:" + 64 * "0"
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", wrong, "theirs"))
        message = message_of(DataError, get_dataset, NAME, root)
    assert re.search(rf"all\.tar\.gz: .*instead of {wrong}", message)
    assert not (root / "theirs").exists()
    assert not list((root / "downloads").glob("all.tar.gz*"))


def test_a_file_that_the_server_does_not_have_is_reported(tmp_path, declare):
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", "md5:" + 32 * "0", "theirs"))
        message = message_of(DataError, get_dataset, NAME, tmp_path / "root")
    assert re.search(r"all\.tar\.gz: .*404", message)


def test_an_archive_without_what_is_needed_is_reported(tmp_path, declare):
    checksum = archive_of(tmp_path / "www" / "half.tar.gz", ["here"])
    with served(tmp_path / "www") as address:
        declare((f"{address}/half.tar.gz", checksum, "theirs"))
        message = message_of(DataError, get_dataset, NAME, tmp_path / "root")
    assert re.search(r"downloaded and unpacked, but .*theirs/set/there is missing", message)


def test_what_only_a_person_can_get_is_reported_with_the_data_root(tmp_path, declare):
    declare()
    root = tmp_path / "my data"
    advice = "afield cannot download it; write to [them] and unpack their disk in theirs"
    message = message_of(DataError, get_dataset, NAME, root)
    assert message == f"{NAME}: {advice} (data root: {root})"
    assert not root.exists()
    for domain in ("here", "there"):
        (root / "theirs" / "set" / domain).mkdir(parents=True)
    assert get_dataset(NAME, root).name == NAME


def test_what_comes_with_afield_is_there_and_makes_no_folder(tmp_path):
    assert get_dataset("spirals", tmp_path / "root").domains[0] == "turn0"
    assert not (tmp_path / "root").exists()


def test_there_is_nothing_to_get_of_ones_own_data(tmp_path):
    np.savez(tmp_path / "own.npz", X=np.eye(4), y=[0, 1, 0, 1], domain=[0, 0, 1, 1])
    with pytest.raises(DataError, match="these are your own data; there is nothing to download"):
        get_dataset(str(tmp_path / "own.npz"), tmp_path)


def test_an_unknown_name_has_a_guess(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'pacs'"):
        get_dataset("pacss", tmp_path)


def test_all_datasets_are_in_stock_and_none_is_here_that_needs_files(tmp_path):
    available = list_availability(tmp_path)
    assert [each.name for each in available] == registry.names("datasets")
    here = {each.name for each in available if each.available}
    assert {"spirals", "rotated_digits"} <= here
    assert "pacs" not in here
    for each in available:
        assert each.how_to_get
        assert "\n" not in each.how_to_get
        declared = registry.find("datasets", each.name)
        dataset = declared if isinstance(declared, DomainSet) else declared(tmp_path)
        assert each.available == (not dataset.needs), each.name
        fetched = each.how_to_get == f"afield data get {each.name}"
        assert fetched == bool(dataset.download.archives or dataset.download.hub), each.name


def test_datasets_are_here_when_their_files_are(tmp_path):
    sets = {name: registry.find("datasets", name) for name in registry.names("datasets")}
    sets = {name: result for name, result in sets.items() if isinstance(result, DomainSet)}
    for result in sets.values():
        for path in result.needs:
            (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert {each.name for each in list_availability(tmp_path) if each.available} >= set(sets)
    # One path of several is not enough.
    Path(tmp_path / sets["pacs"].needs[-1]).rmdir()
    (pacs,) = (each for each in list_availability(tmp_path) if each.name == "pacs")
    assert not pacs.available


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module_anywhere\n",
        "other = 1\n",
        "from afield.errors import DataError\n"
        "def theirs(root):\n    raise DataError('set: cannot be read')\n",
    ],
    ids=["import fails", "name is missing", "files cannot be read"],
)
def test_a_dataset_that_cannot_be_looked_at_does_not_hide_the_others(tmp_path, declare, source):
    declare(source=source)
    result = {each.name: each for each in list_availability(tmp_path)}
    assert list(result) == registry.names("datasets")
    assert not result[NAME].available
    assert any(
        word in result[NAME].how_to_get for word in ("no_such_module", "theirs", "cannot be read")
    )


def test_of_many_images_only_headers_are_read_unless_all_are_to_be_decoded(own, monkeypatch):
    monkeypatch.setattr("afield.data.inspection.MAX_DECODED", 10)
    (own / "a" / "cup" / "empty.png").write_bytes(b"")
    whole = (own / "a" / "cup" / "0.png").read_bytes()
    (own / "b" / "pot" / "again.png").write_bytes(whole)
    (own / "c" / "pot" / "cut.png").write_bytes(whole[:-100])
    found, decoded = inspect_dataset(own), inspect_dataset(own, decode=True)
    assert (found.decoded, decoded.decoded) == (False, True)
    assert set(found.broken) == {"a/cup/empty.png"}
    assert set(decoded.broken) == {"a/cup/empty.png", "c/pot/cut.png"}
    assert found.counts.sum() == decoded.counts.sum() + 1
    assert found.duplicates == decoded.duplicates == [("b/pot/again.png", "a/cup/0.png")]
    assert found.facts[0] == decoded.facts[0]
    sheets = [
        contact_sheet(each, own.parent / "sheet.png").read_bytes() for each in (found, decoded)
    ]
    assert sheets[0] == sheets[1]
    # The values of all samples are one row in memory.
    assert found.domains["a"].x.stride(0) == 0
