"""The package as it would be released: a wheel that works in an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `make wheel-test` sets it: packages are then downloaded, which takes minutes and gigabytes.
FRESH = "AFIELD_FRESH_WHEEL"


def pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, words)], check=True, capture_output=True)


def build_wheel(folder: Path) -> Path:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("afield-*.whl")
    return wheel


def environment_with(wheel: Path, folder: Path, *options: str) -> Path:
    """Install the wheel into a new environment; return the folder of its programs."""
    venv.create(folder, with_pip=False)
    pip("--python", folder / "bin" / "python", "install", *options, wheel)
    return folder / "bin"


def check_bench(programs: Path, empty: Path) -> None:
    """Run a benchmark in an empty folder, without settings of this environment."""
    empty.mkdir()
    where = [programs / "python", "-c", "import afield; print(afield.__file__)"]
    words = ["bench", "spirals", "--methods", "erm", "--trials", "1", "--steps", "5"]
    kept = ("PATH", "LANG", "OMP_NUM_THREADS")
    env = {"HOME": str(empty)} | {name: os.environ[name] for name in kept if name in os.environ}
    done = [
        subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True, check=False)
        for command in (where, [programs / "afield", *words, "--workers", "1"])
    ]
    assert done[0].stdout.startswith(str(programs.parent)), done[0].stderr
    assert done[1].returncode == 0, done[1].stderr
    assert "spirals: accuracy" in done[1].stdout
    assert (empty / "runs" / "report.html").is_file()


@pytest.mark.slow
def test_a_wheel_runs_a_benchmark_in_an_empty_folder(tmp_path):
    """In a new environment that can see the packages of this one, but not its afield.

    So no package is downloaded, and a dependency that pyproject.toml does not list goes unnoticed:
    `make wheel-test` installs the dependencies as well.
    """
    wheel = build_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "afield/py.typed" in names
    assert "afield/__init__.pyi" in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]
    programs = environment_with(wheel, tmp_path / "env", "--no-deps")
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # The editable install of afield is a .pth file too, which Python does not follow from here.
    (packages / "these.pth").write_text(sysconfig.get_path("purelib"))
    check_bench(programs, tmp_path / "empty")


@pytest.mark.slow
@pytest.mark.skipif(FRESH not in os.environ, reason="downloads gigabytes: use `make wheel-test`")
def test_a_wheel_brings_all_that_it_needs(tmp_path):
    """In a new environment with nothing but the wheel and the packages that it depends on."""
    programs = environment_with(build_wheel(tmp_path), tmp_path / "env")
    check_bench(programs, tmp_path / "empty")
    # Temporary folders of some runs are kept, and this one has gigabytes.
    shutil.rmtree(tmp_path / "env")


def test_the_workflow_runs_the_command_of_ci():
    assert "- run: .ci/run" in (ROOT / ".github" / "workflows" / "test.yml").read_text()


def test_the_docker_file_copies_what_the_build_needs():
    text = (ROOT / "Dockerfile").read_text()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        assert name in text
        assert (ROOT / name).exists()
        assert f"!{name}" in (ROOT / ".dockerignore").read_text()


def test_the_linter_of_docker_files_has_nothing_to_say():
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [linter, ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
