"""Compare two methods in Python and print the table.

    python examples/compare.py

Takes seconds: spirals is tiny. Put "rotated_digits", or the path of your own data, in its place.
"""

import afield


def main() -> None:
    """Bench, tabulate, print."""
    records = afield.bench("spirals", ["erm", "vrex"], trials=2, store="runs")
    table = afield.tabulate(records, rules=["sources"])
    print(table.pivot(index="method", columns="domain", values="accuracy").round(3))


if __name__ == "__main__":
    main()
