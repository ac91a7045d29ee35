"""Records of benchmarks that were never run, with curves, for tests of what is made of records."""

from dataclasses import dataclass, replace

import numpy as np

from afield.registry import CODE_FORM
from afield.runs.record import Record
from afield.runs.run import Run
from afield.training.scores import Checkpoint, Score, Scores

DOMAINS = ("art", "photo", "sketch")
HOSTILE = (
    "<script>alert(1)</script>",
    "\"quote' onload=alert(2)",
    "rtl\u202egpj.exe",
    "</script>&amp;\u2028",
)


def score(accuracy: float, size: int = 100) -> Score:
    return Score(accuracy, accuracy, 1.0, size)


def record(
    target: str,
    unseen,
    sources=None,
    *,
    domains=DOMAINS,
    exact: bool = True,
    sample_size: int = 64,
    seconds: float = 1.0,
    device: str = "cpu, 1 thread(s)",
    **fields,
) -> Record:
    """A run with an accuracy on its target, and on its sources, at each checkpoint.

    Unless `exact`, the whole main part was read where it is needed only: best on sources, and last.
    """
    unseen = list(unseen)
    sources = list(sources or np.linspace(0.5, 0.9, len(unseen)))
    best = int(np.argmax(sources))
    checkpoints = []
    for place, (away, home) in enumerate(zip(unseen, sources, strict=True)):
        last = place == len(unseen) - 1
        whole = exact or place == best or last
        scores = {
            name: Scores(
                main=score(away) if whole else None,
                probe=score(away) if last else None,
                sample=None if exact else score(away, sample_size),
            )
            if name == target
            else Scores(probe=score(home))
            for name in domains
        }
        checkpoints.append(Checkpoint(10 * (place + 1), scores, {}))
    run = Run(
        **{
            "dataset": "things",
            "method": "erm",
            "sources": tuple(name for name in domains if name != target),
            "steps": 10 * len(unseen),
            "every": 10,
            **fields,
        }
    )
    versions = {"afield": "0.1.0", "torch": "2.0", "code": CODE_FORM + run.method}
    return Record(run, tuple(checkpoints), seconds, versions, device)


def benchmark_records(rows, *, domains=DOMAINS, **fields) -> list[Record]:
    """One method: a row of accuracies for each trial, a column for each domain; two checkpoints."""
    return [
        record(target, [0.4, accuracy], domains=domains, trial=trial, **fields)
        for trial, row in enumerate(rows)
        for target, accuracy in zip(domains, row, strict=True)
    ]


def trusted(records, error: float) -> list[Record]:
    """The same records, with how far confidence can be trusted on what was unseen."""

    def read(own: Score | None) -> Score | None:
        return own and replace(own, calibration_error=error, accuracy_at_90=1 - error)

    def checked(checkpoint: Checkpoint) -> Checkpoint:
        own = {
            name: replace(each, main=read(each.main)) for name, each in checkpoint.scores.items()
        }
        return replace(checkpoint, scores=own)

    return [
        replace(own, checkpoints=tuple(checked(each) for each in own.checkpoints))
        for own in records
    ]


def noisy(mean: float, trials: int, domains: int, *, seed: int = 0, spread: float = 0.02):
    generator = np.random.default_rng(seed)
    return (mean + spread * generator.normal(size=(trials, domains))).clip(0, 1)


def cells(grid):
    """Accuracies by trial and domain, of an array with these axes."""
    return {(trial, f"d{domain}"): float(value) for (trial, domain), value in np.ndenumerate(grid)}


def large(count: int, *, domains=DOMAINS, checkpoints: int = 50) -> list[Record]:
    """So many records of ten methods, with draws and long curves."""
    generator = np.random.default_rng(0)
    methods = ["erm", *(f"method{n}" for n in range(9))]
    result: list[Record] = []
    draw = 0
    while len(result) < count:
        for trial in range(3):
            for method in methods:
                for target in domains:
                    rise = 1 - np.exp(-np.arange(1, checkpoints + 1) / 10)
                    away = (0.8 * rise + 0.05 * generator.random(checkpoints)).clip(0, 1)
                    home = (0.9 * rise + 0.05 * generator.random(checkpoints)).clip(0, 1)
                    result.append(
                        record(
                            target,
                            away.round(4).tolist(),
                            home.round(4).tolist(),
                            domains=domains,
                            exact=False,
                            method=method,
                            trial=trial,
                            draw=draw,
                            lr=float(generator.uniform(1e-4, 1e-2)),
                            seconds=float(generator.uniform(1, 2)),
                            params={"strength": float(generator.uniform(0, 1))},
                        )
                    )
        draw += 1
    return result[:count]


def held_out(method: str, accuracies, *, trial: int = 0, **fields) -> Record:
    """A run tested on d0, d1, …, with these accuracies; two domains validate, three are sources."""
    tested = tuple(f"d{n}" for n in range(len(accuracies)))
    scores = {
        name: Scores(main=score(a), probe=score(a))
        for name, a in zip(tested, accuracies, strict=True)
    }
    scores |= {name: Scores(main=score(0.7), probe=score(0.7)) for name in ("v0", "v1")}
    scores |= {name: Scores(probe=score(0.9)) for name in ("s0", "s1", "s2")}
    run = Run(
        dataset="many",
        method=method,
        sources=("s0", "s1", "s2"),
        tested=tested,
        trial=trial,
        rules=("validation", "target"),
        given={"domains": 3},
        **fields,
    )
    return Record(run, (Checkpoint(10, scores, {}),), 1.0, {}, "cpu, 1 thread(s)")


def kept(store, records) -> None:
    """Write records to a store, without weights."""
    for each in records:
        with store.claim(each.run):
            store.put(each, {})


__all__ = [
    "DOMAINS",
    "HOSTILE",
    "benchmark_records",
    "held_out",
    "kept",
    "large",
    "noisy",
    "record",
    "score",
]


@dataclass(frozen=True)
class Weighed(Record):
    memory: int = 0


def weighed(of: Record, memory: int) -> Record:
    plain = {name: value for name, value in vars(of).items() if name != "memory"}
    kind = Record if "memory" in vars(of) else Weighed
    return kind(**plain, memory=memory)
