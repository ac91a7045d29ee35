"""Commands that do a row again: typed in, they find all their runs in the store they are of."""

import shlex
import subprocess

import pytest

from afield.data.lookup import find_dataset
from afield.reporting.results import group_records
from afield.studies.benchmark import make_benchmark
from afield.studies.commands import row_command, shell_quote, write_command
from afield.studies.planning import plan_runs, plan_training
from tests.stores import held_out, record


@pytest.fixture
def planned_by(afield, monkeypatch):
    """A function that types a command and returns the runs that it plans, without doing them."""
    planned = []

    def caught(benchmark):
        planned.extend(plan_runs(benchmark))
        raise SystemExit(0)

    def typed(command):
        planned.clear()
        with monkeypatch.context() as patch:
            patch.setattr("afield.studies.planning.plan_runs", caught)
            code, _, err = afield(*shlex.split(command)[1:])
        assert (code, err) == (0, "")
        return list(planned)

    return typed


def rows(runs):
    """The commands of all rows of a benchmark, as if all its runs were done."""
    records = []
    for run in runs:
        domains = [name for name in find_dataset("spirals").domains if name not in run.unused]
        made = record("-", [0.5], domains=domains)
        records.append(type(made)(run, made.checkpoints, 1.0, {}, "cpu, 1 thread(s)"))
    return {
        name: row_command(own, store="again")
        for benchmark in group_records(records)
        for name, own in benchmark.methods.items()
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "afield bench spirals --methods erm --trials 2 --store again"),
        ({"draws": 3}, "--trials 2 --draws 3"),
        ({"rules": "all"}, "--rules sources,left-out-source,target"),
        ({"rules": ["target"]}, "--rules target"),
        ({"average": "ema"}, "--average ema"),
        ({"settings": {"steps": 7, "domains_per_step": 2}}, "--domains-per-step 2"),
        ({"settings": {"batch": 3, "optimizer": "sgd:momentum=0.9"}}, "--set batch=3"),
        ({"hold_out": 0.5, "validate": 0.25}, "--hold-out 0.5 --validate 0.2"),
        ({"hold_out": 0.25, "validate": 0.0}, "--hold-out 0.2 --validate 0"),
        ({"hold_out": 0.25, "validate": 0.25, "train_on": [1]}, "--train-on 1"),
        ({"targets": ["turn0", "turn30"]}, "--targets turn0,turn30 --store"),
        ({"targets": ["turn0", "turn10", "turn20", "turn30"]}, "--trials 2 --store"),
        ({"targets": ["turn0"], "sources": ["turn20", "turn30"]}, "--sources turn20,turn30"),
        ({"targets": ["turn0", "turn10"], "validate_on": ["turn30"]}, "--validate-on turn30"),
        ({"single_source": True}, "--trials 2 --single-source --store"),
    ],
)
def test_the_command_of_a_row_plans_the_same_runs(options, expected, planned_by):
    runs = make_benchmark("spirals", ["erm"], trials=2, **options).runs()
    (command,) = rows(runs).values()
    assert expected in command
    planned = planned_by(command)
    assert {run.key for run in planned} == {run.key for run in runs}
    assert {run.rules for run in planned} == {run.rules for run in runs}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"base_steps": 3},
        {"expert_method": ["erm", "vrex"]},
        {"settings": {"score.tau": 1.0, "steps": 20}},
        {"expert_method": "vrex", "settings": {"vrex.penalty": 2.0}},
        {"expert_draws": 2},
    ],
)
def test_the_command_of_a_merged_row_plans_its_runs_too(options, planned_by):
    runs = make_benchmark("spirals", merges=["score"], trials=1, **options).runs()
    for name, command in rows(runs).items():
        own = {run.key for run in runs if run.method == name.split()[0] and run.role == "merged"}
        assert own
        assert own <= {run.key for run in planned_by(command)}, command


def test_a_row_with_missing_runs_is_done_as_a_whole():
    runs = make_benchmark("spirals", ["erm"], trials=2).runs()
    (whole,) = rows(runs).values()
    assert whole == "afield bench spirals --methods erm --trials 2 --store again"
    (part,) = rows(runs[:2]).values()
    assert part == whole.replace("--trials 2", "--trials 1")


def test_the_command_of_one_training_names_its_target(planned_by):
    (run,) = plan_training("spirals", "erm", target="turn10")
    (command,) = rows([run]).values()
    assert "--targets turn10" in command
    assert [each.key for each in planned_by(command)] == [run.key]


def test_threads_are_named_where_they_are_not_one():
    own = record("art", [0.5], device="cpu, 4 thread(s)")
    assert "--threads 4" in row_command([own], store="s")
    assert "--threads" not in row_command([record("art", [0.5])], store="s")
    assert "--threads" not in row_command([record("art", [0.5], device="NVIDIA 4")], store="s")


def test_commands_do_not_show_where_files_are():
    given = {"backbone": "hf:/home/ada/minilm?pooling=mean", "weights": "/home/ada/w.safetensors"}
    command = row_command([record("art", [0.5], given=given)], store="s")
    assert "--backbone 'hf:minilm?pooling=mean' --weights w.safetensors" in command


def test_held_out_shares_name_the_same_numbers_of_domains():
    words = shlex.split(row_command([held_out("erm", [0.5] * 4)], store="s"))
    shares = {name: float(words[words.index(name) + 1]) for name in ("--hold-out", "--validate")}
    assert {name: round(9 * share) for name, share in shares.items()} == {
        "--hold-out": 4,
        "--validate": 2,
    }


@pytest.mark.parametrize("word", ["plain", "a b", "it's", "a\u202eb", "line\nend", "\\u", "$(ls)"])
def test_a_shell_reads_a_quoted_word_as_it_was(word):
    shown = shell_quote(word)
    assert shown.isprintable()
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shown}"],
        capture_output=True,
        env={"LC_ALL": "C.UTF-8"},
        check=True,
    )
    assert done.stdout.decode() == word


def test_one_run_is_repeated_from_its_record():
    options = [("like", "my runs/erm-1"), ("store", "again"), ("quiet", True), ("draws", None)]
    command = write_command("train", options=options, code=["methods/idea"])
    assert command == ("afield --code idea.py train --like 'my runs/erm-1' --store again --quiet")


def test_the_command_of_a_started_and_adapted_row_plans_its_runs(planned_by):
    settings = {"linear_probe.l2": 0.5, "t3a.keep": 5, "steps": 20}
    options = {"start": "linear_probe", "average": "wise", "adapt": "t3a", "trials": 1}
    runs = make_benchmark("spirals", "erm", settings=settings, **options).runs()
    for adapted in (True, False):
        own = [run for run in runs if bool(run.adaptation) == adapted and run.method == "erm"]
        own = [run for run in own if run.role in ("", "adapted")]
        (command,) = rows(own).values()
        assert {run.key for run in own} <= {run.key for run in planned_by(command)}, command
