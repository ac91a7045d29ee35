"""What is typed on a command line, in Python's terms."""

from collections.abc import Sequence

from afield.errors import SpecError

__all__ = ["parse_assignments"]


def parse_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Settings that were written as ``name=value``.

    >>> parse_assignments(["tau=1.5", "keep = full"])
    {'tau': '1.5', 'keep': 'full'}
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--set {pair}: write name=value")
        found[name.strip()] = value.strip()
    return found
