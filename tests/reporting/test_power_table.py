"""The power of benchmarks on a terminal."""

import io

from rich.console import Console

from afield.reporting.formats import as_power_table
from tests.stores import HOSTILE, benchmark_records, noisy


def printed(records, *options):
    console = Console(file=io.StringIO(), width=80)
    for part in as_power_table(records, *options):
        console.print(part)
    return console.file.getvalue()


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
BAD = benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad")


def test_every_comparison_has_a_row_and_every_dataset_a_sentence():
    other = benchmark_records(noisy(0.5, 3, 3), dataset="others")
    rival = benchmark_records(noisy(0.6, 3, 3, seed=9), dataset="others", method="dann")
    text = printed([*ERM, *GOOD, *BAD, *other, *rival])
    rows = [line.split() for line in text.splitlines() if " erm " in line]
    assert [row[:2] for row in rows] == [["good", "erm"], ["bad", "erm"], ["dann", "erm"]]
    assert all(
        float(row[2].replace("−", "-")) * sign > 5
        for row, sign in zip(rows, (1, -1, 1), strict=False)
    )
    assert text.count("With 3 trials") == 2
    assert "things, training-domain validation" in text
    assert "others, training-domain validation" in text


def test_rules_and_the_difference_can_be_chosen():
    text = printed([*ERM, *GOOD], ["sources", "target"], 0.025)
    assert text.count("With 3 trials") == 2
    assert text.count("2.5 points") == 4
    assert "1 point" not in printed([*ERM, *GOOD], ["sources"], 0.5)


def test_no_name_acts_on_the_terminal():
    text = printed([*ERM, *benchmark_records(noisy(0.8, 3, 3), method=HOSTILE[2])])
    assert "\u202e" not in text
    assert "\\u202e" in text.replace("\n", "").replace(" ", "")
