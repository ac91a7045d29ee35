"""A finished run to look at, made once."""

from pathlib import Path

import pytest
import torch

from afield.runs.finished import FinishedRun, reopen
from afield.studies.benchmarking import train


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("looked_at")
    record = train("spirals", "arith", target="turn30", store=store, settings={"steps": 60})
    return store / record.run.key


@pytest.fixture
def subject(folder: Path) -> FinishedRun:
    with torch.random.fork_rng():
        return reopen(folder)
