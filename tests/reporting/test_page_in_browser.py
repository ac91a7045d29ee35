"""The report in a real browser: sorting, switching, downloads, no request, phones, contrast."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from afield.reporting.page import render_page, write_report
from afield.runs.record import Failure
from afield.runs.store import Store
from tests.stores import HOSTILE, benchmark_records, kept, large, noisy, record, trusted
from tests.waiting import wait_until

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium or no chromedriver here"),
]
METHODS = ("erm", "good", "bad")
CONTRAST = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour, under) => {
  canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const behind = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(getComputedStyle(e).backgroundColor);
  return layers.reverse().reduce((under, layer) => `rgb(${rgba(layer, under).join()})`, "#fff");
};
const worst = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const style = getComputedStyle(element);
  const seen = element.checkVisibility() && !element.closest(".sr, .skip, script, title, desc");
  if (!own || !seen) continue;
  const under = behind(element);
  const ink = element.closest("svg") ? style.fill : style.color;
  const pair = [light(rgba(ink, under)), light(rgba(under, "#fff"))].sort((a, b) => b - a);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  worst.push([ratio, element.tagName, element.textContent.slice(0, 40)]);
}
return worst.sort((a, b) => a[0] - b[0]).slice(0, 3);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser without a screen that logs what is written to the console and asked for."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.downloads = tmp_path_factory.mktemp("downloads")
    places = {"behavior": "allow", "downloadPath": str(driver.downloads)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", places)
    yield driver
    driver.quit()


def screen(browser, width=1280, *, dark=False, media="screen"):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})


def asked_for(browser):
    """The addresses of all requests since this was asked last."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event for event in events if event["method"] == "Network.requestWillBeSent"]
    return [event["params"]["request"]["url"] for event in sent]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of three methods, three rules, two draws, and a failure."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    store = Store(folder)
    for number, (method, mean) in enumerate(zip(METHODS, (0.7, 0.8, 0.6), strict=True)):
        for draw in range(2):
            kept(
                store,
                trusted(
                    benchmark_records(
                        noisy(mean - 0.1 * draw, 3, 3, seed=10 * number + draw),
                        method=method,
                        draw=draw,
                        lr=1e-3 * (1 + draw),
                        seconds=1.0 + number,
                    ),
                    0.1 * (1 + number),
                ),
            )
    failed = replace(record("art", [0.5]).run, method="broken")
    store.put_failure(Failure(failed, "diverged", "Traceback"))
    return Path(write_report(folder, rules=["all"])).as_uri()


@pytest.fixture
def opened(browser, page):
    screen(browser)
    browser.get_log("browser")
    asked_for(browser)
    browser.get(page)
    yield browser
    assert browser.get_log("browser") == []
    assert {url for url in asked_for(browser) if not url.startswith("data:")} <= {page}


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def visible(driver, selector):
    """How many elements can be seen, drawn ones too."""
    every = "[...document.querySelectorAll(arguments[0])]"
    return driver.execute_script(
        f"return {every}.filter(e => e.checkVisibility()).length", selector
    )


def methods_of(driver, table=".rule:not([hidden]) table"):
    rows = find(driver, f"{table} tbody tr")[: len(METHODS)]
    return [row.find_element("css selector", "th").text.strip() for row in rows if row.text]


def header(driver, name):
    cells = find(driver, ".rule:not([hidden]) table:first-of-type thead th")
    return next(cell for cell in cells if cell.text.strip(" ↑↓↕") == name)


def test_it_opens_without_an_error_or_a_request(opened):
    assert "afield report" in opened.title
    assert find(opened, ".headline")[0].text == "\u2068good\u2069 is better than \u2068erm\u2069."
    assert len(find(opened, ".tiles > div")) == 3
    assert "afield fit things best --store runs --out model" in find(opened, ".next")[0].text


def test_a_click_sorts_and_another_one_turns_the_order(opened):
    assert methods_of(opened) == ["good", "erm", "bad"]
    assert header(opened, "mean").get_attribute("aria-sort") == "descending"
    header(opened, "mean").find_element("css selector", "button").click()
    assert methods_of(opened) == ["bad", "erm", "good"]
    assert header(opened, "mean").get_attribute("aria-sort") == "ascending"
    header(opened, "method").find_element("css selector", "button").click()
    assert methods_of(opened) == ["bad", "erm", "good"]
    assert header(opened, "method").get_attribute("aria-sort") == "ascending"
    assert header(opened, "mean").get_attribute("aria-sort") is None


