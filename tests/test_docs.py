"""Commands in the docs can be typed: they are planned here, on a small dataset."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from afield import catalog
from afield.jobs import plan

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = sorted(
    set(re.findall(r"`afield bench D (--methods [^`]+)`", (DOCS / "meta_learning.md").read_text()))
)


@pytest.mark.parametrize("options", COMMANDS)
def test_a_cell_of_the_papers_tables_can_be_planned(options):
    words = options.split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    given = [setting for word, setting in pairwise(words) if word == "--set"]
    settings = dict(setting.split("=", 1) for setting in given)
    methods = pairs["--methods"].split(",")
    runs = plan(
        "spirals", methods, trials=1, average=pairs.get("--average", "last"), settings=settings
    )
    assert {run.method for run in runs} == set(methods)
    # What was asked for is not what would be done anyway.
    assert all(run.given for run in runs) == bool(settings)


def test_there_are_cells():
    assert len(COMMANDS) >= 8


def test_every_diagnostic_is_shown():
    text = (DOCS / "meta_learning.md").read_text()
    assert all(f"afield diagnose {name} " in text for name in catalog.names("diagnostics"))
