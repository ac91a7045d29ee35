"""The documentation: its code can be pasted, its links lead somewhere, and the site builds."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
LANGUAGES = {"bash", "console", "python", "toml", "yaml", "text"}


def blocks(page, language):
    return [code for name, code in FENCE.findall(page.read_text()) if name == language]


def outside_of_code(page):
    return FENCE.sub("", page.read_text())


def anchors(page):
    """The anchors of a page's headings, as the site makes them."""
    titles = re.findall(r"^#+ (.+)$", outside_of_code(page), flags=re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles
    }


def test_every_block_of_code_is_fenced_and_names_its_language():
    for page in PAGES:
        for name, code in FENCE.findall(page.read_text()):
            assert name in LANGUAGES, f"{page.name}: {name!r} for {code[:40]!r}"
        text = outside_of_code(page)
        assert not re.search(r"\n\n {4}\S", text), f"{page.name}: an indented block of code"


def test_blocks_of_python_and_toml_can_be_parsed():
    for page in PAGES:
        for code in blocks(page, "python"):
            try:
                ast.parse(code)
            except SyntaxError as error:
                pytest.fail(f"{page.name}: {error}: {code[:60]!r}")
        for code in blocks(page, "toml"):
            tomllib.loads(code)


def test_no_page_has_a_placeholder():
    placeholder = re.compile(r"\b(?:[A-Z]+_(?:OUTPUT|SECONDS|NUMBER|TABLE)|TODO|FIXME|XXX|TBD)\b")
    for page in PAGES:
        assert not placeholder.findall(page.read_text()), page.name


def test_commands_can_be_pasted():
    for page in PAGES:
        for code in blocks(page, "bash"):
            for line in code.splitlines():
                assert not line.startswith("$"), f"{page.name}: {line}"


def test_links_lead_to_files_and_headings_that_exist():
    generated = ("reference/", "api/")
    for page in PAGES:
        for link in LINK.findall(outside_of_code(page)):
            path, _, anchor = link.partition("#")
            if link.startswith(("http://", "https://")) or path.startswith(generated):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    if shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("mkdocs is not installed: pip install 'afield[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "api" / "training" / "index.html").exists()