def test_where_the_least_is_best_the_first_click_starts_with_it(opened):
    find(opened, ".calibration")[0].click()
    own = header(opened, "calibration error")
    own.find_element("css selector", "button").click()
    assert own.get_attribute("aria-sort") == "ascending"
    assert methods_of(opened) == ["erm", "good", "bad"]
    header(opened, "accuracy at 90 %").find_element("css selector", "button").click()
    assert methods_of(opened) == ["erm", "good", "bad"]


def test_the_keyboard_sorts_too(opened):
    from selenium.webdriver.common.keys import Keys

    opened.execute_script("arguments[0].querySelector('button').focus()", header(opened, "mean"))
    opened.switch_to.active_element.send_keys(Keys.ENTER)
    assert methods_of(opened) == ["bad", "erm", "good"]
    opened.switch_to.active_element.send_keys(Keys.SPACE)
    assert methods_of(opened) == ["good", "erm", "bad"]
    outline = opened.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_rules_are_switched_by_mouse_and_by_arrow_keys(opened):
    from selenium.webdriver.common.keys import Keys

    shown = lambda: [e.get_attribute("data-rule") for e in find(opened, ".rule:not([hidden])")]  # noqa: E731
    assert shown() == ["sources"]
    find(opened, ".switch label")[1].click()
    assert shown() == ["target"]
    find(opened, ".switch input")[1].send_keys(Keys.ARROW_LEFT)
    assert shown() == ["sources"]


def test_a_filter_hides_methods_everywhere_and_they_come_back(opened):
    before = visible(opened, "use[data-m]")
    box = find(opened, ".filter")[0]
    box.send_keys("GOO, bad")
    assert methods_of(opened) == ["good", "bad"]
    assert visible(opened, "use[data-m]") < before
    opened.execute_script(
        "arguments[0].value = ''; arguments[0].dispatchEvent(new Event('input'))", box
    )
    assert methods_of(opened) == ["good", "erm", "bad"]
    assert visible(opened, "use[data-m]") == before


def test_curves_follow_what_is_chosen(opened):
    panels = lambda: [each.text for each in find(opened, ".curves .panel")]  # noqa: E731
    before = panels()
    assert len(before) == 3
    assert "sources: step 20" in before[0]
    method = find(opened, ".curves-controls select")[0]
    method.find_element("xpath", "option[normalize-space()='bad']").click()
    after = panels()
    assert len(after) == 3
    assert "bad-" in after[0]
    assert after != before
    draw = find(opened, ".curves-controls select")[2]
    draw.find_element("css selector", "option:last-child").click()
    assert "sources picked draw 0" in panels()[0]
    assert len(find(opened, ".curves path.curve")) == 6


def test_tables_can_be_downloaded(opened):
    for kind, start in (("csv", "dataset,rule,method"), ("tex", "\\begin{table}")):
        target = opened.downloads / f"things.{kind}"
        target.unlink(missing_ok=True)
        next(
            a for a in find(opened, ".downloads a") if a.get_attribute("download").endswith(kind)
        ).click()
        wait_until(target.exists)
        assert target.read_text().startswith(start)


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(opened, dark):
    screen(opened, dark=dark)
    opened.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
    (ratio, *what), *_ = opened.execute_script(CONTRAST)
    assert ratio >= 4.5, what


def test_a_phone_shows_all_without_moving_sideways(opened):
    screen(opened, width=360)
    opened.execute_script("dispatchEvent(new Event('resize'))")
    opened.execute_script("for (const e of document.querySelectorAll('details')) e.open = true")
    assert opened.execute_script("return document.documentElement.scrollWidth") == 360
    assert opened.execute_script("return document.querySelector('.scroll').clientWidth") <= 360


def test_calibration_is_behind_a_switch(opened):
    heads = ".rule:not([hidden]) .results thead .confidence"
    assert visible(opened, heads) == 0
    find(opened, ".calibration")[0].click()
    assert visible(opened, heads) == 2


def test_on_a_phone_mean_and_worst_are_visible_and_the_rest_is_a_tap_away(opened):
    screen(opened, width=390)
    rows = find(opened, ".rule:not([hidden]) .results tbody tr")
    edges = opened.execute_script(
        "return [...arguments[0].cells].filter(c => c.checkVisibility())"
        ".map(c => c.getBoundingClientRect().right)",
        rows[0],
    )
    assert len(edges) == 3
    assert max(edges) <= 390
    heads = [each.text for each in find(opened, ".results thead th") if each.is_displayed()]
    assert [head.strip(" ↓") for head in heads] == ["method", "mean", "worst"]
    button = rows[0].find_element("css selector", ".expand")
    button.click()
    detail = find(opened, ".results .detail")[0].text
    assert "art" in detail
    assert "calibration error" in detail
    button.click()
    assert not find(opened, ".results .detail")


