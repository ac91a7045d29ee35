"""What a run may ask for."""

import pytest

from afield.errors import SpecError
from afield.runs.run import Run


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("steps", 10**9),
        ("batch", 2**20),
        ("batch_total", 2**20),
        ("size", 4096),
        ("tokens", 2**14),
    ],
)
def test_the_largest_values_are_allowed_and_no_larger_ones(name, limit):
    assert getattr(Run("things", "erm", ("art",), **{name: limit}), name) == limit
    with pytest.raises(SpecError, match=f"must be at most {limit:,}"):
        Run("things", "erm", ("art",), **{name: limit + 1})
