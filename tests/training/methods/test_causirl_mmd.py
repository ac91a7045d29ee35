import torch

from afield.training.building_blocks.feature_distances import kernel_distance
from afield.training.method import risks
from afield.training.methods.causirl_mmd import CausIRLMMD
from tests.training.methods.references import loss_of, unequal


def test_its_distance_is_that_of_kernels(model, task, stream):
    batches, method = unequal(next(stream)), CausIRLMMD(penalty=2.0)
    object.__setattr__(method, "cut", lambda sizes: torch.tensor([3, 1, 2]))
    features = [model.features(batch.x) for batch in batches]
    halves = [(own[:cut], own[cut:]) for own, cut in zip(features, (3, 1, 2), strict=True)]
    distance = kernel_distance([torch.cat(half) for half in zip(*halves, strict=True)])
    loss = loss_of(method, method.setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean() + 2 * distance)
