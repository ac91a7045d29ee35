"""The compact form of records: the same records in a tenth of the memory."""

import json
import math
import sys
from dataclasses import fields, replace

import numpy as np

from afield.runs.record import Record
from afield.runs.run_files import RECORD, as_json, compact_record
from afield.runs.selection import RULES, selection_value, selection_values
from afield.runs.store import Store
from afield.training.scores import (
    Checkpoint,
    CompactCheckpoints,
    Confusion,
    Score,
    Scores,
    score_at,
)
from tests.stores import record

DETAILED = Score(
    0.5, 0.25, 1.0, 8, 0.1, 0.75, {"macro_f1": 0.5}, Confusion(2, (0, 3), (4, 4)), {"g": (1, 2)}
)


def detailed(position: int) -> Checkpoint:
    """A checkpoint with scores of all kinds."""
    scores = {
        "art": Scores(probe=Score(0.1 * position, 0.5, 2.0, 10)),
        "photo": Scores(probe=Score(0.3, 0.5, math.pi, 10), known=Score(0.3, 0.5, 0.1, 10)),
        "sketch": Scores(main=DETAILED if position == 2 else None, sample=Score(0.2, 0.1, 0.5, 64)),
    }
    return Checkpoint(10 * position, scores, {"loss": 0.1 * position}, deployed=position > 1)


def full_record() -> Record:
    whole = record("sketch", [0.4, 0.5])
    run = replace(whole.run, sources=("art", "photo"), params={"eta": 0.1})
    # Whichever counts a record has: none of them may be lost.
    numbers = [each for each in fields(Record) if each.default == 0]
    counts = {each.name: type(each.default)(n) for n, each in enumerate(numbers, 1)}
    checkpoints = tuple(map(detailed, range(4)))
    return replace(whole, run=run, checkpoints=checkpoints, class_names=("a",), **counts)


def test_a_compact_record_equals_the_record_that_was_written():
    for written in (full_record(), record("art", [0.1, 0.2, 0.3], exact=False)):
        compact = compact_record(as_json(RECORD, written))
        assert isinstance(compact.checkpoints, CompactCheckpoints)
        assert compact == written
        assert written == compact
        assert compact.checkpoints[-1] == written.checkpoints[-1]
        assert compact.checkpoints[1:3] == written.checkpoints[1:3]
        assert as_json(RECORD, replace(compact, checkpoints=tuple(compact.checkpoints))) == as_json(
            RECORD, written
        )
        for name in ("domains", "unseen", "tests", "candidates", "steps", "problem"):
            assert getattr(compact, name) == getattr(written, name), name


def test_rules_pick_the_same_from_compact_records():
    whole = [record(target, [0.4, 0.9, 0.5]) for target in ("art", "photo", "sketch")]
    # With a domain to validate on: sketch.
    held_out = record("art", [0.5, 0.6], draw=1)
    run = replace(held_out.run, tested=("art",), sources=("photo",))
    whole.append(replace(held_out, run=run))
    compact = [compact_record(as_json(RECORD, each)) for each in whole]
    for name, rule in RULES.items():
        for target in ("art", "photo", "sketch"):
            assert rule.pick(compact, target) == rule.pick(whole, target), (name, target)
    for each in compact:
        assert selection_values(each) == [selection_value(c, each.run) for c in each.candidates]


def test_an_infinite_loss_is_kept():
    content = as_json(RECORD, full_record()).replace(b"3.141592653589793", b"Infinity")
    compact = compact_record(content)
    assert isinstance(compact.checkpoints, CompactCheckpoints)
    assert compact.checkpoints[0].score("photo", "probe").loss == math.inf


def test_the_means_of_compact_records_are_those_of_the_training_loop():
    values = np.random.default_rng(0).random((5, 20))
    names = [f"domain{number}" for number in range(5)]
    checkpoints = tuple(
        Checkpoint(
            step,
            {n: Scores(probe=Score(v, v, 10 * v, 9)) for n, v in zip(names, of_step, strict=True)},
            {},
        )
        for step, of_step in enumerate(values.T.tolist())
    )
    run = replace(full_record().run, sources=tuple(names))
    for metric in ("", "balanced_accuracy", "nll"):
        whole = replace(full_record(), run=replace(run, metric=metric), checkpoints=checkpoints)
        compact = compact_record(as_json(RECORD, whole))
        assert selection_values(compact) == [selection_value(c, whole.run) for c in checkpoints]
        # The second time, the values are those that were kept.
        assert selection_values(compact) == selection_values(whole)


