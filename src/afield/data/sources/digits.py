"""The 1,797 handwritten digits of 8 × 8 pixels that are installed with scikit-learn."""

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 8


def read_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Images with values from 0 to 16, and their labels, as `load_digits` of scikit-learn has them.

    The file is read without importing scikit-learn, which would take longer than the first steps
    of a run.
    """
    spec = find_spec("sklearn")
    folders = (spec.submodule_search_locations if spec else None) or []
    path = next((Path(folder, "datasets/data/digits.csv.gz") for folder in folders), None)
    if path is None or not path.exists():  # another version of scikit-learn keeps it elsewhere
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = np.loadtxt(lines, delimiter=",")
    return rows[:, :-1].reshape(-1, SIDE, SIDE), rows[:, -1].astype(int)
