"""Exported records, read as DomainBed reads them: its three selection methods agree with ours."""

import json
import math
import resource
import signal
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from afield import registry
from afield.data.lookup import find_dataset
from afield.errors import SpecError
from afield.reporting.domainbed import export_domainbed
from afield.runs.record import Record
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.selection import RULES
from afield.runs.store import Store
from afield.seeds import derive_seed
from afield.training.scores import Checkpoint, Score, Scores
from tests.protocols import leave_one_out

DOMAINS = ("art", "photo", "sketch", "cartoon")
STEPS = (2, 4, 6)


def lines(folder: Path) -> list[dict]:
    """All lines, with the last character of each cut off before it is parsed, as DomainBed does."""
    result = []
    for file in sorted(folder.glob("*/results.jsonl")):
        with file.open() as opened:
            result += [json.loads(line[:-1]) for line in opened]
    return result


def hand_made(method: str, *unseen: str, trial: int = 0, draw: int = 0, sparse=False) -> Record:
    """A record with random accuracies; sparse, it lacks what the sources need not have had read."""
    generator = np.random.default_rng(derive_seed(method, unseen, trial, draw))

    def score() -> Score:
        return Score(generator.random(), generator.random(), generator.random(), 10)

    checkpoints = tuple(
        Checkpoint(
            step,
            {
                name: Scores(main=None if sparse and name not in unseen else score(), probe=score())
                for name in DOMAINS
            },
            {"loss": generator.random()},
        )
        for step in STEPS
    )
    run = Run(
        dataset="things",
        method=method,
        sources=tuple(name for name in DOMAINS if name not in unseen),
        trial=trial,
        draw=draw,
        steps=STEPS[-1],
        every=STEPS[0],
    )
    return Record(run, checkpoints, 12.0, {}, "cpu")


def sweep() -> list[Record]:
    left_out = [*((name,) for name in DOMAINS), *combinations(DOMAINS, 2)]
    return [
        hand_made(method, *unseen, trial=trial, draw=draw)
        for method in ("erm", "vrex")
        for trial in range(2)
        for draw in range(3)
        for unseen in left_out
    ]


def training_domain_validation(group: list[dict], env: int) -> tuple[float, float] | None:
    candidates = [
        (np.mean([line[f"env{i}_out_acc"] for i in range(envs(line)) if i != env]), line)
        for line in group
        if len(line["args"]["test_envs"]) == 1
    ]
    if not candidates:
        return None
    value, line = max(candidates, key=lambda candidate: candidate[0])
    return value, line[f"env{env}_in_acc"]


def leave_one_domain_out(group: list[dict], env: int) -> tuple[float, float] | None:
    candidates = []
    for line in (line for line in group if line["args"]["test_envs"] == [env]):
        result = {
            other: twin[f"env{other}_in_acc"]
            for twin in group
            if twin["step"] == line["step"] and len(twin["args"]["test_envs"]) == 2
            for other in set(twin["args"]["test_envs"]) - {env}
        }
        if len(result) == envs(line) - 1:
            candidates.append((np.mean(list(result.values())), line[f"env{env}_in_acc"]))
    return max(candidates, key=lambda candidate: candidate[0], default=None)


def oracle(group: list[dict], env: int) -> tuple[float, float] | None:
    alone = [line for line in group if len(line["args"]["test_envs"]) == 1]
    if not alone:
        return None
    last = max(alone, key=lambda line: line["step"])
    return last[f"env{env}_out_acc"], last[f"env{env}_in_acc"]


DOMAINBEDS = {
    "sources": training_domain_validation,
    "left-out-source": leave_one_domain_out,
    "target": oracle,
}


def envs(line: dict) -> int:
    """How many envs there are: as many as have an out-accuracy, counted from 0."""
    count = 0
    while f"env{count}_out_acc" in line:
        count += 1
    return count


