"""Write digits whose color agrees with their class in 95 % of the samples, as ``.npz`` files.

    python docs/claims/minority_digits.py FOLDER      # minority.npz and minority_noisy.npz

The class is 1 for the digits 0 to 4 of scikit-learn (8 × 8 pixels). The color is one of two
channels: the index of the class, swapped in 5 % of the samples. The array `group` names the class
and whether the color agrees with it, so that two of the four groups are the minority pattern. In
``minority_noisy.npz``, 25 % of the classes are flipped first, and colors and groups follow the
flipped class. Three domains have different digits and the same shares: every digit comes 20 times,
and both shares hold exactly within the 20. No digit is in two domains.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

COPIES, SWAPPED_COPIES, DOMAINS = 20, 1, 3


def minority_digits(flipped_copies: int) -> dict[str, np.ndarray]:
    """The arrays X, y, domain and group; `flipped_copies` of the 20 have a flipped class."""
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    row = np.repeat(np.arange(len(images)), COPIES)
    copy = np.tile(np.arange(COPIES), len(images))
    y = (digits.target[row] < 5) ^ (copy < flipped_copies)
    # One copy of every digit has the other color. In every fourth digit it is a flipped one, so
    # that flips and swaps are independent.
    is_fourth = row % 4 == 0
    swapped = copy == np.where(is_fourth, 0, COPIES - 1)
    x = np.zeros((len(row), 2, 8, 8), np.uint8)
    x[np.arange(len(row)), (y ^ swapped).astype(int)] = images[row]
    domain = (np.random.default_rng(0).permutation(len(images)) % DOMAINS)[row]
    group = np.char.add(np.where(y, "0-4 ", "5-9 "), np.where(swapped, "minority", "majority"))
    return {
        "X": x,
        "y": np.where(y, "0-4", "5-9"),
        "domain": np.array([f"digits {number + 1}" for number in domain]),
        "group": group,
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "minority.npz", **minority_digits(0))
    np.savez_compressed(folder / "minority_noisy.npz", **minority_digits(COPIES // 4))
