"""A benchmark as a value, and in a file."""

from dataclasses import replace

import pytest

from afield.errors import AfieldError, SpecError, UnknownNameError
from afield.runs.pools.local import Local
from afield.runs.pools.ray import Ray
from afield.studies.benchmark import Benchmark, make_benchmark, read_benchmark
from afield.studies.commands import benchmark_command

FILE = """
dataset = "spirals"
methods = ["erm", "vrex"]
trials = 2
workers = 1
steps = 10
lr = 0.01
vrex.penalty = 3
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "bench.toml").write_text(text)
        return tmp_path / "bench.toml"

    return write


def test_a_file_asks_for_what_the_options_would(written):
    result = read_benchmark(written(FILE))
    settings = {"steps": 10, "lr": 0.01, "vrex.penalty": 3}
    same = Benchmark(("spirals",), methods=("erm", "vrex"), trials=2, workers=1, settings=settings)
    assert result == same
    runs = result.runs()
    assert len(runs) == 2 * 2 * 4
    assert {run.lr for run in runs} == {0.01}
    assert {run.params.get("penalty") for run in runs} == {None, 3.0}


def test_what_is_given_beside_the_file_wins(written):
    result = read_benchmark(written(FILE), store="there", on=None)
    assert (result.store, result.on) == ("there", "local")


def test_several_datasets_are_one_sweep(written):
    result = read_benchmark(
        written('dataset = ["spirals", "rotated_digits"]\ntrials = 1\nsteps = 5')
    )
    assert {run.dataset for run in result.runs()} == {"spirals", "rotated_digits"}


def test_names_may_be_written_as_on_the_command_line(written):
    text = (
        'dataset = "spirals"\nmerges = "average"\nexpert-method = "erm"\nbase-steps = 3\nsteps = 5'
    )
    assert read_benchmark(written(text)).base_steps == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset = ", "not TOML"),
        ('trials = "many"', "trials: Input should be a valid integer"),
        ("trials = 0", "trials=0: must be 1 or more"),
        ("workers = 0", r"\.toml: workers=0: must be 1 or more"),
        ("methods = [1]", "methods.0: Input should be a valid string"),
        ('on = "rai"', "did you mean 'ray'"),
        ('on = "ray"\nworkers = 2', "--workers is for processes"),
        ("gpus = 0.5", "need --on ray"),
        ("validate = 0.1", "--validate needs --hold-out"),
        ('dataset = "spirals"\nmetods = "erm"', "did you mean 'methods'"),
        ("trials = true", "trials=true: give a number"),
        ('dataset = "spirals"\nvrex.penalti = 1\nmethods = "vrex"', "penalt"),
        ('dataset = "spirals"\nhold_out = 0.5\ntrain_on = ["few"]', "write numbers of domains"),
    ],
)
def test_a_mistake_in_a_file_is_reported(written, text, message):
    with pytest.raises(AfieldError, match=message):
        read_benchmark(written(text)).runs()


def test_a_file_that_is_missing_is_reported(tmp_path):
    with pytest.raises(AfieldError, match="cannot be read"):
        read_benchmark(tmp_path / "none.toml")


def test_where_it_is_done():
    assert Benchmark(workers=2).pool() == Local(2)
    assert Benchmark(on="ray", threads=2).pool() == Ray(cpus=2)
    there = Benchmark(on="ray://head:10001", cpus=1.0, gpus=0.25, retries=5).pool()
    assert there == Ray("ray://head:10001", cpus=1.0, gpus=0.25, retries=5)
    assert Benchmark(on="ray:cpus=2,gpus=0.5", threads=4).pool() == Ray(cpus=2, gpus=0.5)


def test_names_may_be_separated_by_commas(written):
    assert read_benchmark(written('methods = "erm, vrex"')).methods == ("erm", "vrex")


def test_every_word_means_the_same_in_python_in_a_file_and_in_the_shell(written):
    words = {"methods": "erm", "hold_out": 0.5, "validate": 0.1, "train_on": "2,all", "trials": 2}
    text = 'dataset = "spirals"\nmethods = "erm"\nhold-out = 0.5\nvalidate = 0.1\n'
    of_file = read_benchmark(written(text + 'train_on = [2, "all"]\ntrials = 2\nsteps = 5'))
    of_python = make_benchmark("spirals", steps=5, **words)
    assert of_python == make_benchmark("spirals", settings={"steps": 5}, **words)
    assert replace(of_file, train_on=("2", "all")) == of_python


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hold_outs": 0.5}, UnknownNameError, "no option 'hold_outs'; did you mean 'hold_out'"),
        ({"hold_out": 0.95}, SpecError, r"hold_out=0\.95: must be 0\.9 or less"),
        ({"trials": 10**9}, SpecError, "must be 10000 or less"),
        ({"draws": 10**9}, SpecError, "must be 10000 or less"),
        *[
            ({"methods": text}, SpecError, "methods=.*: give names separated by commas")
            for text in ("", " ", ",")
        ],
        (
            {"targets": "turn0", "hold_out": 0.25},
            SpecError,
            "--hold-out draws the domains to test on",
        ),
        ({"merges": "ties", "single_source": True}, SpecError, "--merges needs several sources"),
    ],
    ids=str,
)
def test_a_mistake_in_python_is_reported(options, error, message):
    with pytest.raises(error, match=message):
        make_benchmark("spirals", **options)


@pytest.mark.parametrize("content", ["a = " + "[" * 3000, ".".join("a" * 3000) + " = 1"])
def test_a_file_that_is_nested_too_deeply_is_one_line(tmp_path, content):
    (tmp_path / "bench.toml").write_text(content)
    with pytest.raises(AfieldError, match=r"bench\.toml: (not TOML|.*nested too deeply)"):
        read_benchmark(tmp_path / "bench.toml")


def test_domains_are_named_alike_in_python_in_toml_and_on_the_command_line(tmp_path):
    asked = make_benchmark("spirals", "erm", targets="turn0,turn10+turn20", validate_on="turn30")
    path = tmp_path / "asked.toml"
    path.write_text(
        'dataset = "spirals"\nmethods = "erm"\n'
        'targets = ["turn0", "turn10+turn20"]\nvalidate-on = ["turn30"]\n'
    )
    assert read_benchmark(path) == asked
    assert "--targets turn0,turn10+turn20 --validate-on turn30" in benchmark_command(asked)
    path.write_text('dataset = "spirals"\nsingle-source = true\nreport = "whole"\nsteps = 5\n')
    single = make_benchmark("spirals", single_source=True, report="whole", steps=5)
    assert read_benchmark(path) == single
    assert benchmark_command(single) == (
        "afield bench spirals --single-source --set report=whole --set steps=5"
    )
