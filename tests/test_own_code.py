"""Code of the user: it runs when a person names it, and never because a file does."""

import hashlib
import json
import os

import pytest

import afield as package
from afield import own_code, registry
from afield.errors import AfieldError, SpecError
from afield.runs.finished import reopen
from afield.studies.benchmark import make_benchmark, read_benchmark
from afield.studies.planning import plan_runs
from tests.messages import message_of

METHOD = """
from dataclasses import dataclass
from afield.training import Method, risks

@dataclass(frozen=True)
class Mine(Method):
    weight: float = 2.0

    def loss(self, learner, batches):
        return self.weight * risks(learner.model, batches).mean(), {}
"""
NETWORK = """
from torch import nn

def build(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, classes))
"""
SHORT = {"targets": "turn10", "trials": 1, "steps": 4}


@pytest.fixture(autouse=True)
def forget(monkeypatch, tmp_path):
    """No test sees the code of another."""
    monkeypatch.setattr(own_code, "_registered", {})
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    return path


def test_a_file_is_a_method_and_its_digest_is_in_the_key(file):
    words = own_code.accept({"dataset": "spirals", "methods": f"erm,{file}", **SHORT})
    assert words["methods"] == "erm,mine"
    erm, mine = plan_runs(make_benchmark(**words, settings={"mine.weight": 3.0}))
    assert mine.method == "mine"
    assert mine.params == {"weight": 3.0}
    assert not erm.code
    before = mine.key
    file.write_text(METHOD + "# changed\n")
    own_code.load("methods", str(file))
    (again,) = plan_runs(make_benchmark("spirals", "mine", settings={"mine.weight": 3.0}, **SHORT))
    assert again.key != before
    assert "mine" in registry.names("methods")


def test_a_record_does_not_run_code_that_is_not_given_again(file, monkeypatch):
    (record,) = package.bench("spirals", str(file), store="runs", **SHORT)
    monkeypatch.setattr(own_code, "_registered", {})
    with pytest.raises(SpecError, match="runs only if you give it again"):
        reopen(f"runs/{record.run.key}")
    file.write_text(METHOD + "# changed\n")
    own_code.load("", str(file))
    with pytest.raises(SpecError, match="another version of 'mine'"):
        reopen(f"runs/{record.run.key}")
    file.write_text(METHOD)
    own_code.load("", str(file))
    assert reopen(f"runs/{record.run.key}").step <= 4


def test_python_functions_take_a_file(file):
    options = {"store": "runs", "settings": {"steps": 2}}
    record = package.train("spirals", str(file), target="turn10", **options)
    digest = hashlib.sha256(METHOD.encode()).hexdigest()[:16]
    assert record.run.code == {"methods/mine": digest}
    model = package.fit("spirals", str(file), "model", estimate=False, **options)
    assert model.about.name == "spirals-mine"


def test_a_toml_file_does_not_run_code(file, tmp_path):
    toml = tmp_path / "bench.toml"
    toml.write_text('dataset = "spirals"\nmethods = ["./mine.py"]\ntrials = 1\n')
    with pytest.raises(AfieldError, match="only if you name it on the command line"):
        plan_runs(read_benchmark(toml))
    toml.write_text('dataset = "spirals"\nmethods = ["mine"]\ntrials = 1\n')
    with pytest.raises(AfieldError, match="no method 'mine'"):
        plan_runs(read_benchmark(toml))
    own_code.load("", str(file))
    assert plan_runs(read_benchmark(toml))


EXITS = """
import sys
from dataclasses import dataclass
from afield.training import Method

@dataclass(frozen=True)
class Ends(Method):
    def loss(self, learner, batches):
        sys.exit(0)
"""


