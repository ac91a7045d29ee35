import torch
import torch.nn.functional as F

from afield.training.building_blocks.domain_gradients import domain_gradients
from afield.training.learner import Learner
from tests.training.methods.references import unequal


def test_every_domain_has_its_risk_and_its_gradient(model, task, stream):
    learner, batches = Learner(model, task), unequal(next(stream))
    result, gradients = domain_gradients(learner, batches)
    for i, batch in enumerate(batches):
        risk = F.cross_entropy(model(batch.x), batch.y)
        torch.testing.assert_close(result[i], risk)
        for ours, theirs in zip(gradients, learner.gradients(risk), strict=True):
            torch.testing.assert_close(ours[i], theirs)
    assert not any(own.requires_grad for each in gradients for own in each)


def test_gradients_can_be_differentiated_again(model, task, stream):
    learner, batches = Learner(model, task), next(stream)
    _, gradients = domain_gradients(learner, batches, create_graph=True)
    curvature = learner.gradients(sum(own.square().sum() for each in gradients for own in each))
    assert all(each.any() for each in curvature)
