"""Records of small benchmarks, and readers of the tables that are made of them."""

from dataclasses import replace

import pandas as pd

from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import Checkpoint, Score, Scores

DOMAINS = ("art", "photo", "sketch")


def score(accuracy: float) -> Score:
    return Score(accuracy, accuracy, 1.0, 10)


def checkpoint(target: str, accuracy: float, *, domains=DOMAINS, step: int = 6, on_sources=0.9):
    """A checkpoint that both simple rules can read; the target's probe part tells nothing new."""
    scores = {
        name: Scores(main=score(accuracy), probe=score(accuracy))
        if name == target
        else Scores(probe=score(on_sources))
        for name in domains
    }
    return Checkpoint(step, scores, {})


def record(target: str, accuracy: float, *, domains=DOMAINS, checkpoints=None, **fields) -> Record:
    run = Run(
        **{
            "dataset": "things",
            "method": "erm",
            "sources": tuple(name for name in domains if name != target),
            **fields,
        }
    )
    done = checkpoints or (checkpoint(target, accuracy, domains=domains),)
    return Record(run, tuple(done), 1.0, {}, "cpu")


def benchmark(accuracies, *, domains=DOMAINS, **fields) -> list[Record]:
    """Records of one method: a row of accuracies for each trial, a column for each domain."""
    return [
        record(target, accuracy, domains=domains, trial=trial, **fields)
        for trial, row in enumerate(accuracies)
        for target, accuracy in zip(domains, row, strict=True)
    ]


def numbers(frame: pd.DataFrame, method: str = "erm", rule: str = "sources") -> pd.DataFrame:
    chosen = frame[(frame["method"] == method) & (frame["rule"] == rule)]
    return chosen.set_index("domain")[["accuracy", "stderr", "trials"]]


def markdown_rows(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


MANY = tuple(f"w{i:02}" for i in range(26))
# The accuracy on all sources.
AT_HOME = 0.9


def held_out(accuracies: dict[str, float], **fields) -> Record:
    """One record that tests on the named domains; of the others the last two validate."""
    others = [name for name in MANY if name not in accuracies]
    scores = {name: Scores(probe=score(AT_HOME)) for name in others[:-2]}
    scores |= {name: Scores(main=score(0.6), probe=score(0.6)) for name in others[-2:]}
    scores |= {name: Scores(main=score(a), probe=score(a)) for name, a in accuracies.items()}
    run = Run(
        **{
            "dataset": "things",
            "method": "erm",
            "sources": tuple(others[:-2]),
            "tested": tuple(accuracies),
            **fields,
        }
    )
    done = Checkpoint(6, {name: scores[name] for name in MANY}, {})
    return Record(run, (done,), 1.0, {}, "cpu")


def trusting(error: float | None, covered: float | None, *, trials: int = 1, **fields):
    """Records of one method whose confidence was looked at, or (None) was not."""
    for i, row in enumerate(benchmark([[0.9, 0.5, 0.7]] * trials, **fields)):
        (target,) = row.unseen
        scores = dict(row.checkpoints[0].scores)
        if error is not None:
            # A little other for every domain and trial, the same on average.
            shift = (-0.02, 0.0, 0.02)[i % 3] + (0.01 if i // 3 % 2 else -0.01) * (trials > 1)
            main = replace(
                scores[target].main, calibration_error=error + shift, accuracy_at_90=covered + shift
            )
            scores[target] = replace(scores[target], main=main)
        yield replace(row, checkpoints=(replace(row.checkpoints[0], scores=scores),))


def measured(records: list[Record], **metrics: float) -> list[Record]:
    """The same records with further metrics; `loss` becomes the field of that name."""
    loss = metrics.pop("loss", 1.0)

    def changed(score):
        return score and replace(score, metrics=dict(metrics) or None, loss=loss)

    def of(checkpoint):
        scores = {
            name: Scores(main=changed(each.main), probe=changed(each.probe))
            for name, each in checkpoint.scores.items()
        }
        return replace(checkpoint, scores=scores)

    return [replace(r, checkpoints=tuple(map(of, r.checkpoints))) for r in records]


def with_groups(record: Record) -> Record:
    """The same record with two groups of slides on its target: 3 of 4 and 1 of 9 are right."""
    (target,) = record.unseen
    last = record.checkpoints[-1]
    main = replace(last.scores[target].main, groups={"s1": (3, 4), "s2": (1, 9)})
    scores = {**last.scores, target: replace(last.scores[target], main=main)}
    run = replace(record.run, group="slide")
    return replace(record, run=run, checkpoints=(replace(last, scores=scores),))