def domainbeds_accuracy(
    result: list[dict], rule: str, *, algorithm: str, trial: int, env: int
) -> float | None:
    """DomainBed's number: the best of all draws of one (trial, algorithm, test env)."""
    group = [
        line
        for line in result
        if (line["args"]["algorithm"], line["args"]["trial_seed"]) == (algorithm, trial)
        and env in line["args"]["test_envs"]
    ]
    draws = {line["args"]["hparams_seed"] for line in group}
    runs = [
        DOMAINBEDS[rule]([line for line in group if line["args"]["hparams_seed"] == draw], env)
        for draw in sorted(draws)
    ]
    return max((run for run in runs if run), key=lambda run: run[0], default=(None, None))[1]


def ours(records: list[Record], rule: str, *, method: str, trial: int, target: str) -> float | None:
    chosen = [r for r in records if (r.run.method, r.run.trial) == (method, trial)]
    pick = RULES[rule].pick(chosen, target)
    return pick.accuracy if pick else None


@pytest.mark.parametrize("rule", DOMAINBEDS)
def test_domainbeds_selection_picks_what_ours_picks(tmp_path, rule):
    records = sweep()
    export_domainbed(records, tmp_path)
    written = lines(tmp_path)
    for method, algorithm in (("erm", "ERM"), ("vrex", "VREx")):
        for trial in range(2):
            for env, target in enumerate(DOMAINS):
                theirs = domainbeds_accuracy(
                    written, rule, algorithm=algorithm, trial=trial, env=env
                )
                assert theirs == ours(records, rule, method=method, trial=trial, target=target)
                assert theirs is not None


def test_without_twins_neither_picks_by_the_left_out_source(tmp_path):
    records = [record for record in sweep() if len(record.unseen) == 1]
    export_domainbed(records, tmp_path)
    rule = "left-out-source"
    assert ours(records, rule, method="erm", trial=0, target="art") is None
    assert domainbeds_accuracy(lines(tmp_path), rule, algorithm="ERM", trial=0, env=0) is None


@pytest.mark.parametrize("rules", [("sources", "target"), ("sources", "left-out-source", "target")])
def test_real_runs_are_picked_alike_although_they_read_no_more_than_they_must(tmp_path, rules):
    dataset = find_dataset("spirals")
    settings = {"steps": 3, "every": 1}
    runs = leave_one_out(dataset, ["groupdro"], trials=1, rules=rules, settings=settings)
    store = Store(tmp_path / "runs")
    records = [execute(replace(run, given={}), store) for run in runs]
    export_domainbed(records, tmp_path / "out")
    written = lines(tmp_path / "out")
    for rule in DOMAINBEDS:
        for env, target in enumerate(dataset.domains):
            theirs = domainbeds_accuracy(written, rule, algorithm="GroupDRO", trial=0, env=env)
            assert theirs == ours(records, rule, method="groupdro", trial=0, target=target)
            assert (theirs is not None) == (rule in rules)


def test_every_record_has_a_folder_that_is_done_with_a_line_of_json_for_each_checkpoint(tmp_path):
    records = [hand_made("erm", "art"), hand_made("erm", "photo"), hand_made("vrex", "art")]
    folders = export_domainbed(records, tmp_path / "deep" / "out")
    assert len(set(folders)) == 3
    for folder in folders:
        assert folder.parent == tmp_path / "deep" / "out"
        assert {path.name for path in folder.iterdir()} == {"results.jsonl", "done"}
        text = (folder / "results.jsonl").read_text()
        assert text.endswith("}\n")
        assert text.count("\n") == len(STEPS)
        assert [json.loads(line)["step"] for line in text.splitlines()] == list(STEPS)


def test_a_second_export_takes_the_place_of_the_first(tmp_path):
    export_domainbed([hand_made("erm", "art")], tmp_path)
    before = lines(tmp_path)
    with pytest.raises(SpecError, match="exists already"):
        export_domainbed([hand_made("erm", "art")], tmp_path)
    export_domainbed([hand_made("erm", "art")], tmp_path, overwrite=True)
    assert lines(tmp_path) == before


