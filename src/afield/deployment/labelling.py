"""Which samples to label: a random sample, or one that narrows the interval of the accuracy.

    random     n samples at random: the interval of Wilson
    narrow     samples in strata of confidence, with n_h ∝ N_h √(p_h (1 − p_h)) in stratum h
               (Neyman, 1934), where p_h is the mean confidence; a sample stands for N_h / n_h

Both are random within their strata, so the accuracy is estimated without bias whatever the
confidences are; they only decide how narrow the interval is. The samples are written as a CSV file
with an empty column for the label, which `afield evaluate` takes.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from afield.data.frames import is_table, read_frame
from afield.deployment.labelled import STRATUM, WEIGHT, split_row
from afield.errors import SpecError
from afield.files import atomic_write, check_output, guard_formula

if TYPE_CHECKING:
    import pandas as pd

# Numbers of labels for which the width of the interval is shown.
COUNTS = (20, 50, 200)
STRATA = 4
# Samples of every stratum, so that its accuracy is known at all.
LEAST = 5
# Confidences are not trusted to be nearer to 0 or 1.
MARGIN = 0.05
HOWS = ("random", "narrow")


@dataclass(frozen=True)
class Labels:
    """What a number of labels buys: half the width of the 95 % interval, for each way to draw."""

    count: int
    random: float
    narrow: float


def label_widths(confidences: Sequence[float], accuracy: float | None = None) -> list[Labels]:
    """What 20, 50 and 200 labels would buy; `accuracy` is the estimated one, if there is any."""
    values = np.asarray(confidences, dtype=np.float64)
    guess = float(np.clip(values.mean() if accuracy is None else accuracy, MARGIN, 1 - MARGIN))
    return [
        Labels(count, _half(guess * (1 - guess) / count), _half(_variance(values, count)))
        for count in COUNTS
        if count < len(values)
    ]


def _half(variance: float) -> float:
    return 1.96 * math.sqrt(variance)


def _variance(values: NDArray[np.float64], count: int) -> float:
    """The variance of the accuracy from this many labels in strata."""
    strata = strata_of(values, count)
    wanted = allocate(values, strata, count)
    total = 0.0
    for stratum, number in enumerate(wanted):
        rows = values[strata == stratum]
        share = float(np.clip(rows.mean(), MARGIN, 1 - MARGIN))
        total += (len(rows) / len(values)) ** 2 * share * (1 - share) / number
    return total


def strata_of(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """The stratum of every sample: equally many samples by their confidence."""
    number = max(1, min(STRATA, count // (2 * LEAST)))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return np.asarray(ranks * number // len(values), dtype=np.int64)


def allocate(
    values: NDArray[np.float64], strata: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The number of labels of every stratum: at least `LEAST`, otherwise Neyman's."""
    sizes = np.bincount(strata)
    shares = np.clip(np.bincount(strata, values) / sizes, MARGIN, 1 - MARGIN)
    weights = sizes * np.sqrt(shares * (1 - shares))
    least = np.minimum(min(LEAST, count // len(sizes)), sizes)
    wanted = least + (count - least.sum()) * weights / weights.sum()
    numbers = np.minimum(np.floor(wanted).astype(np.int64), sizes)
    # What rounding leaves goes to the largest remainders that still have samples.
    while numbers.sum() < min(count, sizes.sum()):
        open_ = np.where(numbers < sizes, wanted - numbers, -np.inf)
        numbers[int(open_.argmax())] += 1
    return numbers


@dataclass(frozen=True)
class LabelSample:
    """The rows to label, with the weight and the stratum of each; both are empty at random."""

    rows: tuple[int, ...]
    weights: tuple[float, ...] = ()
    strata: tuple[int, ...] = ()


def check_label_file(out: Path, how: str, *, overwrite: bool) -> None:
    """Raise before any work if the samples to label cannot be drawn so, or written there."""
    if how not in HOWS:
        raise SpecError(f"--how {how}: draw the samples to label {' or '.join(HOWS)}")
    if out.suffix != ".csv":
        raise SpecError(f"{out}: the samples to label are written as CSV; use the suffix .csv")
    check_output(out, overwrite=overwrite)


def choose_samples(
    confidences: Sequence[float], count: int, how: str, seed: int = 0
) -> LabelSample:
    """Draw the samples to label, in the order in which they were given."""
    values = np.asarray(confidences, dtype=np.float64)
    if how not in HOWS:
        raise SpecError(f"how={how!r}: draw the samples to label {' or '.join(HOWS)}")
    if count < 1:
        raise SpecError(f"labels={count}: must be at least 1")
    count = min(count, len(values))
    generator = np.random.default_rng(seed)
    if how == "random" or count < 2 * LEAST:
        rows = sorted(generator.choice(len(values), size=count, replace=False).tolist())
        return LabelSample(tuple(rows))
    strata = strata_of(values, count)
    numbers = allocate(values, strata, count)
    drawn: list[tuple[int, float, int]] = []
    for stratum, number in enumerate(numbers.tolist()):
        inside = np.flatnonzero(strata == stratum)
        chosen = generator.choice(inside, size=number, replace=False).tolist()
        drawn += [(row, len(inside) / number, stratum) for row in chosen]
    rows_, weights, of_rows = zip(*sorted(drawn), strict=True)
    return LabelSample(rows_, weights, of_rows)


def write_labels(out: Path, names: Sequence[str], sample: LabelSample) -> None:
    """Write the samples to label as CSV, with an empty column for the label.

    `names` are the files, or rows of files such as ``new.npz[3]``; they become relative to the CSV
    file where they lie beside it. Of tables, the rows are written too, for the person who labels.
    """
    import pandas as pd

    chosen = [names[row] for row in sample.rows]
    frame = pd.DataFrame({"file": [_relative(name, out) for name in chosen], "label": ""})
    rows = _rows_of_tables(chosen)
    if rows is not None:
        rows = rows.drop(columns=[name for name in frame.columns if name in rows.columns])
        frame = pd.concat([frame, rows.reset_index(drop=True)], axis=1)
    if sample.weights:
        frame[WEIGHT], frame[STRATUM] = sample.weights, sample.strata
    safe = frame.map(lambda cell: guard_formula(cell) if isinstance(cell, str) else cell)
    try:
        with atomic_write(out) as temporary:
            safe.to_csv(temporary, index=False)
    except OSError as error:
        raise SpecError(f"{out}: cannot be written ({error.strerror}); give another file") from None


def _rows_of_tables(names: Sequence[str]) -> "pd.DataFrame | None":
    """The rows that are named, if all of them are rows of tables."""
    import pandas as pd

    found = [split_row(name) for name in names]
    if not all(file is not None and is_table(file) for file, _ in found):
        return None
    frames = {file: read_frame(file) for file in {file for file, _ in found} if file}
    rows = [frames[file].iloc[[int(row)]] for file, row in found if file]
    return pd.concat(rows, ignore_index=True)


def _relative(name: str, out: Path) -> str:
    """The path of a file as the CSV file names it."""
    absolute = os.path.abspath(name)  # noqa: PTH100  links stay what they are
    parent = os.path.abspath(out.parent)  # noqa: PTH100
    inside = os.path.commonpath([absolute, parent]) == parent
    return os.path.relpath(absolute, parent) if inside else absolute
