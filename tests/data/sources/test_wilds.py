"""The package wilds as a reader of tables: what is said without it, and what it must not change."""

import sys
import threading

import pytest
from PIL import Image

from afield.data.domains import ReadOptions
from afield.data.lookup import find_dataset
from afield.data.sources.wilds import WildsSet
from afield.errors import DataError
from tests.data.datasets.trees import needs_wilds

NAMES = ["camelyon17", "iwildcam", "fmow", "civilcomments"]


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "wilds", None)
    for needed in find_dataset(name, tmp_path).needs:
        (tmp_path / needed).parent.mkdir(exist_ok=True)
        (tmp_path / needed).write_text("location_remapped,y\n")
    with pytest.raises(DataError, match=r"needs the package wilds .*`pip install afield\[wilds\]`"):
        find_dataset(name, tmp_path).load(ReadOptions(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_the_advice_is_a_command_that_python_understands(tmp_path, name):
    command = find_dataset(name, tmp_path).download.instructions.split("`")[3]
    code = command.removeprefix('python -c "').removesuffix('"')
    assert f"get_dataset('{name}', " in code
    compile(code, name, "exec")


@needs_wilds
def test_reading_starts_no_thread_and_leaves_other_packages_alone(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "wilds"]:
        monkeypatch.delitem(sys.modules, name)
    limit, threads = Image.MAX_IMAGE_PIXELS, threading.active_count()
    empty = WildsSet("fmow", "1.1", field="region", image_paths=lambda _: [])
    with pytest.raises(DataError, match=r"fmow_v1\.1: the package wilds cannot read it"):
        empty.files(tmp_path)
    assert "wilds.datasets.fmow_dataset" in sys.modules
    assert limit == Image.MAX_IMAGE_PIXELS
    assert threading.active_count() == threads
    assert sys.modules["wilds.version"].check_outdated is None
    assert sys.modules.get("outdated", sys) is not None
