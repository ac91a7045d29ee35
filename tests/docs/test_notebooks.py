"""The notebooks run from the first cell to the last, in an empty folder."""

import json
from pathlib import Path

import pytest

from afield import own_code

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["add_a_method", "folder_to_table"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_code, "_registered", {})
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    names = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "commit notebooks without outputs"
            exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
    assert "erm" in capsys.readouterr().out
    assert (tmp_path / "runs" / "report.html").is_file()
