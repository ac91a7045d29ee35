"""The commands on data as a user types them."""

import numpy as np
import pytest
from PIL import Image

from afield import registry
from afield.cli.data import MAX_CLASS_COLUMNS, MAX_REMARKS
from afield.data.lookup import find_dataset
from tests.data.downloadable import NAME, archive_of, served
from tests.files import pictures


@pytest.fixture(autouse=True)
def empty_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))


def numbers(path, *, domains, classes, each=2):
    """So many random samples of each domain and class."""
    y = np.tile(np.repeat(classes, each), len(domains))
    x = np.random.default_rng(0).normal(size=(len(y), 3))
    np.savez(path, X=x, y=y, domain=np.repeat(domains, each * len(classes)))


def cells(out):
    """The words of every line."""
    return [line.split() for line in out.splitlines()]


def test_list_says_of_every_dataset_whether_it_is_here_or_how_it_comes(afield, tmp_path):
    code, out, err = afield("data", "list")
    assert (code, err) == (0, "")
    lines = {words[0]: words[1:] for words in cells(out) if words}
    assert set(registry.names("datasets")) <= set(lines)
    assert lines["spirals"] == ["yes"]
    assert lines["cifar10"] == ["no", "afield", "data", "get", "cifar10"]
    assert lines["pacs"][0] == "no"
    assert str(tmp_path / "data") in out
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (tmp_path / "data" / "PACS" / domain).mkdir(parents=True)
    assert ["pacs", "yes"] in cells(afield("data", "list")[1])


def test_no_address_is_cut_on_a_narrow_terminal(afield):
    code, out, _ = afield("data", "list", width=80)
    assert code == 0
    assert "…" not in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_get_fetches_and_says_where_it_is(afield, tmp_path, declare):
    checksum = archive_of(tmp_path / "www" / "all.tar.gz", ["here", "there"])
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", checksum, "theirs"))
        code, out, err = afield("data", "get", NAME)
    assert (code, err) == (0, "")
    assert out == f"{NAME}: in {tmp_path / 'data'} (2 domains, 2 classes)\n"
    assert [NAME, "yes"] in cells(afield("data", "list")[1])


def test_there_is_nothing_to_fetch_of_what_comes_with_afield(afield, tmp_path):
    code, out, _ = afield("data", "get", "spirals")
    assert code == 0
    assert out.startswith("spirals: part of afield, nothing to download")
    assert not (tmp_path / "data").exists()


def test_check_counts_domains_and_classes(afield, tmp_path):
    numbers(tmp_path / "own.npz", domains=["a [b] c", "zoé"], classes=["[i]x", "y z"])
    code, out, err = afield("data", "check", "own")
    assert (code, err) == (0, "")
    assert "own: 8 samples (3)" in out
    assert ["domain", "[i]x", "y", "z", "all"] in cells(out)
    assert ["a", "[b]", "c", "2", "2", "4"] in cells(out)
    assert ["zoé", "2", "2", "4"] in cells(out)
    assert "- " not in out


def test_broken_files_are_a_line_each_and_exit_code_1(afield, tmp_path):
    for i in (1, 3):
        (pictures(tmp_path / f"own{i}") / "home" / "dark" / f"{i}.png").write_bytes(b"no picture")
    (tmp_path / "own1" / "home" / "dark" / "2.png").write_bytes(b"")
    code, out, _ = afield("data", "check", "own1", width=60)
    assert code == 1
    assert ["home", "6", "4", "10"] in cells(out)
    remarks = [line for line in out.splitlines() if line.startswith("- ")]
    assert len(remarks) == 2
    for number, remark in enumerate(remarks, start=1):
        assert remark.startswith(f"- broken: home/dark/{number}.png (")
        assert remark.endswith(")")
    assert afield("data", "check", "own3")[0] == 1


def test_check_shows_the_original_sizes_of_images(afield, tmp_path):
    root = pictures(tmp_path / "own")
    first = Image.open(root / "home" / "dark" / "0.png")
    assert f"all images: {first.width} × {first.height} pixels" in afield("data", "check", "own")[1]
    first.resize((50, 31)).save(root / "home" / "dark" / "large.png")
    code, out, _ = afield("data", "check", "own", width=80)
    assert code == 0
    same = [str(first.width), "×", str(first.height)]
    assert ["home", *same, *same, "50", "×", "31"] in cells(out)


def test_of_many_remarks_the_first_are_printed(afield, tmp_path):
    root = pictures(tmp_path / "own")
    for i in range(MAX_REMARKS + 5):
        (root / "home" / "dark" / f"broken{i:02}.png").write_bytes(b"no picture")
    code, out, _ = afield("data", "check", "own")
    assert code == 1
    assert out.count("- broken:") == MAX_REMARKS
    assert out.splitlines()[-1] == "- and 5 more"


def test_copies_gaps_and_imbalance_are_remarks_and_no_failure(afield, tmp_path):
    root = pictures(tmp_path / "own")
    pixels = Image.open(root / "home" / "dark" / "0.png")
    pixels.convert("RGBA").save(root / "away office" / "dark" / "copy.png")
    (root / "home" / "odd").mkdir()
    for i in range(2):
        pixels.point(lambda value, i=i: 255 - value - i).save(root / "home" / "odd" / f"{i}.png")
    code, out, _ = afield("data", "check", "own")
    assert code == 0
    remarks = [line for line in out.splitlines() if line.startswith("- ")]
    assert len(remarks) == 3
    assert remarks[0] == "- domain 'away office' has no sample of odd"
    assert remarks[1].startswith("- class 'dark' has 13 samples, 'odd' has 2: imbalanced")
    assert "home/dark/0.png equals away office/dark/copy.png" in remarks[2]


