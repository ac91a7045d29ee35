"""Many short runs: what a second worker brings, and what Ray costs.

    python benchmarks/sweep.py [--runs 24] [--steps 800]

Every run has one thread. Wall time of the whole sweep, with workers and cluster started before.
Two workers on two idle cores should be at least 1.7 times as fast as one; Ray with two CPUs should
take at most 1.25 times as long as two local workers. The ratios are printed last.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence

from afield import Local, Ray, Run, Store
from afield.runs import complete
from afield.runs.pool import Pool
from afield.runs.record import Record
from afield.studies.planning import plan_run


def asked(count: int, steps: int) -> list[Run]:
    """So many runs, all different."""
    settings = {"steps": steps, "every": steps // 5, "augment": "none"}
    return [
        plan_run("rotated_digits", "erm", target="0deg", trial=trial, settings=settings)
        for trial in range(count)
    ]


def seconds(pool: Pool, runs: Sequence[Run]) -> tuple[float, float]:
    """The time of a sweep, and of a run in it."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        found = list(complete(runs, Store(folder), pool=pool, threads=1))
        took = time.perf_counter() - started
    records = [outcome for outcome in found if isinstance(outcome, Record)]
    if len(records) < len(runs):
        raise SystemExit(f"only {len(records)} of {len(runs)} runs came to an end")
    return took, sum(record.seconds for record in records) / len(records)


def main() -> None:
    """Measure one worker, two, and Ray, in one go."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=800)
    options = parser.parse_args()
    runs = asked(options.runs, options.steps)
    ray = Ray()
    # Ray's start is not a part of the comparison: a cluster is there before its work.
    seconds(ray, asked(2, 5))
    took = {}
    for name, pool in (("Local(1)", Local(1)), ("Local(2)", Local(2)), ("Ray, 2 CPUs", ray)):
        took[name], of_a_run = seconds(pool, runs)
        print(f"{name:12} {took[name]:7.1f} s for {len(runs)} runs of {of_a_run:.1f} s", flush=True)
    print(f"Local(1) over Local(2)  {took['Local(1)'] / took['Local(2)']:.2f}")
    print(f"Ray over Local(2)       {took['Ray, 2 CPUs'] / took['Local(2)']:.2f}")


if __name__ == "__main__":
    main()
