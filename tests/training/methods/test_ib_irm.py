import torch

from afield.training.methods.ib_irm import IBIRM
from afield.training.methods.irm import IRM
from tests.training.methods.references import loss_of, unequal


def test_without_a_bottleneck_it_is_irm(model, task, stream):
    batches, learner = unequal(next(stream)), IRM().setup(model, task)
    ours = loss_of(IBIRM(penalty=30.0, bottleneck=0.0), learner, batches)
    torch.testing.assert_close(ours, loss_of(IRM(penalty=30.0), learner, batches))


def test_the_optimizer_is_reset_at_the_end_of_either_warm_up(model, task, stream):
    method = IBIRM(warmup=0.02, bottleneck_warmup=0.04)
    learner, ages = method.setup(model, task), []
    for learner.step in range(6):
        method.update(learner, next(stream))
        ages.append({int(state["step"]) for state in learner.optimizer.state.values()})
    assert ages == [{1}, {2}, {1}, {2}, {1}, {2}]
