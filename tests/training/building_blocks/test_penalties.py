import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.training.building_blocks.forward import forward, mix_inputs
from afield.training.building_blocks.penalties import finish_warm_up
from afield.training.learner import Learner
from afield.training.method import risks
from tests.training.methods.references import unequal


def test_the_optimizer_and_its_rate_change_once_when_the_warm_up_ends(model, task):
    learner = Learner(model, task, lr_multipliers={"head": 2.0})
    first, seen = learner.optimizer, []
    for learner.step in range(5):
        warm = finish_warm_up(learner, 0.03, lr_factor=0.1)
        rates = [round(group["lr"], 6) for group in learner.optimizer.param_groups]
        seen.append((warm, learner.optimizer is first, rates))
    cold, hot = (False, True, [0.01, 0.02]), (True, False, [0.001, 0.002])
    assert seen == [cold, cold, cold, hot, hot]


def test_one_pass_gives_features_logits_and_risks_by_domain(model, task, stream):
    batches = unequal(next(stream))
    outputs = forward(Learner(model, task), batches)
    torch.testing.assert_close(outputs.risks, risks(model, batches))
    for own, batch in zip(outputs.by_domain(outputs.features), batches, strict=True):
        torch.testing.assert_close(own, model.features(batch.x))


def test_a_network_without_features_and_inputs_that_cannot_be_mixed_are_refused(task, stream):
    with pytest.raises(SpecError, match=r"needs a Classifier.*, not Linear"):
        forward(Learner(nn.Linear(6, 2), task), next(stream))
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(SpecError, match="mixes inputs, which int64 inputs do not allow"):
        mix_inputs(tokens, tokens, torch.ones(2))


def test_every_sample_is_mixed_with_its_own_share():
    first, second = torch.ones(2, 1, 2), torch.zeros(2, 1, 2)
    mixed = mix_inputs(first, second, torch.tensor([0.25, 1.0]))
    assert mixed.tolist() == [[[0.25, 0.25]], [[1.0, 1.0]]]
