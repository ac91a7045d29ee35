"""What the tests of commands share."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def refusal(afield, tmp_path: Path) -> Callable[..., str]:
    """A function that types a command with a mistake, and returns the one line of the error."""

    def typed(*words: object) -> str:
        before = sorted(tmp_path.iterdir())
        code, out, err = afield(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert err.startswith("error: ")
        assert sorted(tmp_path.iterdir()) == before
        return err

    return typed