def test_code_that_ends_the_program_is_a_failed_run(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends.py").write_text(EXITS)
    benchmark = {"targets": "turn0", "trials": 1, "steps": 2, "store": tmp_path / "runs"}
    assert not package.bench("spirals", "ends.py", **benchmark)
    assert "ends.py: SystemExit in line 9" in caplog.text


def test_an_error_in_own_code_is_one_line_with_its_place(tmp_path):
    """The command line prints it; in Python, the whole trace is of use."""
    path = tmp_path / "fails.py"
    path.write_text(METHOD.replace("return", "return 1 / 0 or"))
    own_code.load("methods", str(path))
    found = own_code.find("methods", "fails")
    with pytest.raises(ZeroDivisionError) as caught:
        found().loss(None, None)
    number = 1 + path.read_text().partition("1 / 0")[0].count("\n")
    place = f"{path}: ZeroDivisionError in line {number}: division by zero"
    assert own_code.describe_error(caught.value) == place
    assert own_code.describe_error(ValueError("of afield")) == ""


def test_bad_code_is_refused_in_one_line(tmp_path, monkeypatch):
    for content, message in (
        ("def broken(:\n", "syntax error in line 1"),
        ("x = 1\n\ny = 1 / 0\n", "ZeroDivisionError in line 3"),
        ("import sys\nsys.exit(0)\n", "SystemExit in line 2: the code ends the program"),
        ("x = 1\0\n", "null bytes"),
        ("__all__ = 3\n", "exactly one name"),
        ("__all__ = [3]\n", "exactly one name"),
        ("x = 1\n", "has no method"),
        (METHOD + METHOD.replace("Mine", "Other"), "has 2 objects: method"),
        ('__all__ = ["a", "b"]\n', "exactly one name"),
        ("class Mine: ...\n__all__ = ['Mine']\n", "is no method"),
    ):
        path = tmp_path / "bad.py"
        path.write_text(content)
        assert message in message_of(SpecError, own_code.load, "methods", str(path))
    (tmp_path / "erm.py").write_text(METHOD)
    with pytest.raises(SpecError, match="already a name of afield's methods"):
        own_code.load("methods", "erm.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "ends_at_import.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "fails_at_import.py").write_text("\n\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    origins = {
        "no.py": "cannot be read",
        "no_such.module:Idea": "cannot be",
        str(tmp_path / "pipe.py"): "not a regular file",
        "": "empty",
        " ": "empty",
        "ends_at_import:Idea": "SystemExit in line 2",
        "fails_at_import:Idea": "ZeroDivisionError in line 3",
    }
    for origin, message in origins.items():
        with pytest.raises(SpecError, match=message):
            own_code.load("methods", origin)


def test_the_other_kinds_are_found_as_well(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NETWORK)
    (tmp_path / "middle.py").write_text(
        "from afield.merging.scopes import scope\n"
        "@scope('entry')\n"
        "def middle(deltas):\n    return deltas.median(0).values\n"
    )
    (tmp_path / "half.py").write_text(
        "from afield.training.averages.ema import EMA\nclass Half(EMA):\n    pass\n"
    )
    (tmp_path / "my_ideas.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    assert own_code.load("", "net.py") == "net"
    assert own_code.load("", "middle.py") == "middle"
    assert own_code.load("averages", "half.py") == "half"
    assert own_code.load("methods", "my_ideas:Mine") == "Mine"
    words = {"average": "half", "backbone": "net", **SHORT}
    (record,) = package.bench("spirals", ["Mine"], store="runs", **words)
    assert set(record.run.code) == {"methods/Mine", "averages/half", "backbones/net"}
    merged = package.bench("spirals", [], merges="middle", store="runs", **SHORT)
    assert any(r.run.code.get("merges/middle") for r in merged)


@pytest.mark.slow
def test_code_works_in_workers_and_in_a_model(file, afield, monkeypatch):
    words = ("bench", "spirals", "--methods", "./mine.py", "--trials", 1, "--steps", 4)
    code, out, err = afield(*words, "--workers", 2)
    assert code == 0, err
    assert "mine" in out
    code, _, err = afield("fit", "spirals", "./mine.py", "--out", "model", "--steps", 4)
    assert code == 0, err
    monkeypatch.setattr(own_code, "_registered", {})
    description = json.loads((file.parent / "model" / "model.json").read_text())
    assert description["run"]["code"] == {"methods/mine": own_code._digest(METHOD)}
    # A plain network needs no code of its method.
    assert package.load("model").classes == ("first", "second")


def test_a_model_with_an_own_network_needs_its_code(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NETWORK)
    own_code.load("backbones", "net.py")
    options = {"store": "runs", "settings": {"steps": 2, "backbone": "net"}, "estimate": False}
    package.fit("spirals", "erm", "model", **options)
    monkeypatch.setattr(own_code, "_registered", {})
    with pytest.raises(AfieldError, match="give it again: afield --code net"):
        package.load("model")
    own_code.load("", "net.py")
    assert package.load("model").classes == ("first", "second")


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(SpecError, match="not a regular file"):
        own_code.load("methods", str(tmp_path / "pipe.py"))
