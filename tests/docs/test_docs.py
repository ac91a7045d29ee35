"""Commands in the docs can be typed: they are planned here, on a small dataset."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import sklearn

from afield import registry
from afield.hyperparameters import ranges
from afield.studies.benchmark import make_benchmark

DOCS = Path(__file__).parents[2] / "docs"
TEXTS = {path.name: path.read_text() for path in DOCS.glob("*.md")}
COMMANDS = sorted(
    {
        options
        for text in TEXTS.values()
        for options in re.findall(r"`afield bench D (--methods [^`]+)`", text)
    }
)


@pytest.mark.parametrize("options", COMMANDS)
def test_a_cell_of_the_papers_tables_can_be_planned(options):
    words = options.split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    given = [setting for word, setting in pairwise(words) if word == "--set"]
    settings = dict(setting.split("=", 1) for setting in given)
    methods = pairs["--methods"].split(",")
    runs = make_benchmark(
        "spirals",
        methods,
        trials=1,
        average=pairs.get("--average", "last"),
        rules=pairs.get("--rules"),
        settings=settings,
    ).runs()
    assert {run.method for run in runs} == set(methods)
    # What was asked for is not what would be done anyway.
    assert all(run.given for run in runs) == bool(settings)


def test_there_are_cells():
    assert len(COMMANDS) >= 8


def test_every_diagnostic_is_shown():
    for name in registry.names("diagnostics"):
        assert any(f"afield diagnose {name} " in text for text in TEXTS.values()), name


def test_every_grouping_of_seed_categories_is_in_the_table_of_them():
    options = ranges(registry.find("methods", "seed_category"))["grouping"].options
    rows = re.findall(r"^\| `(\w+)`", TEXTS["seed_categories.md"], flags=re.MULTILINE)
    assert rows[: len(options)] == list(options)


@pytest.mark.slow
def test_the_page_on_scikit_learn_runs_as_it_stands():
    blocks = re.findall(r"```python\n(.*?)```", TEXTS["sklearn.md"], flags=re.DOTALL)
    assert len(blocks) == 4
    with sklearn.config_context():
        exec("\n".join(blocks), names := {})
    assert names["search"].best_score_ > 0.8