def test_an_export_to_a_full_disk_leaves_nothing(tmp_path):
    records = [hand_made("erm", domain) for domain in ("art", "photo", "sketch")]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = len((export_domainbed(records[:1], tmp_path / "one")[0] / "results.jsonl").read_bytes())
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    long = replace(records[2], run=replace(records[2].run, given={}, params={"x": "long" * size}))
    try:
        with pytest.raises(SpecError, match="cannot be written"):
            export_domainbed([*records[:2], long], tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_line_says_what_was_asked(tmp_path):
    export_domainbed([hand_made("erm", "photo", trial=2, draw=1)], tmp_path)
    for line in lines(tmp_path):
        args = line["args"]
        assert (args["algorithm"], args["dataset"]) == ("ERM", "things")
        assert (args["trial_seed"], args["hparams_seed"]) == (2, 1)
        assert args["test_envs"] == [1]
        assert (args["steps"], args["checkpoint_freq"]) == (6, 2)
        assert line["hparams"]["batch_size"] == 16
        assert line["step_time"] == 2.0


def test_two_unseen_domains_are_two_test_envs_in_the_order_of_the_dataset(tmp_path):
    export_domainbed([hand_made("erm", "sketch", "art")], tmp_path)
    assert all(line["args"]["test_envs"] == [0, 2] for line in lines(tmp_path))


def test_a_line_has_the_accuracies_of_every_env(tmp_path):
    record = hand_made("erm", "photo")
    export_domainbed([record], tmp_path)
    for checkpoint, line in zip(record.checkpoints, lines(tmp_path), strict=True):
        result = {key: value for key, value in line.items() if key.endswith("_acc")}
        assert result == {
            f"env{i}_{split}_acc": checkpoint.score(name, part).accuracy
            for i, name in enumerate(DOMAINS)
            for split, part in (("in", "main"), ("out", "probe"))
        }
        assert line["loss"] == checkpoint.logs["loss"]


def test_what_was_not_read_is_not_a_number_and_not_left_out(tmp_path):
    export_domainbed([hand_made("erm", "photo", sparse=True)], tmp_path)
    for line in lines(tmp_path):
        assert envs(line) == len(DOMAINS)
        assert [i for i in range(4) if math.isnan(line[f"env{i}_in_acc"])] == [0, 2, 3]


def algorithms(folder: Path) -> set[str]:
    return {line["args"]["algorithm"] for line in lines(folder)}


@pytest.mark.parametrize(
    ("method", "algorithm"), [("erm", "ERM"), ("groupdro", "GroupDRO"), ("vrex", "VREx")]
)
def test_an_algorithm_has_the_name_of_its_class(tmp_path, method, algorithm):
    assert registry.find("methods", method).__name__ == algorithm
    # A setting that all records have in common does not rename it.
    plain = hand_made(method, "art")
    for number, run in enumerate((plain.run, replace(plain.run, given={"steps": 6}))):
        export_domainbed([replace(plain, run=run)], tmp_path / str(number))
        assert algorithms(tmp_path / str(number)) == {algorithm}


def test_rows_that_are_two_in_our_tables_are_two_algorithms(tmp_path):
    plain = hand_made("vrex", "art")
    runs = [replace(plain.run, average="ema"), replace(plain.run, lr=0.5, given={"lr": 0.5})]
    export_domainbed([plain, *(replace(plain, run=run) for run in runs)], tmp_path)
    assert algorithms(tmp_path) == {"VREx", "VREx + ema", "VREx lr=0.5"}


def test_a_dataset_may_be_given_a_name_that_domainbed_knows(tmp_path):
    export_domainbed([hand_made("erm", "art")], tmp_path, dataset="PACS")
    assert {line["args"]["dataset"] for line in lines(tmp_path)} == {"PACS"}


def test_unused_domains_are_no_envs(tmp_path):
    record = hand_made("erm", "sketch", "cartoon")
    run = replace(record.run, sources=("art",), tested=("sketch",), unused=("photo",))
    checkpoints = tuple(
        replace(each, scores={n: s for n, s in each.scores.items() if n != "photo"})
        for each in record.checkpoints
    )
    record = replace(record, run=replace(run, given={"domains": 1}), checkpoints=checkpoints)
    export_domainbed([record, hand_made("erm", "photo")], tmp_path)
    for line in lines(tmp_path):
        smaller = line["args"]["algorithm"] == "ERM domains=1"
        assert envs(line) == (3 if smaller else 4)
        assert line["args"]["test_envs"] == ([1, 2] if smaller else [1])
