import torch
import torch.nn.functional as F

from afield.training.methods.erm import ERM
from tests.training.methods.reference import batches, begun, expected
from tests.training.methods.references import replay


def test_three_updates_equal_the_reference():
    learner = begun(ERM())
    for update in (1, 2, 3):
        logs = ERM().update(learner, batches(update - 1))
        found = {
            "W": learner.model.weight.detach(),
            "b": learner.model.bias.detach(),
            "loss": logs["loss"],
        }
        for what, value in found.items():
            reference = expected("ERM", update, what).reshape(value.shape)
            torch.testing.assert_close(value, reference, rtol=0, atol=1e-10)


def test_one_domain_is_plain_training(model, task, stream):
    only = next(stream)[:1]
    loss, _ = ERM().loss(ERM().setup(model, task), only)
    torch.testing.assert_close(loss, F.cross_entropy(model(only[0].x), only[0].y))


def test_it_equals_the_public_code_on_features_and_a_head():
    replay("erm", ERM())
