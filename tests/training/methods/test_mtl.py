"""MTL: limits, and prediction from batches."""

import copy

import torch
import torch.nn.functional as F

from afield.data.samples import Batch
from afield.training.method import risks
from afield.training.methods.mtl import MTL


def blind(learner, plain) -> None:
    """Make the head ignore the embedding, and equal to another head else."""
    with torch.no_grad():
        head, width = learner.model.head, plain.width
        head.weight[:, :width], head.weight[:, width:] = plain.head.weight, 0.0
        head.bias.copy_(plain.head.bias)


def test_a_head_that_ignores_embeddings_is_erm_with_the_sum_of_risks(model, task, stream):
    plain, batches = copy.deepcopy(model), next(stream)
    learner = MTL().setup(model, task)
    blind(learner, plain)
    pairs = zip((3, 8, 5), batches, strict=True)
    short = [Batch(*(column[:n] for column in batch)) for n, batch in pairs]
    for given in (batches, short):
        loss, _ = MTL().loss(learner, given)
        torch.testing.assert_close(loss, risks(plain, given).sum())


def test_two_copies_of_all_domains_double_the_loss(model, task, stream):
    learner, batches = MTL(ema=1.0).setup(model, task), next(stream)
    once, _ = MTL(ema=1.0).loss(learner, batches)
    twice, _ = MTL(ema=1.0).loss(learner, [*batches, *batches])
    torch.testing.assert_close(twice, 2 * once)


def test_a_deployed_batch_sees_the_mean_of_its_own_features(model, task, stream):
    net = MTL().setup(model, task).model.eval()
    x = next(stream)[0].x
    z = net.features(x)
    embedding = z.mean(dim=0).repeat(len(z), 1)
    torch.testing.assert_close(
        net(x), F.linear(torch.cat([z, embedding], 1), *net.head.parameters())
    )
    # So the others of a batch matter.
    assert not torch.allclose(net(x)[:4], net(x[:4]))


def test_domains_that_a_step_leaves_out_keep_their_embeddings(model, task, stream):
    method, batches = MTL(ema=0.5), next(stream)
    learner = method.setup(model, task)
    method.update(learner, batches)
    before = learner.memory["embeddings"].clone()
    method.update(learner, [batches[2], batches[0]])
    after = learner.memory["embeddings"]
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])
    assert not torch.equal(after[2], before[2])
