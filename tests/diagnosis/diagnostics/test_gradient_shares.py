import copy

import pytest
import torch
import torch.nn.functional as F

from afield.diagnosis.diagnostic import diagnose
from afield.diagnosis.diagnostics.gradient_shares import GradientShares
from afield.tensors import flatten


def shares(finding):
    return finding.data.pivot_table(index="step", columns="domain", values="share")


def test_shares_are_those_of_adams_own_momentum(subject):
    """The parts add up to what torch's Adam keeps."""
    model = copy.deepcopy(subject.learner.model)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=subject.record.run.lr)
    sources = subject.record.run.sources
    batches = {name: subject.batches(name) for name in sources}
    gradients = []
    for step in range(7):
        batch = next(batches[sources[step % 3]])
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        gradients.append(flatten([parameter.grad for parameter in parameters]))
        optimizer.step()
    kept = flatten([optimizer.state[parameter]["exp_avg"] for parameter in parameters])
    parts = [
        sum(0.1 * 0.9 ** (6 - s) * g for s, g in enumerate(gradients) if s % 3 == i)
        for i in range(3)
    ]
    torch.testing.assert_close(sum(parts), kept)
    norms = torch.stack([part.norm() for part in parts])
    result = shares(GradientShares(steps=7).diagnose_runs([subject])).loc[7, list(sources)]
    assert result.to_numpy() == pytest.approx((norms / norms.sum()).numpy(), abs=1e-5)


def test_without_momentum_a_step_has_its_own_domain_only(subject):
    data = GradientShares(steps=6, beta=0.0).diagnose_runs([subject]).data
    assert (data["share"] == data["present"].astype(float)).all()


def test_every_step_has_one_domain_and_shares_that_sum_to_one(subject):
    finding = GradientShares().diagnose_runs([subject])
    assert finding.data["step"].max() == 15
    assert shares(finding).sum(axis=1).to_numpy() == pytest.approx(1.0)
    turns = finding.data[finding.data["present"]].sort_values("step")["domain"].tolist()
    assert turns == list(subject.record.run.sources) * 5
    assert "100 % of Adam's first step" in finding.summary


def test_more_momentum_leaves_less_to_the_domain_of_the_step(folder):
    own = []
    for beta in (0.2, 0.95):
        data = diagnose("gradient_shares", folder, settings={"beta": beta}).data
        own.append(data[data["present"]]["share"].mean())
    assert own[0] > own[1]
