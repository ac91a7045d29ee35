from itertools import combinations

import pytest
import torch

from afield.data.stream import Stream
from afield.training.method import risks
from afield.training.methods.erm import ERM
from afield.training.methods.groupdro import GroupDRO
from tests.training.methods.reference import assert_equals_the_reference


@pytest.mark.parametrize("eta", [0.01, 1.0])
def test_three_updates_equal_the_reference(eta):
    assert_equals_the_reference(
        GroupDRO(eta=eta), f"GroupDRO_eta{eta}", further=lambda learner: {"q": learner.memory["q"]}
    )


def test_without_a_rate_it_is_the_mean_over_domains(model, task, stream):
    batches = next(stream)
    loss, _ = GroupDRO(eta=0.0).loss(GroupDRO().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
    torch.testing.assert_close(loss, ERM().loss(ERM().setup(model, task), batches)[0])


def test_a_huge_rate_leaves_the_worst_domain_alone(model, task, stream):
    batches = next(stream)
    loss, _ = GroupDRO(eta=1e3).loss(GroupDRO().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).max())


def test_with_all_domains_in_every_step_it_is_the_plain_formula_to_the_last_bit(
    model, task, stream
):
    method = GroupDRO(eta=0.5)
    learner, q = method.setup(model, task), torch.ones(3)
    for _ in range(5):
        batches = next(stream)
        risk = risks(model, batches)
        grown = q * (0.5 * (risk.detach() - risk.detach().max())).exp()
        q = grown / grown.sum()
        loss, logs = method.loss(learner, batches)
        assert torch.equal(loss, q @ risk)
        assert torch.equal(learner.memory["q"], q)
        assert torch.equal(logs["heaviest"], q.max())


@pytest.mark.parametrize("drawn", [(0,), (2,), (0, 2), (2, 1)])
def test_weights_of_domains_that_are_not_drawn_keep_their_ratios(model, task, stream, drawn):
    learner = GroupDRO().setup(model, task)
    before = learner.memory["q"] = torch.tensor([0.2, 0.5, 0.3])
    batches = next(stream)
    GroupDRO(eta=0.7).loss(learner, [batches[i] for i in drawn])
    after = learner.memory["q"]
    torch.testing.assert_close(after.sum(), torch.tensor(1.0))
    # The paper's update, with a risk of nothing for those that were not seen.
    risk = torch.zeros(3)
    risk[list(drawn)] = risks(model, [batches[i] for i in drawn]).detach()
    expected = before * (0.7 * risk).exp()
    torch.testing.assert_close(after, expected / expected.sum())
    waiting = [i for i in range(3) if i not in drawn]
    torch.testing.assert_close(
        after[waiting] / after[waiting].sum(), before[waiting] / before[waiting].sum()
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_on_average_over_what_is_drawn_the_loss_is_that_of_all_domains(model, task, stream, n):
    batches, q = next(stream), torch.tensor([0.2, 0.5, 0.3])

    def loss(some) -> torch.Tensor:
        learner = GroupDRO().setup(model, task)
        learner.memory["q"] = q
        return GroupDRO(eta=0.0).loss(learner, some)[0]

    choices = [loss([batches[i] for i in drawn]) for drawn in combinations(range(3), n)]
    torch.testing.assert_close(torch.stack(choices).mean(), q @ risks(model, batches))


def test_the_weights_of_many_domains_follow_the_domains_of_a_stream(model, task, samples):
    learner, method = GroupDRO().setup(model, task), GroupDRO(eta=0.3)
    stream = Stream(samples, batch=4, seed=0, per_step=2)
    q = torch.ones(3)
    for _ in range(9):
        batches = next(stream)
        method.loss(learner, batches)
        for batch, risk in zip(batches, risks(model, batches).detach(), strict=True):
            q[batch.domain[0]] *= (0.3 * risk).exp()
    torch.testing.assert_close(learner.memory["q"], q / q.sum())
