"""The page of a store as a file; how it behaves in a browser is tested with a browser."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from afield.errors import DataError, SpecError
from afield.registry import CODE_FORM
from afield.reporting.findings import FINDINGS_FOLDER, MAX_IMAGE_BYTES, keep
from afield.reporting.page import render_page, write_report
from afield.runs.record import Failure
from afield.runs.store import Store
from tests.stores import (
    HOSTILE,
    benchmark_records,
    held_out,
    kept,
    large,
    noisy,
    record,
    trusted,
    weighed,
)

VOID = {"meta", "link", "input", "img", "path", "use", "line", "circle", "rect", "br"}


class Page(HTMLParser):
    """What is in a page: elements in their order, and whether every one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def several():
    return [
        *benchmark_records(noisy(0.7, 3, 3, seed=1)),
        *benchmark_records(noisy(0.8, 3, 3, seed=2), method="good"),
        *[held_out(m, [0.5, 0.6], trial=t) for m in ("erm", "vrex") for t in range(2)],
    ]


def failure():
    own = record("art", [0.5], method="dann").run
    return Failure(own, "diverged: <b>loss</b> is NaN", "Traceback\n  File <x>\nNaN")


def test_a_page_is_written_into_its_store_and_is_the_same_again(tmp_path):
    store = Store(tmp_path / "runs")
    kept(store, several())
    first = Path(write_report(store))
    assert first == tmp_path / "runs" / "report.html"
    text = first.read_text()
    assert Path(write_report(tmp_path / "runs", tmp_path / "a" / "b.html")).read_text() == text
    assert not list(tmp_path.rglob("*.part"))


def test_every_element_is_closed_headings_have_an_order_and_names_are_unique():
    page = Page(render_page(several(), [failure()]))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes in page.elements:
        for label in (attributes.get("aria-labelledby") or "").split():
            assert label in names
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in names


def test_tables_have_captions_and_every_header_a_scope():
    page = Page(render_page(several()))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(
        header.get("scope") in ("col", "row") or header.get("aria-hidden") == "true"
        for header in page.all("th")
    )


def test_a_page_asks_for_nothing_and_has_no_inline_handlers():
    text = render_page(several(), [failure()])
    page = Page(text)
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href"):
            assert re.match(r"(data:|#)", attributes.get(name) or "#"), (tag, attributes)
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_hostile_names_are_text_wherever_they_stand():
    domains = HOSTILE[:3]
    records = benchmark_records(noisy(0.7, 2, 3), domains=domains, dataset=HOSTILE[3])
    records += benchmark_records(
        noisy(0.8, 2, 3), domains=domains, dataset=HOSTILE[3], method=HOSTILE[0]
    )
    bad = replace(failure(), run=replace(records[0].run, method=HOSTILE[1]), error=HOSTILE[0])
    text = render_page(records, [bad])
    kinds = [attributes.get("type") for attributes in Page(text).all("script")]
    assert kinds == ["application/json", None]
    assert "\u202e" not in text
    assert "\u2028" not in text
    assert "rtl\\u202egpj.exe" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_failures_stand_with_their_reasons():
    text = render_page(several(), [failure()])
    assert "diverged: &lt;b&gt;loss&lt;/b&gt; is NaN" in text
    assert "Traceback\n  File &lt;x&gt;\nNaN" in text
    assert f"{len(several())} finished runs, 1 failed" in text
    assert "1 finished run, 0 failed" in render_page(several()[:1])
    assert "This store has no finished runs." in render_page([], [failure()])


def test_every_dataset_has_a_section_of_its_own():
    text = render_page(several())
    assert text.count('<section class="dataset"') == 2
    assert "good\u2069 leads on the unseen domains of \u2068things\u2069" in text


def test_states_of_the_code_and_missing_runs_are_warned_of():
    records = several()
    changed = replace(records[0], versions={**records[0].versions, "code": f"{CODE_FORM}other"})
    text = render_page([changed, *records[1:11]])
    assert "Made with several versions of their code: erm." in text
    assert "Some runs are missing, so their numbers are too (–): things." in text
    assert 'class="warning"' in text
    assert 'class="warning"' not in render_page(several())


def test_a_record_from_before_calibration_is_no_missing_run():
    erm, good = several()[:9], several()[9:18]
    text = render_page([*erm, *trusted(good, 0.1)])
    assert "calibration error" in text
    assert 'class="warning"' not in text


def add_finding(store, name, *, noise=False, summary="a summary", size=(40, 20)):
    path = store / FINDINGS_FOLDER / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.effect_noise(size, 90) if noise else Image.new("L", size)
    image.save(path)
    keep(path, summary, name, [], {})


def test_findings_are_shown_with_what_they_say(tmp_path):
    kept(Store(tmp_path), several()[:3])
    add_finding(tmp_path, "agreement", summary='mean "cosine" <0.1>')
    page = Page(Path(write_report(tmp_path)).read_text())
    (image,) = page.all("img")
    assert image["alt"] == 'agreement: mean "cosine" <0.1>'
    assert (image["width"], image["height"]) == ("40", "20")
    assert image["src"].startswith("data:image/png;base64,")


def test_pictures_for_which_there_is_no_room_are_named(tmp_path):
    kept(Store(tmp_path), several()[:3])
    for name in ("first", "second", "third"):
        add_finding(tmp_path, name, noise=True, size=(1000, 1000))
    assert (tmp_path / FINDINGS_FOLDER / "first.png").stat().st_size * 4 / 3 < MAX_IMAGE_BYTES
    path = Path(write_report(tmp_path))
    assert path.stat().st_size < 5_000_000
    assert "Omitted to keep this file small" in path.read_text()
    assert len(Page(path.read_text()).all("img")) == 2


def test_memory_is_shown_where_it_is_known():
    assert " MiB<" not in render_page(several())
    records = [weighed(each, 2**20 * (1 + 2 * (each.run.method == "good"))) for each in several()]
    assert '>3 MiB</td><td data-v="3">3.00</td>' in render_page(records)


@pytest.mark.slow
def test_a_large_store_makes_a_small_page():
    assert len(render_page(large(500)).encode()) < 5_000_000


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(DataError, match="no records there; run `afield bench"):
        Path(write_report(tmp_path))
    kept(Store(tmp_path), several()[:3])
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    messages = {"file/report.html": "give another name", "folder": "is a folder; give a file"}
    for out, message in messages.items():
        with pytest.raises(SpecError, match=message):
            Path(write_report(tmp_path, tmp_path / out))
    assert not list(tmp_path.rglob("*.part"))
