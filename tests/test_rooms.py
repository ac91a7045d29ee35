"""Imports go downwards only, and names keep to the rules of the house."""

import ast
from importlib import import_module
from inspect import ismodule
from pathlib import Path

import pytest

import afield
from afield.registry import ROOMS
from tests import house
from tests.house import PACKAGE, parsed

# Each room may import the ground floor (the files beside the rooms) and these rooms.
MODELS = {"data", "networks", "training", "merging"}
MAY_IMPORT: dict[str, set[str]] = {
    "data": set(),
    "merging": set(),
    "networks": {"data"},
    "training": {"data", "networks"},
    "runs": MODELS,
    "studies": MODELS | {"runs"},
    "reporting": {"data", "training", "runs", "studies"},
    "diagnosis": MODELS | {"runs", "reporting"},
    "deployment": MODELS | {"runs", "studies", "reporting"},
    "cli": MODELS | {"runs", "studies", "reporting", "diagnosis", "deployment"},
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
# A file is an idea. One that is longer holds two, one that is shorter and has one importer is a
# fragment of it, and a folder of fewer files is an overflow box, unless it is a registry.
MAX_LINES, MIN_LINES, MIN_FOLDER_FILES = 600, 60, 4


def room(name):
    """The room of a module; empty on the ground floor."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def test_every_room_imports_only_what_it_may():
    for name in house.modules():
        rooms = {room(other) for other in house.imports(name)} - {"", room(name)}
        if name == "afield.sklearn":
            continue  # a name for users, which nothing here imports
        allowed = MAY_IMPORT[room(name)] if room(name) else set()
        assert rooms <= allowed, f"{name} must not import {rooms - allowed}"


def test_every_folder_of_the_package_is_a_room():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)


def test_no_folder_imports_what_imports_it():
    assert not house.folder_cycles()


def test_every_folder_in_a_room_is_a_registry_or_holds_several_ideas():
    for folder in sorted(PACKAGE.glob("*/*/__init__.py")):
        files = [path for path in folder.parent.glob("*.py") if path.name != "__init__.py"]
        is_registry = folder.parent.name in house.REGISTRIES
        assert is_registry or len(files) >= MIN_FOLDER_FILES, folder.parent


def test_no_file_is_a_fragment_of_the_only_one_that_imports_it():
    fragments = {
        name: house.importers()[name]
        for name in house.lonely_modules()
        if house.length(name) < MIN_LINES and name.split(".")[-2] not in house.REGISTRIES
    }
    assert not fragments


def test_no_file_is_long():
    long = {name: n for name in house.modules() if (n := house.length(name)) > MAX_LINES}
    assert not long


def test_contributing_lists_every_file():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in house.modules():
        parts = name.split(".")
        if house.is_package(name) or parts[-2] in house.REGISTRIES:
            continue
        assert f"  {parts[-1]}.py " in text, name


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
                tests = [name for name in modules if name.split(".")[-1].startswith("test_")]
                assert not tests, f"{path}: {tests}"


def test_every_module_says_what_it_is():
    for path in FILES:
        assert ast.get_docstring(parsed(path)), path


def test_every_file_of_a_registry_has_one_public_name():
    for kind, of in ROOMS.items():
        for path in (PACKAGE / of / kind).glob("[!_]*.py"):
            assert len(import_module(f"afield.{of}.{kind}.{path.stem}").__all__) == 1, path


def test_every_instance_says_where_it_differs():
    for kind in ("methods", "classical_methods", "merges", "averages", "adaptations"):
        for path in (PACKAGE / ROOMS[kind] / kind).glob("[!_]*.py"):
            assert "Differs from" in ast.get_docstring(parsed(path)), path


def test_no_public_name_of_a_room_is_the_name_of_one_of_its_modules():
    for name in ("afield", *(f"afield.{room}" for room in MAY_IMPORT)):
        package = import_module(name)
        modules = {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        public = {public for public in package.__all__ if not ismodule(getattr(package, public))}
        assert not modules & public, name


def test_no_file_has_a_name_that_says_nothing():
    meaningless = {"base", "utils", "misc", "common", "helpers"}
    assert not [path for path in FILES if path.stem in meaningless]


def test_every_public_name_of_a_room_exists():
    for name in ("afield", *(f"afield.{room}" for room in MAY_IMPORT)):
        package = import_module(name)
        assert package.__all__ == sorted(package.__all__), name
        for public in package.__all__:
            assert getattr(package, public) is not None, f"{name}.{public}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="benchh"):
        _ = afield.benchh
