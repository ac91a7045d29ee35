"""Commands in the docs can be typed: they are planned here, on a small dataset."""

import importlib.util
import re
import runpy
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
import sklearn
import typer

from afield import own_code, registry
from afield.cli.app import app
from afield.data.lookup import find_dataset
from afield.deployment.estimates import DISTANCE_SAMPLES
from afield.deployment.fitting import LEAVE_ONE_OUT_LIMIT
from afield.hyperparameters import ranges
from afield.networks.inference import BatchPredictor
from afield.reporting.claims import PROBABILITY
from afield.reporting.comparison import MIN_PAIRS
from afield.runs import run_data
from afield.studies.benchmark import make_benchmark
from afield.studies.recipe import recipe_names
from afield.studies.settings import CHECKPOINTS_PER_RUN
from afield.training.calibration import BINS
from tests.notebooks import NOTEBOOKS, assert_alike, read, run_cells, shown

DOCS = Path(__file__).parents[2] / "docs"
TEXTS = {path.name: path.read_text() for path in DOCS.glob("*.md")}
COMMANDS = sorted(
    {
        options
        for text in TEXTS.values()
        for options in re.findall(r"`afield bench D (--methods [^`]+)`", text)
    }
)


@pytest.mark.parametrize("options", COMMANDS)
def test_a_cell_of_the_papers_tables_can_be_planned(options):
    words = options.split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    given = [setting for word, setting in pairwise(words) if word == "--set"]
    settings = dict(setting.split("=", 1) for setting in given)
    methods = pairs["--methods"].split(",")
    runs = make_benchmark(
        "spirals",
        methods,
        trials=1,
        average=pairs.get("--average", "last"),
        rules=pairs.get("--rules"),
        settings=settings,
    ).runs()
    assert {run.method for run in runs} == set(methods)
    # What was asked for is not what would be done anyway.
    assert all(run.given for run in runs) == bool(settings)


def test_there_are_cells():
    assert len(COMMANDS) >= 8


def test_every_diagnostic_is_shown():
    for name in registry.names("diagnostics"):
        assert any(f"afield diagnose {name} " in text for text in TEXTS.values()), name


def test_every_grouping_of_seed_categories_is_in_the_table_of_them():
    options = ranges(registry.find("methods", "seed_category"))["grouping"].options
    rows = re.findall(r"^\| `(\w+)`", TEXTS["seed_categories.md"], flags=re.MULTILINE)
    assert rows[: len(options)] == list(options)


@pytest.mark.slow
def test_the_page_on_scikit_learn_runs_as_it_stands():
    blocks = re.findall(r"```python\n(.*?)```", TEXTS["sklearn.md"], flags=re.DOTALL)
    assert len(blocks) == 4
    with sklearn.config_context():
        exec("\n".join(blocks), names := {})
    assert names["search"].best_score_ > 0.8


PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
FAMILIES, DOMAINBED = PAGE.split("## Names in DomainBed")
# What DomainBed's list of algorithms had in 2024.
ALGORITHMS = [
    "ERM", "ERMPlusPlus", "URM", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN",
    "CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA", "SelfReg",
    "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer", "CausIRL_CORAL",
    "CausIRL_MMD", "EQRM", "RDM", "ADRMX",
]  # fmt: skip


def test_every_method_is_in_one_family_with_its_sentence():
    rows = re.findall(r"^\| \[`(\w+)`\]\(reference/methods\.md#(\w+)\) \| (.+?) \|", FAMILIES, re.M)
    names = [name for name, _, _ in rows]
    assert sorted(names) == sorted(registry.names("methods"))
    for name, anchor, sentence in rows:
        assert anchor == name
        assert sentence == registry.summary("methods", name), name
    assert f"afield has {len(names)} methods" in PAGE


def test_every_algorithm_of_domainbed_has_a_name_here():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \|", DOMAINBED, re.M)
    assert [theirs for theirs, _ in rows] == ALGORITHMS
    assert {ours for _, ours in rows} <= set(registry.names("methods"))


