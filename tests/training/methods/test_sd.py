import torch

from afield.training.methods.erm import ERM
from afield.training.methods.sd import SD
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    logs = {"loss": "risk", "penalty": "squared logits"}
    replay("sd", SD(penalty=1.0), logs=logs)


def test_without_a_penalty_it_is_erm_to_the_last_bit(model, task, stream):
    batches, learner = unequal(next(stream)), ERM().setup(model, task)
    assert torch.equal(loss_of(SD(penalty=0.0), learner, batches), loss_of(ERM(), learner, batches))
