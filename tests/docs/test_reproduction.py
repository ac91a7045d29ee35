"""The page on the papers' tables is that of the recipes."""

import importlib.util
from pathlib import Path

from afield.studies.recipe import recipe_names

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_generated_from_the_recipes():
    path = DOCS / "_hooks" / "reproduction.py"
    spec = importlib.util.spec_from_file_location("reproduction", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert module.page() == text, "run: python docs/_hooks/reproduction.py"
    for name in recipe_names():
        assert f"| `{name}` |" in text
