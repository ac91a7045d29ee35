import copy
from itertools import combinations

import pytest
import torch

from afield.errors import SpecError
from afield.training.method import risks
from afield.training.methods.coral import CORAL
from afield.training.methods.erm import ERM
from tests.training.methods.reference import theta
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    logs = {"loss": "risk", "penalty": "distance"}
    replay("coral", CORAL(penalty=1.0), logs=logs)


def test_the_distance_is_the_mean_over_pairs_of_domains(model, task, stream):
    batches = unequal(next(stream))
    features = [model.features(batch.x) for batch in batches]
    pairs = [
        (a.mean(0) - b.mean(0)).square().mean() + (a.T.cov() - b.T.cov()).square().mean()
        for a, b in combinations(features, 2)
    ]
    loss = loss_of(CORAL(penalty=3.0), CORAL().setup(model, task), batches)
    expected = risks(model, batches).mean() + 3 * torch.stack(pairs).mean()
    torch.testing.assert_close(loss, expected)


def test_without_a_penalty_and_with_equal_domains_it_is_the_mean_of_the_risks(model, task, stream):
    batches, learner = unequal(next(stream)), CORAL().setup(model, task)
    loss = loss_of(CORAL(penalty=0.0), learner, batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
    _, logs = CORAL().loss(learner, [batches[0]] * 3)
    assert logs["distance"] < 1e-12


def test_one_domain_is_erm(model, task, stream):
    one = next(stream)[:1]
    learners = [kind().setup(copy.deepcopy(model), task) for kind in (CORAL, ERM)]
    for learner, kind in zip(learners, (CORAL, ERM), strict=True):
        kind().update(learner, one)
    torch.testing.assert_close(*(theta(learner.model) for learner in learners))


def test_one_sample_of_a_domain_is_refused():
    with pytest.raises(SpecError, match="coral needs 2 or more"):
        CORAL().check_batch(1)
