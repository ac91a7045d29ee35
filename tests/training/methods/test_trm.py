import torch
import torch.nn.functional as F

from afield.training.methods import trm
from afield.training.methods.erm import ERM
from afield.training.methods.trm import TRM
from tests.training.methods.references import loss_of, unequal


def test_during_the_warm_up_it_is_erm(model, task, stream):
    batches, method = unequal(next(stream)), TRM(warmup=0.1)
    learner = method.setup(model, task)
    assert torch.equal(method.loss(learner, batches)[0], ERM().loss(learner, batches)[0])


def test_without_transfer_it_adds_the_risks_of_the_probes_on_the_other_domains(model, task, stream):
    batches, method = unequal(next(stream)), TRM(transfer=0.0, warmup=0.0)
    learner = method.setup(model, task)
    loss = loss_of(method, learner, batches)
    probes, others = learner.parts["probe"], []
    for own, probe in enumerate(probes):
        result = [F.cross_entropy(probe(model.features(b.x)), b.y) for b in batches]
        others.append(sum(result[i] for i in range(3) if i != own) / 2)
    expected = loss_of(ERM(), learner, batches) + torch.stack(others).mean()
    torch.testing.assert_close(loss, expected)


def test_probes_start_from_the_head_if_asked(model, task, stream, monkeypatch):
    monkeypatch.setattr(trm, "PROBE_STEPS", 0)
    method = TRM(warmup=0.0, from_head=True)
    learner = method.setup(model, task)
    biases = [probe.bias.clone() for probe in learner.parts["probe"]]
    loss_of(method, learner, next(stream))
    for probe, bias in zip(learner.parts["probe"], biases, strict=True):
        assert torch.equal(probe.weight, model.head.weight)
        assert torch.equal(probe.bias, bias)


def test_a_series_that_grows_ends_with_the_first_large_sum():
    inputs, p, shares = (
        torch.full((4, 1), 3.0),
        torch.full((1, 4, 2), 0.5),
        torch.full((1, 4), 0.25),
    )
    # The Hessian is 9/4 · [[1, -1], [-1, 1]]: along (1, -1), every term is -3.5 times the last.
    (total,) = trm._neumann_sum(inputs, p, shares, torch.tensor([[[1.0], [-1.0]]]))
    # 1 - 3.5 + 12.25 - 42.875: 9.75 is not above 10 yet.
    assert total[:, 0].tolist() == [-33.125, 33.125]


def test_domains_that_are_not_drawn_keep_their_probes_and_weights(model, task, stream):
    batches, method = next(stream), TRM(warmup=0.0, eta=1.0)
    learner = method.setup(model, task)
    before = learner.parts["probe"][1].weight.clone()
    loss_of(method, learner, [batches[2], batches[0]])
    assert torch.equal(learner.parts["probe"][1].weight, before)
    alpha = learner.memory["alpha"]
    assert alpha[1].tolist() == [1, 0, 1]
    assert alpha[0, 2] > 1
    assert alpha[2, 0] > 1
