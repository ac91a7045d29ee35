import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from afield.data.stream import Stream
from afield.errors import SpecError
from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.methods.metareg import MetaReg
from tests.conftest import little_network


def learned(method, model, task, stream, *, steps, learner=None):
    """A learner after so many steps, from the stream's first batch on."""
    if learner is None:
        torch.manual_seed(1)
        learner = method.setup(copy.deepcopy(model), task)
    learner.train()
    while learner.step < steps:
        method.update(learner, next(stream))
        learner.step += 1
    return learner


def fresh(stream):
    return Stream(stream.samples, batch=8, seed=0)


def vector(module):
    return parameters_to_vector(module.parameters()).detach()


def after_inner_loop(phi, head, train, test, *, steps, rate):
    """The loss on one domain after regularised steps on another, with slopes written out."""
    (f, y), beta = train, head.clone()
    f = torch.cat([f, f.new_ones(len(f), 1)], dim=1)
    for _ in range(steps):
        error = (f @ beta.T).softmax(dim=1) - F.one_hot(y, len(beta))
        beta = beta - rate * (error.T @ f / len(f) + phi * beta.sign())
    f, y = test
    logits = f @ beta[:, :-1].T + beta[:, -1]
    return (logits.logsumexp(dim=1) - logits[torch.arange(len(y)), y]).mean()


def slope_by_differences(function, at, *, step=1e-5):
    result = torch.zeros_like(at)
    for i in range(at.numel()):
        nudge = torch.zeros_like(at)
        nudge.view(-1)[i] = step
        result.view(-1)[i] = (function(at + nudge) - function(at - nudge)) / (2 * step)
    return result


def test_the_step_on_phi_goes_through_the_inner_steps(model, task, stream):
    task = replace(task, network=lambda outputs: little_network(outputs).double())
    method = MetaReg(inner_steps=3, inner_rate=20.0, meta_rate=0.7)
    # Two of three domains, so that a batch's place is not the number of its domain.
    batches = [batch._replace(x=batch.x.double()) for batch in next(stream)[1:]]
    torch.manual_seed(0)
    learner = method.setup(model.double(), task)
    start = 0.1 * torch.randn_like(learner.memory["phi"])
    base = copy.deepcopy(learner.parts["base"])
    with torch.no_grad():
        seen = [(base.features(batch.x), batch.y) for batch in batches]
        heads = torch.cat([base.head.weight, base.head.bias[:, None]], dim=1).chunk(3)
    possible = []
    for a, b in ((0, 1), (1, 0)):
        slope = slope_by_differences(
            lambda phi, a=a, b=b: after_inner_loop(
                phi, heads[a + 1], seen[a], seen[b], steps=3, rate=20.0 * 0.01
            ),
            start,
        )
        possible.append(start - 0.7 * slope)
    result = set()
    for seed in range(8):
        torch.manual_seed(seed)
        learner.parts["base"].load_state_dict(base.state_dict())
        learner.memory["phi"] = start.clone()
        method.update(learner, batches)
        fits = [torch.allclose(learner.memory["phi"], p, rtol=0, atol=1e-9) for p in possible]
        assert any(fits)
        result.add(fits.index(True))
    assert result == {0, 1}


def test_with_phi_at_its_start_the_fresh_network_is_trained_as_by_erm(model, task, stream):
    task = replace(task, steps=20)
    learner = learned(MetaReg(meta_rate=0.0), model, task, fresh(stream), steps=20)
    assert not learner.memory["phi"].any()
    rest = fresh(stream)
    rest.drawn = 10
    plain = learned(ERM(), model, task, rest, steps=10)
    assert torch.equal(vector(learner.model), vector(plain.model))


def test_before_its_training_the_deployed_network_stays_as_it_came(model, task, stream):
    learner = learned(MetaReg(), model, replace(task, steps=20), stream, steps=10)
    assert torch.equal(vector(learner.model), vector(model))
    assert learner.memory["phi"].all()
    learned(MetaReg(), model, task, stream, steps=11, learner=learner)
    assert not torch.equal(vector(learner.model), vector(model))


def test_phi_and_what_it_was_learned_with_stay_while_the_fresh_network_trains(model, task, stream):
    method, task = MetaReg(), replace(task, steps=20)
    learner = learned(method, model, task, stream, steps=10)
    phi, base = learner.memory["phi"].clone(), vector(learner.parts["base"])
    learned(method, model, task, stream, steps=20, learner=learner)
    assert torch.equal(learner.memory["phi"], phi)
    assert torch.equal(vector(learner.parts["base"]), base)


def test_the_loss_is_cross_entropy_and_the_weighted_sizes_of_the_head(model, task, stream):
    method, batches = MetaReg(), next(stream)
    learner, pooled = method.setup(model, task), pool(batches)
    phi = learner.memory["phi"] = torch.randn(4, 9)
    loss, logs = method.loss(learner, batches)
    sizes = (phi[:, :8] * model.head.weight.abs()).sum() + phi[:, 8] @ model.head.bias.abs()
    torch.testing.assert_close(loss, F.cross_entropy(model(pooled.x), pooled.y) + sizes)
    torch.testing.assert_close(logs["penalty"], sizes.detach())


def test_a_heavy_phi_empties_the_head(model, task, stream):
    method = MetaReg(meta_share=0.0)
    sizes = {}
    for phi in (0.0, 10.0):
        learner = method.setup(copy.deepcopy(model), task)
        learner.memory["phi"].fill_(phi)
        learned(method, model, task, fresh(stream), steps=60, learner=learner)
        sizes[phi] = learner.model.head.weight.abs().max()
    assert sizes[10.0] < 0.05 < sizes[0.0]


def test_base_networks_learn_from_their_domains_whatever_phi_does(model, task, stream):
    ends = [
        learned(MetaReg(meta_rate=rate), model, task, fresh(stream), steps=5).parts["base"]
        for rate in (0.0, 1e3)
    ]
    assert torch.equal(*map(vector, ends))


def test_a_base_step_is_one_on_the_mean_of_the_domains_losses(model, task, stream):
    method, batches = MetaReg(), next(stream)
    learner = method.setup(model, task)
    base = copy.deepcopy(learner.parts["base"])
    own = [
        F.cross_entropy(base(batch.x)[:, 4 * i : 4 * i + 4], batch.y)
        for i, batch in enumerate(batches)
    ]
    optimizer = task.optimizer(base.parameters())
    torch.stack(own).mean().backward()
    optimizer.step()
    logs = method.update(learner, batches)
    torch.testing.assert_close(logs["base_loss"], torch.stack(own).mean().detach())
    torch.testing.assert_close(vector(learner.parts["base"]), vector(base))


def test_a_domain_that_a_step_leaves_out_keeps_its_head_without_a_slope(model, task, stream):
    learner = MetaReg().setup(model, task)
    MetaReg().update(learner, next(stream)[1:])
    blocks = learner.parts["base"].head.weight.grad.chunk(3)
    assert [bool(block.any()) for block in blocks] == [False, True, True]


def test_even_a_short_run_trains_the_fresh_network(model, task, stream):
    learner = learned(MetaReg(meta_share=0.99), model, replace(task, steps=2), stream, steps=2)
    assert not torch.equal(vector(learner.model), vector(model))


def test_a_step_on_one_source_domain_is_refused(model, task, stream):
    with pytest.raises(SpecError, match="not 1"):
        MetaReg().update(MetaReg().setup(model, task), next(stream)[:1])
