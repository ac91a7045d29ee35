"""A finished run to look at, made once."""

from pathlib import Path

import pytest

from afield.runs.finished import FinishedRun
from afield.studies.benchmarking import train
from tests.diagnosis.diagnostics.runs import reopened


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("looked_at")
    record = train("spirals", "arith", target="turn30", store=store, settings={"steps": 60})
    return store / record.run.key


@pytest.fixture
def subject(folder: Path) -> FinishedRun:
    return reopened(folder)
