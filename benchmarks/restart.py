"""Restart a bench whose runs are all in a synthetic store: read it, and write its report.

python benchmarks/restart.py build/speed/store-10000 --records 10000
"""

import argparse

from synthetic import planned_runs

from afield.reporting.page import write_report
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import run_benchmark


def main() -> None:
    """Do the missing runs: none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store")
    parser.add_argument("--records", type=int, default=10_000)
    args = parser.parse_args()
    runs = planned_runs(args.records, 6)
    outcomes = run_benchmark(
        make_benchmark("spirals", "erm"),
        plan=lambda _: runs,
        store=args.store,
        report=write_report,
    )
    print(f"{len(outcomes)} outcomes")


if __name__ == "__main__":
    main()
