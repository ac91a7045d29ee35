"""What the tests of runs share."""

import pytest

from afield.runs.store import Store


@pytest.fixture
def store(tmp_path):
    """An empty store, in the folder of the test."""
    return Store(tmp_path)
