"""SAGM: ERM as its limit."""

import copy

import torch

from afield.training.methods.erm import ERM
from afield.training.methods.sagm import SAGM
from tests.training.methods.reference import theta


def test_without_an_offset_it_is_erm(model, task, stream):
    methods = SAGM(rho=0.0, alpha=0.0), ERM()
    ours, plain = (method.setup(copy.deepcopy(model), task) for method in methods)
    for _ in range(3):
        batches = next(stream)
        logs = [method.update(x, batches) for method, x in zip(methods, (ours, plain), strict=True)]
        assert logs[0]["loss"] == logs[0]["moved loss"] == logs[1]["loss"]
    assert torch.equal(theta(ours.model), theta(plain.model))
