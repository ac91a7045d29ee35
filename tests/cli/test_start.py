"""Commands that only read start without torch, whose import takes seconds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from afield.runs.record import Plan
from afield.runs.store import Store

GOLDEN = Path(__file__).parents[1] / "golden" / "flat" / "store"
SCRIPT = """
import sys
from afield.cli.app import app
for words in map(str.split, ("status runs", "table runs", "report runs", "list", "power runs")):
    try:
        app(words, standalone_mode=False)
    except SystemExit as end:
        assert not end.code, words
    heavy = {"torch", "timm", "torchvision", "sklearn", "matplotlib"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_status_table_report_and_list_import_no_torch(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "runs")
    keys = tuple(each.run.key for each in Store(tmp_path / "runs"))
    Store(tmp_path / "runs").put_plan(Plan(keys, 0, "afield bench", "elsewhere", 1, 0.0))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(keys)}/{len(keys)} runs done" in done.stdout
    assert (tmp_path / "runs" / "report.html").exists()


def test_train_says_how_many_cores_are_idle_and_how_to_use_them(afield, monkeypatch):
    monkeypatch.setattr("afield.compute.usable_cores", lambda: 4)
    words = ("train", "spirals", "erm", "--target", "turn10", "--steps", "2")
    _, _, err = afield(*words)
    assert err.startswith("training on 1 thread; 3 cores idle: --threads 4 uses all")
    _, _, err = afield(*words, "--threads", "4", "--store", "other")
    assert "idle" not in err


def test_training_on_images_imports_no_other_networks_tables_or_compilers(tmp_path):
    script = (
        "import sys, afield; afield.train('rotated_digits', 'erm', target='0deg', store='runs', "
        "settings={'steps': 2}); "
        "heavy = {'timm', 'torchvision', 'sklearn', 'scipy.stats', 'pandas', 'torch._dynamo'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, env=dict(os.environ))
