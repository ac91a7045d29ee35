"""Cases of tests with several parameters: every two values meet, not every three."""

from collections.abc import Sequence
from typing import Any


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
