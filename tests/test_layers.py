"""Imports go downwards only, and names keep to the rules of the house."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import afield

PACKAGE = Path(afield.__file__).parent
# From the ground up; a module may import those of the layers above its own in this list.
LAYERS = [
    ["errors"],
    [
        "arguments",
        "catalog",
        "randomness",
        "charts",
        "gallery",
        "processes",
        "progress",
        "pictures",
        "sounds",
        "weights",
        "whole",
        "confidence",
        "distances",
    ],
    ["unpacking"],
    ["space", "downloads", "cache", "letters", "small", "clip"],
    ["domains", "backbone", "grouping", "rows", "optimization", "tensors", "perturbation"],
    ["folders", "typefaces", "arrays", "idx", "loading", "stages"],
    ["merge_checks", "order_statistics", "spectral"],
    ["merge_job"],
    ["tensor_files"],
    ["merging"],
    ["file_merging"],
    ["readers", "augmentation", "wilds_sets", "masks"],
    ["evaluation", "inputs"],
    ["views", "portions"],
    ["method", "average"],
    ["record", "training", "walk"],
    ["store"],
    ["remote", "following", "scalars", "cluster"],
    ["selection", "diagnostic", "model_folder"],
    ["material", "protocol", "explanation", "merged_runs", "model_card", "deployment", "outcomes"],
    ["runner", "table", "answer_files", "exporting", "curves", "comparison"],
    ["assembly", "cost", "draws", "headline"],
    ["sweep", "merge_plan", "domainbed", "embedding", "inspection", "supply", "diagnosis"],
    ["commands", "curve_data", "forest", "sklearn"],
    ["sections"],
    ["report"],
    ["jobs", "held_out"],
    ["fitting"],
    ["merged_model"],
    ["benchmark", "console"],
    ["cli_options", "cli_report"],
    ["cli_bench", "cli_data", "cli_merge", "cli_model"],
    ["cli"],
]
READERS = {"arrays", "downloads", "folders", "idx", "letters", "sounds", "typefaces", "wilds_sets"}
ALLOWED = {
    "methods": {
        "backbone",
        "errors",
        "evaluation",
        "grouping",
        "masks",
        "method",
        "methods",
        "perturbation",
        "space",
        "tensors",
        "walk",
    },
    "diagnostics": {
        "backbone",
        "confidence",
        "diagnostic",
        "errors",
        "grouping",
        "masks",
        "merged_runs",
        "merges",
        "method",
        "outcomes",
        "pictures",
        "progress",
        "record",
        "space",
        "spectral",
        "table",
        "tensors",
        "views",
    },
    "averages": {"average", "errors", "space", "tensors"},
    "merges": {
        "errors",
        "merging",
        "order_statistics",
        "randomness",
        "space",
        "spectral",
        "tensors",
    },
    "datasets": {"cache", "domains", "errors", "randomness", "space"} | READERS,
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def imported(path):
    """The modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("afield"):
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("afield.")
            )


def level(name):
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards_only(path):
    if path.parent != PACKAGE:
        assert set(imported(path)) <= ALLOWED[path.parent.name]
        return
    for name in imported(path):
        assert level(name) < level(path.stem), f"{path.stem} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_is_public_and_what_it_is(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert any(isinstance(n, ast.Assign) and n.targets[0].id == "__all__" for n in tree.body)


@pytest.mark.parametrize("kind", ["methods", "merges", "averages"])
def test_every_instance_says_where_it_differs(kind):
    for path in (PACKAGE / kind).glob("[!_]*.py"):
        assert "Differs from" in ast.get_docstring(ast.parse(path.read_text())), path


def test_no_public_function_has_the_name_of_a_module():
    modules = {path.stem for path in FILES if path.parent == PACKAGE}
    assert not modules & set(afield.__all__)


def test_no_file_has_a_name_that_says_nothing():
    assert not {path.stem for path in FILES} & {"base", "utils", "misc", "common", "helpers"}


def test_the_public_names_are_those_of_the_imports_and_all_exist():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name: node.module for node in block.body for alias in node.names}
    assert sorted(shown) == afield.__all__ == dir(afield)
    for name, module in shown.items():
        assert getattr(afield, name) is getattr(import_module(module), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="benchh"):
        _ = afield.benchh