def test_a_score_is_found_by_the_number_of_its_checkpoint():
    compact = compact_record(as_json(RECORD, full_record())).checkpoints
    for number in (-4, -1, 0, 2, 3):
        for domain, part in (("art", "probe"), ("sketch", "main"), ("sketch", "sample")):
            expected = compact[number].score(domain, part)
            assert score_at(compact, number, domain, part) == expected
            assert score_at(tuple(compact), number, domain, part) == expected
    assert score_at(compact, 2, "sketch", "main") == DETAILED
    assert score_at(compact, 1, "sketch", "main") is None
    assert score_at(compact, 1, "absent", "main") is None


def test_whatever_is_unusual_is_left_to_the_validation_of_records(tmp_path):
    content = json.loads(as_json(RECORD, full_record()))
    for place, value in (
        (("checkpoints", 0, "scores", "art", "probe", "loss"), math.nan),
        (("checkpoints", 0, "scores", "art", "probe", "size"), 1.5),
        (("checkpoints", 0, "scores", "art", "probe", "size"), 1e300),
        (("checkpoints", 0, "scores", "art", "probe", "size"), math.inf),
        (("checkpoints", 0, "scores", "art", "probe", "accuracy"), "good"),
        (("checkpoints", 0, "scores", "art", "probe"), None),
        (("checkpoints", 0, "step"), "ten"),
        (("checkpoints", 0, "deployed"), "perhaps"),
        (("checkpoints", 0, "logs", "loss"), None),
        (("checkpoints", 1, "scores"), {}),
        (("checkpoints",), []),
        (("seconds",), "long"),
        (("run", "params", "eta"), 2**70),
        (("run", "steps"), 0),
    ):
        changed = json.loads(json.dumps(content))
        parent = changed
        for name in place[:-1]:
            parent = parent[name]
        parent[place[-1]] = value
        assert compact_record(json.dumps(changed).encode()) is None, place
    assert compact_record(b"[]") is None
    assert compact_record(b"{") is None


def test_an_impossible_accuracy_is_found_in_a_compact_record():
    content = as_json(RECORD, record("art", [0.25, 0.5])).replace(b"0.25", b"1.25")
    compact = compact_record(content)
    assert isinstance(compact.checkpoints, CompactCheckpoints)
    assert compact.problem == "has an impossible accuracy on 'art' at step 10"


def test_a_store_reads_each_record_once_and_again_when_its_file_changes(tmp_path, monkeypatch):
    store, first = Store(tmp_path), record("art", [0.25, 0.5])
    with store.claim(first.run):
        store.put(first, {})
    reads = []
    compact = compact_record
    monkeypatch.setattr(
        "afield.runs.run_files.compact_record", lambda content: reads.append(1) or compact(content)
    )
    assert list(store) == [first] == [store.get(first.run)] == store.known([first.run])
    assert len(reads) == 1
    second = record("art", [0.25, 0.75, 0.5])
    store.put(replace(second, run=first.run), {})
    assert store.get(first.run).checkpoints == second.checkpoints
    assert len(reads) == 2
    (store.folder(first.run) / "record.json").unlink()
    assert store.get(first.run) is None


def test_compact_checkpoints_take_a_tenth_of_the_memory():
    whole = record("art", np.linspace(0.1, 0.9, 50), exact=False)
    arrays = sys.getsizeof(compact_record(as_json(RECORD, whole)).checkpoints.scores)
    objects = sum(
        sys.getsizeof(score) + 3 * sys.getsizeof(score.accuracy)
        for checkpoint in whole.checkpoints
        for scores in checkpoint.scores.values()
        for score in (scores.main, scores.probe, scores.sample)
        if score
    )
    assert arrays < objects / 3
