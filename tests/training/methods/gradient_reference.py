"""Reference numbers of CrossGrad and LabelGrad, and the small problem they belong to."""

from functools import partial

import numpy as np
import torch
from torch import nn

from afield.data.samples import Batch
from afield.training.learner import Task
from tests.files import GOLDEN

REFERENCE = np.load(GOLDEN / "crossgrad.npz")
CASES = {
    "paper_eps1_noclip_a0.5": 0.0,
    "paper_eps2_0.5_noclip_a0.25": 0.0,
    "code_eps10_clip0.1_a0.5": 0.1,
    "clip_active_eps10_clip0.02_a0.5": 0.02,
}


def number(name: str) -> torch.Tensor:
    return torch.from_numpy(REFERENCE[name])


def linear(outputs: int) -> nn.Linear:
    return nn.Linear(5, outputs).double()


def task_of(outputs: int, domains: int, network=linear, rate: float = 0.1) -> Task:
    optimizer = partial(torch.optim.SGD, lr=rate)
    names = tuple(f"d{i}" for i in range(domains)), tuple(f"c{i}" for i in range(outputs))
    return Task(*names, 3, network, optimizer, shape=(5,))


def batch() -> Batch:
    domain = number("D")
    return Batch(number("X"), number("Y"), domain, domain)
