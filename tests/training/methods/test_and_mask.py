import torch

from afield.training.learner import Learner
from afield.training.method import Method
from afield.training.methods.and_mask import ANDMask
from tests.training.methods.reference import followed
from tests.training.methods.references import unequal


def step(method: Method, model, task, batches) -> Learner:
    learner = method.setup(model, task)
    method.update(learner, batches)
    return learner


def test_without_agreement_it_follows_the_mean_of_the_gradients(model, task, stream):
    batches = unequal(next(stream))
    learner = Learner(model, task)
    losses = [torch.nn.functional.cross_entropy(model(b.x), b.y) for b in batches]
    expected = torch.cat([g.flatten() for g in learner.gradients(sum(losses) / 3)])
    result = followed(step(ANDMask(agreement=0.0), model, task, batches).model)
    torch.testing.assert_close(result, expected)


def test_a_mask_needs_the_stated_agreement_and_a_gradient_of_zero_does_not_agree():
    gradients = torch.tensor([[1.0, 1.0, 2.0], [3.0, -1.0, 1.0], [0.5, 1.0, 0.0]])
    assert ANDMask(agreement=1.0).mask(gradients, gradients.mean(dim=0)).tolist() == [1, 0, 0]
    assert ANDMask(agreement=0.6).mask(gradients, gradients.mean(dim=0)).tolist() == [1, 0, 1]
    assert ANDMask(agreement=0.3).mask(gradients, gradients.mean(dim=0)).tolist() == [1, 1, 1]


def test_where_few_weights_move_they_move_more(model, task, stream):
    batches = next(stream)
    opposite = [batches[0], batches[0]._replace(y=(batches[0].y + 1) % 4)]
    method = ANDMask(agreement=1.0)
    learner = method.setup(model, task)
    assert 0 < method.update(learner, opposite)["agreement"] < 1
    moved = learner.model.head.weight.grad != 0
    assert moved.any()
    assert not moved.all()
