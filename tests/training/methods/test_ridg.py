import torch

from afield.training.method import pool
from afield.training.methods.ridg import RIDG


def test_classes_that_are_not_in_the_batch_neither_count_nor_change(model, task, stream):
    batches, method = next(stream), RIDG(penalty=1.0, momentum=0.25)
    learner = method.setup(model, task)
    method.loss(learner, [b._replace(y=b.y % 2) for b in batches])
    assert learner.memory["seen"].tolist() == [True, True, False, False]
    batch, bank = pool(batches), learner.memory["bank"].clone()
    batch = batch._replace(y=batch.y.clamp(min=1).clamp(max=2))
    _, logs = method.loss(learner, [batch])
    weight, features = model.head.weight, model.features(batch.x)
    expected = 0
    for label, share in ((1, 0.25), (2, 1.0)):
        own = features[batch.y == label, None] * weight
        bank[label] = (1 - share) * bank[label] + share * own.detach().mean(dim=0)
        expected += (own - bank[label]).square().sum(dim=2).mean()
    torch.testing.assert_close(learner.memory["bank"], bank)
    torch.testing.assert_close(logs["distance"], expected.detach())
