"""The dependencies that are declared, and the versions that are tested."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
# The first versions without a hole that was known in November 2026.
WITHOUT_HOLES = {
    "filelock": "3.20.3",
    "fonttools": "4.60.2",
    "jinja2": "3.1.6",
    "onnx": "1.21",
    "orjson": "3.11.6",
    "pillow": "12.1.1",
    "ray": "2.54",
    "torch": "2.10",
}


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"]]
    lines += [line for extra in extras if extra not in ("dev", "docs") for line in extras[extra]]
    return {canonical(each.name): each.specifier for each in map(Requirement, lines)}


def pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_dependency_has_a_version_that_is_tested_and_allowed():
    versions = pinned()
    for name, allowed in declared().items():
        assert name in versions, f"{name}: not in constraints.txt"
        assert versions[name] in allowed, name


def test_lower_bounds_leave_out_versions_with_known_holes():
    for name, version in WITHOUT_HOLES.items():
        (bound,) = declared()[name]
        assert bound.operator == ">="
        assert Version(bound.version) >= Version(version), name