def test_the_page_is_generated_from_the_recipes():
    path = DOCS / "_hooks" / "reproduction.py"
    spec = importlib.util.spec_from_file_location("reproduction", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert module.page() == text, "run: python docs/_hooks/reproduction.py"
    for name in recipe_names():
        assert f"| `{name}` |" in text


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints_what_it_promises(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert any(word in said for word in ("worst", "% on the unseen domain"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["add_a_method", "folder_to_table"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_prints_what_the_notebook_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(own_code, "_registered", {})
    assert read(path)["nbformat"] == 4
    printed, expected = run_cells(path), shown(path)
    assert "erm" in "".join(expected)
    for text, stated in zip(printed, expected, strict=True):
        assert_alike(text, stated)  # otherwise run: python -m tests.notebooks
    assert (tmp_path / "runs" / "report.html").is_file()


ROOT = Path(__file__).parents[2]
PAGES = {"README.md": (ROOT / "README.md").read_text(), **TEXTS}
SHELL = re.compile(r"```bash\n(.*?)```", flags=re.DOTALL)


def typed_commands():
    """Every command of afield in blocks of the shell and in code within sentences."""
    for page, text in PAGES.items():
        blocks = "\n".join(SHELL.findall(text)).replace("\\\n", " ")
        inline = re.findall(r"`(afield [a-z][^`\n]*)`", text)
        lines = [line.strip().removeprefix("$ ") for line in blocks.splitlines()]
        for line in [*lines, *inline]:
            if line.startswith("afield ") and "…" not in line:
                yield page, shlex.split(line.partition(" #")[0].replace("'", '"'), posix=True)


TYPED = list(typed_commands())


def test_every_option_of_a_typed_command_exists():
    assert len(TYPED) > 200
    root = typer.main.get_command(app)
    unknown = []
    for page, (_, *words) in TYPED:
        command, rest = root, words
        while rest and hasattr(command, "get_command") and not rest[0].startswith("-"):
            command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
        if command is None:
            unknown.append((page, *words))
            continue
        known = {o for each in command.params for o in (*each.opts, *each.secondary_opts)}
        given = {word.partition("=")[0] for word in rest if re.match(r"--[a-z]", word)}
        unknown += [(page, command.name, o) for o in sorted(given - known - {"--help"})]
    assert unknown == []


@pytest.mark.parametrize(
    ("option", "kinds"),
    [
        ("--methods", ["methods", registry.CLASSICAL]),
        ("--merges", ["merges", "averages"]),
        ("--average", ["averages"]),
        ("--adapt", ["adaptations"]),
    ],
)
def test_every_method_of_a_typed_command_exists(option, kinds):
    known = {"all", "none", "last", *(name for kind in kinds for name in registry.names(kind))}
    found = [
        (page, name)
        for page, words in TYPED
        for word, value in pairwise(words)
        if word == option
        for name in value.split(",")
        if re.fullmatch(r"[a-z_0-9]+", name)
    ]
    assert found
    assert [each for each in found if each[1] not in known] == []


METHODS = ROOT / "src" / "afield" / "training" / "methods"
LINES = [
    len((METHODS / f"{name}.py").read_text().splitlines()) for name in registry.names("methods")
]
SWAD = {name: find_dataset(name).averages["swad"] for name in ("pacs", "vlcs", "domain_net")}
# A sentence with numbers, and the constants that they are.
CONSTANTS = [
    ("protocol.md", r"\((\d+) in all, or ([\d,]+) where .* at least (\d+) of each\)",
     (run_data.CURVE_SAMPLES, run_data.CHEAP_CURVE_SAMPLES, run_data.MIN_CURVE_SAMPLES)),
    ("report.md", r"\(up to ([\d,]+) samples\)", (run_data.CHEAP_CURVE_SAMPLES,)),
    ("report.md", r"curves show (\d+) samples", (run_data.CURVE_SAMPLES,)),
    ("protocol.md", r"expected calibration error on the test splits: (\d+) bins", (BINS,)),
    ("protocol.md", r"samples of a split come in batches of (\d+)", (BatchPredictor.batch_size,)),
    ("protocol.md", r"detects with a probability of (\d+) %", (round(100 * PROBABILITY),)),
    ("protocol.md", r"about (\w+) times in a run", ({50: "fifty"}[CHECKPOINTS_PER_RUN],)),
    ("protocol.md", r"fewer than (\w+) pairs of trial", ({6: "six"}[MIN_PAIRS],)),
    ("model.md", r"With more than (\w+) domains", ({12: "twelve"}[LEAVE_ONE_OUT_LIMIT],)),
    ("model.md", r"at most ([\d,]+) samples of the sources, with Ledoit", (DISTANCE_SAMPLES,)),
    ("README.md", r"A method is one file of (\d+) to (\d+) lines", (min(LINES), max(LINES))),
    ("meta_learning.md", r"`terra_incognita` every (\d+) steps, `vlcs` every (\d+) with "
     r"`swad.slack=([\d.]+)`, `domain_net` every (\d+)",
     (SWAD["pacs"]["every"], SWAD["vlcs"]["every"], SWAD["vlcs"]["swad.slack"],
      SWAD["domain_net"]["every"])),
]  # fmt: skip


@pytest.mark.parametrize(("page", "pattern", "values"), CONSTANTS)
def test_a_number_in_the_docs_is_the_constant_of_the_code(page, pattern, values):
    (found,) = re.finditer(pattern, PAGES[page])
    assert [word.replace(",", "") for word in found.groups()] == [str(value) for value in values]
