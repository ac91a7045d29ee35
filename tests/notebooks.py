"""The notebooks in ``examples/``: run their cells, and write what they print into the files.

python -m tests.notebooks
"""

import json
import os
import re
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|\d+")
# Of numbers that training gives: other versions of torch give others in the last digits.
CLOSE = {"rel": 0.3, "abs": 8}


def assert_alike(result: str, expected: str) -> None:
    """The same words, and numbers that are close."""
    result = "\n".join(line.rstrip() for line in result.rstrip().splitlines())
    assert NUMBER.sub("#", result) == NUMBER.sub("#", expected)
    for one, other in zip(NUMBER.findall(result), NUMBER.findall(expected), strict=True):
        assert float(one) == pytest.approx(float(other), **CLOSE)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def run_cells(path: Path) -> list[str]:
    """What each cell of code prints, run in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for number, cell in enumerate(read(path)["cells"]):
        if cell["cell_type"] == "code":
            with redirect_stdout(StringIO()) as output:
                exec(compile("".join(cell["source"]), f"{path.name}[{number}]", "exec"), names)
            printed.append(output.getvalue())
    return printed


def shown(path: Path) -> list[str]:
    """What the file shows below each cell of code, without spaces at the ends of lines."""
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    lines = [[line.rstrip() for each in c["outputs"] for line in each["text"]] for c in cells]
    return ["\n".join(text).rstrip() for text in lines]


def write_outputs(path: Path, printed: list[str]) -> None:
    notebook = read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(cells, printed, strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        output = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [output] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    for each in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write_outputs(each, run_cells(each))
