"""Ensembles: the mean of probabilities, and the features of all members."""

import pytest
import torch
from torch import nn

from afield.networks.backbone import network
from afield.networks.ensemble import BatchEnsemble, make_ensemble, mean_log_probabilities
from afield.networks.features import capture_features
from afield.networks.inference import BatchPredictor


def small_network(seed):
    torch.manual_seed(seed)
    return network("small:mlp", (4,), 3).eval()


def test_the_outputs_are_the_logarithm_of_the_mean_of_the_probabilities():
    logits = [torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 0.0, 3.0]])]
    by_hand = (logits[0].softmax(1) + logits[1].softmax(1)) / 2
    torch.testing.assert_close(mean_log_probabilities(logits), by_hand.log())
    torch.testing.assert_close(mean_log_probabilities(logits).softmax(1), by_hand)


def test_large_logits_do_not_overflow():
    outputs = mean_log_probabilities([torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1e4]])])
    torch.testing.assert_close(outputs.softmax(1), torch.tensor([[0.5, 0.5]]))


def test_an_ensemble_of_equal_members_predicts_what_a_member_predicts():
    x = torch.randn(20, 4)
    member = small_network(0)
    both = make_ensemble([member, small_network(0), small_network(0)]).eval()
    torch.testing.assert_close(both(x).softmax(1), member(x).softmax(1))
    assert not torch.allclose(
        make_ensemble([member, small_network(1)])(x).softmax(1), member(x).softmax(1), atol=1e-3
    )


def test_features_are_those_of_the_members_side_by_side():
    x = torch.randn(5, 4)
    members = [small_network(seed) for seed in range(3)]
    ensemble = make_ensemble(members).eval()
    wrapped = nn.Sequential(ensemble)
    for model in (ensemble, wrapped):
        with capture_features(model) as captured, torch.no_grad():
            model(x)
            model(x[:2])
        expected = torch.cat([member.features(x) for member in members], dim=1)
        assert [len(batch) for batch in captured.features] == [5, 2]
        torch.testing.assert_close(captured.features[0], expected)


class CountingPredictor(BatchPredictor):
    """Adds the number of samples that it has seen to the first logit."""

    batch_size = 7

    def __init__(self):
        super().__init__()
        self.seen = 0

    def reset(self):
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return torch.tensor([[float(self.seen), 0.0]]).expand(len(x), 2)


def test_members_that_predict_from_batches_are_reset_together():
    ensemble = make_ensemble([CountingPredictor(), CountingPredictor()])
    assert isinstance(ensemble, BatchEnsemble)
    assert isinstance(ensemble, BatchPredictor)
    assert ensemble.batch_size == 7
    first = ensemble(torch.zeros(3, 1))
    assert not torch.equal(ensemble(torch.zeros(3, 1)), first)
    ensemble.reset()
    assert torch.equal(ensemble(torch.zeros(3, 1)), first)


@pytest.mark.parametrize("domains", [(), ("a", "b")])
def test_an_ensemble_can_use_the_domain_labels_of_its_members(domains):
    class Labelled(nn.Module):
        def forward(self, x, *label):
            return torch.zeros(len(x), 2) + torch.tensor([float(sum(label)), 0.0])

    members = [Labelled(), Labelled()]
    for member in members:
        member.domains = domains
    ensemble = make_ensemble(members)
    assert ensemble.domains == domains
    assert not torch.equal(ensemble(torch.zeros(1, 1), 1), ensemble(torch.zeros(1, 1)))
