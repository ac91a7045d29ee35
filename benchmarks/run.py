"""A whole run over a bare loop's time for its steps, in one run, on rotated_digits.

    python benchmarks/run.py

The run reads its data, trains, evaluates at a checkpoint every 2 % of the steps, and writes its
record and weights. The bare loop does as many steps after every checkpoint. The ratio of the sums
over all rounds is printed last (goal: at most 1.35); above it, that of a run which the second rule
reads as well.
"""

import tempfile
from dataclasses import replace

import torch
from bare import Stopwatch, asked, bare_steps

from afield.runs import run_setup, runner
from afield.runs.run import Run
from afield.runs.selection import RULES
from afield.runs.store import Store

ROUNDS = 5


def ratio(run: Run) -> float:
    """The seconds of whole runs over those of the bare loop."""
    bare = bare_steps(run)
    for _ in range(run.every):
        next(bare)
    ours, yardstick = Stopwatch(), Stopwatch()

    def take_turns(*_: object) -> None:
        ours.stop()
        yardstick.start()
        for _ in range(run.every):
            next(bare)
        yardstick.stop()
        ours.start()

    for _ in range(ROUNDS):
        run_setup._load.cache_clear()
        with tempfile.TemporaryDirectory() as folder:
            ours.start()
            runner.execute(run, Store(folder), watch=take_turns)
            ours.stop()
    print(f"bare loop  {yardstick.seconds / ROUNDS:.2f} s")
    print(f"whole run  {ours.seconds / ROUNDS:.2f} s")
    return ours.seconds / yardstick.seconds


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    run = asked()
    print(f"{run.steps} steps, a checkpoint every {run.every}, {ROUNDS} rounds")
    print(f"read for all rules: ratio {ratio(replace(run, rules=tuple(RULES))):.3f}")
    print(f"read for the default rules, which need no twins:\nratio      {ratio(run):.3f}")


if __name__ == "__main__":
    main()