@pytest.mark.parametrize(
    ("count", "width", "summed"),
    [
        (MAX_CLASS_COLUMNS, 200, False),
        (MAX_CLASS_COLUMNS + 1, 200, True),
        (MAX_CLASS_COLUMNS, 80, True),
        (4, 80, False),
    ],
)
def test_classes_have_columns_where_there_is_room_for_all(afield, tmp_path, count, width, summed):
    classes = [f"class-{i:02}" for i in range(count)]
    domains = ["a domain with a name", "another"]
    numbers(tmp_path / "own.npz", domains=domains, classes=classes, each=3)
    code, out, _ = afield("data", "check", "own", width=width)
    assert code == 0
    assert ("smallest class" in out) == summed
    assert ("class-00" in out) != summed
    shown = ["3", "3"] if summed else ["3"] * count
    assert ["another", *shown, str(3 * count)] in cells(out)
    assert "a domain with a name" in out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines()) <= width


def test_a_contact_sheet_is_drawn_and_its_path_printed(afield, tmp_path):
    pictures(tmp_path / "own")
    code, out, err = afield("data", "check", "own", "--out", "sheet.png")
    assert code == 0
    assert err == "contact sheet in sheet.png\n"
    assert "sheet" not in out
    with Image.open(tmp_path / "sheet.png") as image:
        assert min(image.size) > 200


MISTAKES = [
    (("get", "vlcs"), ("VLCS.tar.gz", "data root: ")),
    (("get", "own.npz"), ("these are your own data",)),
    (("get", "pcas"), ("did you mean 'pacs'",)),
    (("get", "no/such"), ("no file or folder no/such",)),
    (("check", "pacs"), ("afield data get pacs", "set AFIELD_DATA")),
    (("check", "cifar10"), ("`afield data get cifar10`",)),
    (("check", "spiral"), ("did you mean 'spirals'",)),
    (("check", "no.npz"), ("no file or folder no.npz",)),
    (("check", "own.npz", "--out", "sheet.png"), ("no images or audio files; leave out --out",)),
    (("check", "grey.npz", "--out", "sheet.xyz"), ("'xyz' is not supported",)),
    (("check", "grey.npz", "--out", "no/sheet.png"), ("No such file or directory",)),
]


@pytest.mark.parametrize(("words", "messages"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(afield, tmp_path, words, messages):
    numbers(tmp_path / "own.npz", domains=["a", "b"], classes=["x", "y"])
    grey = np.zeros((4, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "grey.npz", X=grey, y=[0, 1, 0, 1], domain=list("aabb"))
    code, _, err = afield("data", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: ")
    assert all(message in err for message in messages)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grey.npz", "own.npz"]


def test_check_shows_the_prompts_for_clip(afield, tmp_path):
    pictures(tmp_path / "own")
    code, out, _ = afield("data", "check", "own")
    assert code == 0
    assert "prompts" not in out
    (tmp_path / "names.csv").write_text("class,name\nbright,bright scene\n")
    (tmp_path / "templates.txt").write_text("a view of a {}.\n")
    files = ("--class-names", "names.csv", "--templates", "templates.txt")
    code, out, _ = afield("data", "check", "own", *files)
    assert "prompts for CLIP: a view of a bright scene.\n" in out
    assert "class names for CLIP: bright scene, dark\n" in out


def test_check_lists_everything_that_is_in_the_wrong_place_at_once(afield, tmp_path):
    root = pictures(tmp_path / "photos")
    strays = [
        *(root / "home" / "dark" / "notes.docx", root / "home" / "dark" / "scan.dcm"),
        *(root / "home" / "loose.png", root / "away office" / "bright" / "more"),
    ]
    for stray in strays[:3]:
        stray.write_bytes(b"x")
    strays[3].mkdir()
    code, out, err = afield("data", "check", str(root))
    assert (code, len(out.splitlines())) == (1, len(strays))
    for stray in strays:
        assert str(stray) in out
    assert "scan.dcm: a DICOM file" in out
    assert "these 4" in err


def test_skipped_strays_stay_out_of_every_command_and_new_ones_are_noticed(afield, tmp_path):
    root = pictures(tmp_path / "photos")
    before = [len(domain.y) for domain in find_dataset(str(root)).load().values()]
    (root / "home" / "dark" / "notes 1.docx").write_bytes(b"x")
    (root / "home" / "loose.png").write_bytes(b"x")
    (root / "home" / "bright" / "more").mkdir()
    (root / "home" / "bright" / "gone.png").symlink_to(tmp_path / "nothing")
    code, _, err = afield("data", "check", str(root), "--skip-strays")
    assert code == 0, err
    assert err.count("left out: ") == 4
    assert (root / "home" / "dark" / ".afieldignore").read_text() == "notes 1.docx\n"
    assert [len(domain.y) for domain in find_dataset(str(root)).load().values()] == before
    (root / "home" / "dark" / "notes 2.docx").write_bytes(b"x")
    assert afield("data", "check", str(root))[0] == 1
    assert afield("data", "check", str(root), "--skip-strays")[0] == 0
    ignored = (root / "home" / "dark" / ".afieldignore").read_text()
    assert ignored == "notes 1.docx\nnotes 2.docx\n"


def test_a_domain_in_place_of_its_dataset_is_noticed(refusal, tmp_path):
    root = pictures(tmp_path / "photos")
    assert f"did you mean {root}?" in refusal("data", "check", str(root / "home"))
