"""The command ``afield new``: a starting file for your own method, with its test."""

import keyword
from pathlib import Path
from typing import Annotated

import typer

from afield.cli import console
from afield.errors import SpecError
from afield.files import check_output

METHOD = '''"""{name}: one line on the idea.

    loss = mean(risks) + penalty · max(risks)

Differs from the paper: say where.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform
from afield.training import Batches, Learner, Logs, Method, risks

__all__ = ["{kind}"]


@dataclass(frozen=True)
class {kind}(Method):
    """The mean of the risks of the source domains, and a penalty on the largest."""

    penalty: Annotated[float, LogUniform(0.01, 10.0)] = 1.0

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Replace this by your idea; `risks` has one loss per source domain."""
        risk = risks(learner.model, batches)
        return risk.mean() + self.penalty * risk.max(), {{"largest": risk.max().detach()}}
'''
TEST = '''"""{kind} learns, and without its penalty it equals erm."""

from pathlib import Path

import afield

FILE = str(Path(__file__).with_name("{name}.py"))


def test_it_learns(tmp_path):
    records = afield.bench("spirals", FILE, targets="turn10", trials=1, store=tmp_path)
    assert records[0].checkpoints[-1].scores["turn10"].main.accuracy > 0.8


def test_without_its_penalty_it_equals_erm(tmp_path):
    shared = {{"targets": "turn10", "trials": 1, "steps": 20, "store": tmp_path}}
    settings = {{"{name}.penalty": 0.0}}
    mine = afield.bench("spirals", FILE, settings=settings, **shared)
    erm = afield.bench("spirals", "erm", **shared)
    assert mine[0].checkpoints[-1].scores == erm[0].checkpoints[-1].scores
'''


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What to start: method.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name, e.g. my_idea.")],
) -> None:
    """Write NAME.py, a method to start from, and its test test_NAME.py."""
    from afield import own_code, registry

    if kind != "method":
        raise SpecError(f"cannot start a {kind!r}; write `afield new method NAME`")
    # Of the class: empty for _, and a word of Python for true.
    title = "".join(part.capitalize() for part in name.split("_"))
    names = all(each.isidentifier() and not keyword.iskeyword(each) for each in (name, title))
    if not names or name in {*registry.builtin_names("methods"), *own_code.RESERVED}:
        raise SpecError(f"{name!r}: not a name, or taken already; write e.g. my_idea")
    files = {f"{name}.py": METHOD, f"test_{name}.py": TEST}
    for file in files:
        check_output(Path(file))
    for file, text in files.items():
        Path(file).write_text(text.format(name=name, kind=title), encoding="utf-8")
    console.out.say(
        f"{name}.py: your method. Try it: afield bench spirals --methods erm,./{name}.py\n"
        f"test_{name}.py: its test. Run it: pytest test_{name}.py"
    )
