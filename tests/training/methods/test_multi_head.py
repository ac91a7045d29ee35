import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.data.domains import Domain
from afield.networks.backbone import Classifier
from afield.networks.features import view_samples
from afield.training.evaluation import Evaluator
from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.methods.multi_head import MultiHead


@pytest.fixture
def batches(stream):
    return next(stream)


@pytest.fixture
def headed(model, task):
    return MultiHead().setup(model, task).model


def test_one_source_domain_is_erm_to_the_bit(task, stream):
    only = replace(task, sources=("domain0",))
    torch.manual_seed(0)
    # Dropout: random numbers must be the same, too.
    net = Classifier(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5)), 8, 4)
    ends = []
    for method in (ERM(), MultiHead()):
        torch.manual_seed(1)
        learner = method.setup(copy.deepcopy(net), only)
        learner.train()
        for step in range(5):
            stream.drawn = step
            method.update(learner, next(stream)[:1])
        ends.append(learner.model.eval()(stream.samples.x.in_memory))
    assert torch.equal(*ends)


def test_each_sample_goes_through_the_head_of_its_domain(model, task, batches):
    learner = MultiHead().setup(model, task)
    weight, bias = (part.chunk(3) for part in learner.model.head.parameters())
    pooled = pool(batches)
    # In any order: samples are routed one by one, not batch by batch.
    order = torch.randperm(len(pooled.y))
    shuffled = type(pooled)(*(part[order] for part in pooled))
    features = learner.model.features(shuffled.x)
    slow = [
        F.cross_entropy(weight[d] @ f + bias[d], y)
        for f, y, d in zip(features, shuffled.y, shuffled.domain.tolist(), strict=True)
    ]
    loss, _ = MultiHead().loss(learner, [shuffled])
    torch.testing.assert_close(loss, torch.stack(slow).mean())


def test_a_head_learns_from_its_own_domain_only(model, task, batches):
    learner = MultiHead().setup(model, task)
    loss, _ = MultiHead().loss(learner, batches[1:2])
    loss.backward()
    moved = [part.grad.chunk(3) for part in learner.model.head.parameters()]
    assert [[bool(block.any()) for block in blocks] for blocks in moved] == [
        [False, True, False],
        [False, True, False],
    ]
    assert all(each.grad.any() for each in learner.model.features.parameters())


def test_an_unknown_domain_gets_the_mean_of_the_raw_logits(headed, batches):
    x = pool(batches).x
    weight, bias = (part.chunk(3) for part in headed.head.parameters())
    each = [F.linear(headed.features(x), w, b) for w, b in zip(weight, bias, strict=True)]
    torch.testing.assert_close(headed.eval()(x), (each[0] + each[1] + each[2]) / 3)


def test_a_known_domain_gets_its_own_head(headed, batches):
    pooled = pool(batches)
    given_domain = headed.eval()(pooled.x, pooled.domain)
    apart = [headed(batch.x, domain) for domain, batch in enumerate(batches)]
    torch.testing.assert_close(given_domain, torch.cat(apart))
    assert not torch.allclose(given_domain, headed(pooled.x))


def test_checkpoints_have_the_score_of_the_known_domain_beside_that_of_the_mean(headed, samples):
    one = samples.domain == 1
    portion = Domain(x=samples.x.in_memory[one], y=samples.y[one])
    result = Evaluator({("domain1", "probe"): portion, ("other", "main"): portion}).evaluate(headed)
    expected = F.cross_entropy(headed(portion.x, 1), portion.y).item()
    assert result["domain1"].known.loss == pytest.approx(expected, rel=1e-5)
    assert result["domain1"].probe == result["other"].main != result["domain1"].known


def test_the_first_head_is_the_networks_and_the_others_are_drawn_alike(task):
    torch.manual_seed(0)
    net = Classifier(nn.Identity(), 400, 50)
    weight, bias = (part.detach() for part in MultiHead().setup(net, task).model.head.parameters())
    assert torch.equal(weight[:50], net.head.weight)
    assert torch.equal(bias[:50], net.head.bias)
    heads = weight.view(3, 50, 400)
    torch.testing.assert_close(
        heads.std(dim=(1, 2)), torch.full((3,), 0.05 / 3**0.5), rtol=0.02, atol=0
    )
    assert weight.abs().max() <= 0.05
    assert len({head.sum().item() for head in heads}) == 3


def test_a_copy_has_heads_of_its_own(headed, batches):
    x = batches[0].x
    before, other = headed(x), copy.deepcopy(headed)
    with torch.no_grad():
        other.head.weight.add_(1.0)
    assert torch.equal(headed(x), before)
    assert not torch.equal(other(x), before)
    other.load_state_dict(headed.state_dict())
    assert torch.equal(other(x), before)
    assert other.domains == headed.domains == ("domain0", "domain1", "domain2")


def test_frozen_statistics_stay_frozen(task):
    net = Classifier(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), 8, 4, freeze_bn=True)
    trained = MultiHead().setup(net, task).model.train()
    assert trained.training
    assert not trained.features[1].training


def test_it_can_be_viewed_like_any_classifier(headed, samples):
    result = view_samples(headed, samples, torch.arange(5))
    torch.testing.assert_close(headed.head(result.features), result.logits)
    assert torch.equal(result.path[:, -1], result.predictions)
