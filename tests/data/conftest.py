"""What the tests of data share."""

import pytest


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A decode cache of this test alone, empty at first."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
