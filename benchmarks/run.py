"""A whole run over a bare loop's time for its steps, in one run, on rotated_digits.

    python benchmarks/run.py

The run reads its data, trains, evaluates at a checkpoint every 2 % of the steps, and writes its
record and weights. The two take turns; the ratio of the medians is printed last (goal: at most
1.35).
"""

import tempfile
import time
from statistics import median

import torch
from bare import asked, bare_seconds, stream_of

from afield import runner
from afield.method import pool
from afield.record import Run, Store

ROUNDS = 9


def run_seconds(run: Run) -> float:
    """Seconds from the start to the record, nothing kept in memory from the run before."""
    runner._loaded.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        runner.execute(run, Store(folder))
        return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    run = asked()
    stream = stream_of(run)
    batches = [pool(next(stream)) for _ in range(run.steps)]
    bare_seconds(run, batches)
    pairs = [(bare_seconds(run, batches), run_seconds(run)) for _ in range(ROUNDS)]
    bare, ours = (median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"{run.steps} steps, a checkpoint every {run.every}")
    print(f"bare loop  {bare:.2f} s")
    print(f"whole run  {ours:.2f} s")
    print(f"ratio      {ours / bare:.3f}")


if __name__ == "__main__":
    main()
