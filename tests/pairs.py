"""Cases of tests with several parameters: every two values meet, not every three."""

from collections.abc import Sequence
from typing import Any

# Methods that need maps, and so a convolutional network.
OF_IMAGES = {"mixstyle", "efdmix", "arm"}


def small_problem(method: str) -> tuple[str, str, dict[str, Any]]:
    """A dataset that a method can train on within a second, a target, and settings."""
    if method in OF_IMAGES:
        return "rotated_digits", "0deg", {"limit": 4, "batch": 4}
    return "spirals", "turn0", {}


def every_pair(
    first: Sequence[Any], second: Sequence[Any], third: Sequence[Any]
) -> list[tuple[Any, Any, Any]]:
    """Triples in which any two values of two parameters come together at least once.

    The third sequence must not be longer than the others.
    """
    assert len(third) <= min(len(first), len(second))
    return [
        (a, b, third[(i + j) % len(third)])
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]
