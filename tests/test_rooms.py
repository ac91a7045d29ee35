"""Imports go downwards only, and names keep to the rules of the house."""

import ast
from functools import cache
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

import afield
from afield.registry import ROOMS

PACKAGE = Path(afield.__file__).parent
# Each room may import the ground floor (the files beside the rooms) and these rooms.
MAY_IMPORT: dict[str, set[str]] = {
    "data": set(),
    "merging": set(),
    "networks": {"data"},
    "training": {"data", "networks"},
    "experiments": {"data", "networks", "training", "merging"},
    "reporting": {"data", "training", "experiments"},
    "diagnosis": {"data", "networks", "training", "merging", "experiments", "reporting"},
    "deployment": {"data", "networks", "training", "merging", "experiments"},
    "cli": {
        *("data", "networks", "training", "merging"),
        *("experiments", "reporting", "diagnosis", "deployment"),
    },
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
MAX_GROUND_FLOOR_FILES, MAX_ROOM_MODULES, MAX_LINES = 12, 20, 300


@cache
def parsed(path):
    return ast.parse(path.read_text())


def imported(path):
    """The rooms and ground-floor modules that a file imports, anywhere in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "afield":
            rest = node.module.split(".")[1:]
            yield from [rest[0]] if rest else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("afield.")
            )


def room(path):
    """The room of a file; empty on the ground floor."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_every_room_imports_only_what_it_may():
    for path in FILES:
        rooms = {name for name in imported(path) if name in MAY_IMPORT} - {room(path)}
        if path.stem == "sklearn" and not room(path):
            continue  # a name for users, which nothing here imports
        allowed = MAY_IMPORT[room(path)] if room(path) else set()
        assert rooms <= allowed, f"{path.relative_to(PACKAGE)} must not import {rooms - allowed}"


def test_every_folder_of_the_package_is_a_room():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)


def test_the_ground_floor_is_small():
    files = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(files) <= MAX_GROUND_FLOOR_FILES, files


def test_a_room_has_few_modules_beside_its_registries():
    for name in MAY_IMPORT:
        modules = sorted(path.stem for path in (PACKAGE / name).glob("*.py"))
        modules.remove("__init__")
        assert len(modules) <= MAX_ROOM_MODULES, f"{name} has {len(modules)}: {modules}"


def test_no_file_is_long():
    lengths = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines())
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert not long, long


def test_one_sentence_says_what_a_room_is():
    for name in MAY_IMPORT:
        sentence = ast.get_docstring(parsed(PACKAGE / name / "__init__.py"))
        assert sentence, f"{name} has no docstring"
        ends = [end for end in (". ", ".\n", "\n\n") if end in sentence]
        assert sentence.endswith("."), f"{name}: {sentence}"
        assert not ends, f"{name} has more than one sentence: {sentence}"


def test_tests_mirror_the_rooms():
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/__init__.py")}
    assert folders == {*MAY_IMPORT, "docs"}


def test_tests_import_helpers_and_no_other_tests():
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                found = [name for name in modules if name.split(".")[-1].startswith("test_")]
                assert not found, f"{path}: {found}"


def test_every_module_says_what_is_public_and_what_it_is():
    for path in FILES:
        tree = parsed(path)
        assert ast.get_docstring(tree), path
        assigned = [n for n in tree.body if isinstance(n, ast.Assign)]
        assert any(getattr(n.targets[0], "id", "") == "__all__" for n in assigned), path


def test_every_instance_says_where_it_differs():
    for kind in ("methods", "merges", "averages", "adaptations"):
        for path in (PACKAGE / ROOMS[kind] / kind).glob("[!_]*.py"):
            assert "Differs from" in ast.get_docstring(parsed(path)), path


def test_no_public_name_of_a_room_is_the_name_of_one_of_its_modules():
    for name in ("afield", *(f"afield.{room}" for room in MAY_IMPORT)):
        package = import_module(name)
        modules = {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        public = {public for public in package.__all__ if not ismodule(getattr(package, public))}
        assert not modules & public, name


def test_no_file_has_a_name_that_says_nothing():
    nothing = {"base", "utils", "misc", "common", "helpers"}
    found = [path for path in FILES if path.stem in nothing]
    assert not found, found


def test_every_public_name_of_a_room_exists():
    for name in ("afield", *(f"afield.{room}" for room in MAY_IMPORT)):
        package = import_module(name)
        assert package.__all__ == sorted(package.__all__), name
        for public in package.__all__:
            assert getattr(package, public) is not None, f"{name}.{public}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="benchh"):
        _ = afield.benchh