def test_nothing_is_wider_than_the_window(browser, tmp_path):
    """Many long names and domains: only regions that scroll by themselves may be wider."""
    domains = tuple(f"a_domain_with_a_long_name_{n}" for n in range(9))
    every = [
        each
        for number, name in enumerate(("erm", "good", "long_" * 12, "score"))
        for each in benchmark_records(
            noisy(0.7 + 0.02 * number, 3, 9, seed=number),
            domains=domains,
            method=name,
            **({"role": "merged", "experts": ("x",)} if name == "score" else {}),
        )
    ]
    path = tmp_path / "report.html"
    path.write_text(render_page(every), encoding="utf-8")
    for width in (1280, 768, 390):
        screen(browser, width=width)
        browser.get(path.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_mean_and_worst_stay_in_place_while_a_wide_table_scrolls(opened):
    screen(opened, width=700)
    where = (
        "return [...document.querySelectorAll('.rule:not([hidden]) .results thead .key')]"
        ".map(e => Math.round(e.getBoundingClientRect().left))"
    )
    opened.execute_script("dispatchEvent(new Event('resize'))")
    before = opened.execute_script(where)
    opened.execute_script("document.querySelector('.rule:not([hidden]) .scroll').scrollLeft = 80")
    assert opened.execute_script(where) == before


def test_paper_shows_all_rules_and_no_controls(opened):
    screen(opened, media="print")
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert visible(opened, ".rule") == 2
    assert visible(opened, ".controls, nav") == 0
    assert visible(opened, "details:not([open])") == 0


UNNAMED = """
const named = (e) => e.ariaLabel || e.getAttribute("aria-labelledby") || e.querySelector(":scope > title, figcaption");
const pictures = [...document.querySelectorAll("svg")].filter((e) => !e.closest("[aria-hidden=true]") && !e.parentElement.closest("svg"));
return [
  ...pictures.filter((e) => e.getAttribute("role") !== "img" || !named(e)),
  ...[...document.querySelectorAll("figure")].filter((e) => !named(e)),
  ...[...document.images].filter((e) => !e.alt),
].map((e) => e.outerHTML.slice(0, 80));
"""  # noqa: E501


def test_every_figure_has_a_name_for_screen_readers_and_the_page_fills_a_wide_window(opened):
    assert opened.execute_script(UNNAMED) == []
    screen(opened, width=1440)
    main = opened.execute_script("return document.querySelector('main').getBoundingClientRect()")
    assert main["width"] > 1380


def test_without_scripts_all_tables_are_there(opened, page):
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(page)
        assert len([each for each in find(opened, ".rule table") if each.is_displayed()]) == 4
        assert not any(each.is_displayed() for each in find(opened, ".controls"))
        assert find(opened, "noscript")
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_names_are_text(browser, tmp_path):
    domains = HOSTILE[:3]
    store = Store(tmp_path / "runs")
    for method in ("erm", "long_" * 20, HOSTILE[0].replace("/", "⁄")):
        rows = noisy(0.7, 2, 3, seed=len(method))
        kept(store, benchmark_records(rows, domains=domains, dataset=HOSTILE[3], method=method))
    path = Path(write_report(tmp_path / "runs"))
    screen(browser, width=360)
    browser.get_log("browser")
    asked_for(browser)
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert asked_for(browser) == [path.as_uri()] or not asked_for(browser)
    heads = [each.get_attribute("textContent") for each in find(browser, ".rule thead th bdi")]
    assert domains[0] in heads
    assert domains[1] in heads
    assert "rtl\\u202egpj.exe" in heads
    captions = [each.text for each in find(browser, ".curves figcaption")]
    assert domains[0] in captions
    assert browser.execute_script("return document.documentElement.scrollWidth") == 360


def test_five_hundred_records_are_shown_and_filtered(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render_page(large(500)), encoding="utf-8")
    assert path.stat().st_size < 5_000_000
    screen(browser)
    browser.get(path.as_uri())
    assert len(find(browser, ".curves .panel")) == 3
    every = visible(browser, ".rule:not([hidden]) .results tbody tr")
    find(browser, ".filter")[0].send_keys("erm")
    assert 0 < visible(browser, ".rule:not([hidden]) .results tbody tr") < every
