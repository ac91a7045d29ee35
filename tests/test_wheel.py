"""The package as it would be released: a wheel that works in an empty folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = "import sys, afield; from afield.cli import main; print(afield.__file__); main()"


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, words)], check=True, capture_output=True)


@pytest.mark.slow
def test_a_wheel_runs_a_benchmark_in_an_empty_folder(tmp_path):
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("afield-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "afield/py.typed" in names
    assert "afield/__init__.pyi" in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]
    # The packages that afield needs are those of this environment; afield itself is the wheel's.
    pip("install", "--no-deps", "--target", tmp_path / "installed", wheel)
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ["bench", "spirals", "--methods", "erm", "--trials", "1", "--steps", "5"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--workers", "1"],
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "HOME": str(empty)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "installed") in done.stdout
    assert "spirals: accuracy" in done.stdout
    assert (empty / "runs" / "report.html").is_file()


def test_the_workflow_runs_the_command_of_ci():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert "- run: .ci/run" in workflow


def test_the_docker_file_copies_what_the_build_needs():
    text = (ROOT / "Dockerfile").read_text()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        assert name in text
        assert (ROOT / name).exists()
        assert f"!{name}" in (ROOT / ".dockerignore").read_text()
