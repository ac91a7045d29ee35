import copy

import torch
import torch.nn.functional as F

from afield.training.methods.fishr import Fishr
from tests.training.methods.references import replay, unequal


def memory(learner):
    """The memories under the names of the reference: the head's weight, and its bias."""
    result = {}
    for domain, own in enumerate(learner.memory["variances"]):
        result[f"memory.weight.{domain}"] = own[:, :-1]
        result[f"memory.bias.{domain}"] = own[:, -1]
    return result


def test_it_equals_the_public_code():
    logs = {"loss": "loss", "nll": "risk", "penalty": "penalty"}
    method = Fishr(penalty=1000.0, warmup=0.25, memory=0.9)
    replay("fishr", method, logs=logs, state=memory)


def test_without_memory_it_compares_the_variances_of_single_gradients(model, task, stream):
    batches = unequal(next(stream))
    variances = []
    for batch in batches:
        gradients = []
        for x, y in zip(batch.x, batch.y, strict=True):
            loss = F.cross_entropy(model(x[None]), y[None])
            weight, bias = torch.autograd.grad(loss, [*model.head.parameters()])
            gradients.append(torch.cat([weight.reshape(-1), bias]))
        variances.append(torch.stack(gradients).var(dim=0, correction=0))
    spread = torch.stack(variances) - torch.stack(variances).mean(dim=0)
    _, logs = Fishr(memory=0.0).loss(Fishr().setup(model, task), batches)
    torch.testing.assert_close(logs["penalty"], spread.square().mean())


def test_every_domain_has_a_memory_of_its_own(model, task, stream):
    batches, method = next(stream), Fishr(memory=0.5)
    learner = method.setup(model, task)
    method.loss(learner, [batches[2]])
    seen = learner.memory["variances"].flatten(1).any(dim=1)
    assert seen.tolist() == [False, False, True]
    before = learner.memory["variances"].clone()
    method.loss(learner, batches[:2])
    after = copy.copy(learner.memory["variances"])
    assert torch.equal(before[2], after[2])
    assert not torch.equal(before[0], after[0])
