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


@pytest.mark.parametrize("precision", ["fp8", "auto", "fp32", " "])
def test_a_precision_that_no_run_has_is_refused(precision):
    with pytest.raises(SpecError, match="precision="):
        Run("spirals", "erm", ("turn0",), precision=precision)
