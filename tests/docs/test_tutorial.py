"""The tutorial can be followed: its script, its commands and its Python print what it shows."""

import re
import runpy
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.notebooks import assert_alike

TEXT = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text()
USE, SCRIPT = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def shown(after: str) -> str:
    """The output that the tutorial shows below a command, or in the block after some text."""
    rest = TEXT[TEXT.index(after) + len(after) :]
    block = re.match(r"\n+(?:```text\n)?(.*?)```", rest, flags=re.DOTALL)
    assert block, after
    return "\n".join(line.rstrip() for line in block[1].rstrip().splitlines())


def command(words: str) -> str:
    assert f"\n$ {words}\n" in TEXT
    return words


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(afield, tmp_path):
    (tmp_path / "make_scans.py").write_text(SCRIPT)
    runpy.run_path("make_scans.py")

    def said(words: str, *more: str) -> str:
        code, out, err = afield(*shlex.split(command(words))[1:], *more)
        assert code == 0, err
        # On a busy machine, work takes long enough to have progress.
        lines = err.splitlines(keepends=True)
        return out + "".join(line for line in lines if not line.rstrip().endswith((" left", "…")))

    check = "afield data check scans"
    assert_alike(said(check), shown(f"$ {check}"))
    fit = "afield fit scans erm --out model --backbone small:cnn --steps 100 --set size=32"
    assert_alike(said(fit, "--workers", "1"), shown(f"$ {fit}"))
    files = "\n".join(sorted(path.name for path in (tmp_path / "model").iterdir()))
    assert files == shown(f"$ {command('ls model')}")
    card = (tmp_path / "model" / "README.md").read_text()
    (first,) = [line for line in card.splitlines() if "Unseen domains" in line]
    grep = command('grep "Unseen domains" model/README.md')
    assert_alike(first, shown(f"$ {grep}"))
    predict = "afield predict model new --abstain 0.1"
    answers = said(predict)
    assert_alike(answers, shown(f"$ {predict}"))
    assert_what_it_says_of_them(answers)
    with redirect_stdout(StringIO()) as printed:
        exec(compile(USE, "tutorial", "exec"), {})
    assert_alike(printed.getvalue(), shown(USE + "```"))


def assert_what_it_says_of_them(answers: str) -> None:
    rows = [line.split(",") for line in answers.splitlines()[1:]]
    for row in rows[:6]:
        assert row[1] == Path(row[0]).stem[-1]
        assert row[6] == "no"
    assert float(rows[6][2]) > 0.8
    assert (rows[6][4], rows[6][6]) == ("100", "yes")
