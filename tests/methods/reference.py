"""The linear problem on which the reference numbers were made, and its replay."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from afield.loading import Batch
from afield.method import Learner, Method, Task

REFERENCE = np.load(Path(__file__).parents[1] / "data" / "baseline_updates.npz")


def begun(method: Method) -> Learner:
    """The linear model at its start, in float64, with Adam at rate 0.05."""
    model = nn.Linear(*reversed(REFERENCE["W0"].shape)).double()
    model.load_state_dict({"weight": _tensor("W0"), "bias": _tensor("b0")})
    optimizer = partial(torch.optim.Adam, lr=0.05)
    return method.setup(model, Task(("a", "b", "c"), ("0", "1", "2"), 3, nn.Linear, optimizer))


def batches(update: int) -> list[Batch]:
    """The batches of one update, one a domain."""
    x, y = _tensor("X")[update], _tensor("Y")[update]
    return [Batch(x[d], y[d], torch.full_like(y[d], d)) for d in range(len(x))]


def expected(name: str, update: int, what: str) -> torch.Tensor:
    """What the reference has after so many updates."""
    return _tensor(f"f64/lr0.05/{name}/{what}{update}")


def _tensor(name: str) -> torch.Tensor:
    array = REFERENCE[name]
    return torch.from_numpy(array.astype(np.float64) if array.dtype.kind == "f" else array)
