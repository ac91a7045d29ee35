"""Scores of strangeness: their formulas, and the file that keeps them."""

import pytest
import torch

from afield.deployment.strangeness import NEIGHBOR, SCORES, Strangeness, check_score
from afield.errors import SpecError


@pytest.fixture(scope="module")
def fitted():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 3
    features = torch.randn(600, 5, generator=generator) + 4 * torch.eye(5)[y]
    return Strangeness.fit(features, y), features, y


@pytest.mark.parametrize("kind", ["mahalanobis", "relative", "neighbors"])
def test_samples_between_and_beyond_the_classes_are_stranger(fitted, kind):
    strangeness, features, _ = fitted
    strange = -4 * torch.ones(50, 5) + 0.1 * torch.randn(50, 5)
    logits = torch.zeros(1, 3)
    chosen = strangeness.choose(kind)
    known, unknown = chosen(features[:50], logits), chosen(strange, logits)
    assert unknown.median() > known.quantile(0.95)


def test_scores_of_outputs_are_their_formulas(fitted):
    strangeness, features, _ = fitted
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.1, 0.0, 0.0]])
    energy, gen = (strangeness.choose(kind)(features[:2], logits) for kind in ("energy", "gen"))
    assert energy.tolist() == pytest.approx((-logits.exp().sum(1).log()).tolist())
    p = logits.double().softmax(1)
    assert gen.tolist() == pytest.approx((p**0.1 * (1 - p) ** 0.1).sum(1).tolist())
    # Unsure is strange.
    assert energy[0] < energy[1]
    assert gen[0] < gen[1]


def test_neighbors_are_the_nearest_training_samples(fitted):
    strangeness, features, _ = fitted
    rows = torch.nn.functional.normalize(features[:4], dim=1)
    distances = (rows[:, None] - strangeness.bank.float()).norm(dim=2).sort(dim=1).values
    expected = distances[:, NEIGHBOR - 1]
    chosen = strangeness.choose("neighbors")
    values = chosen(features[:4], torch.zeros(4, 3))
    assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert strangeness.choose("gen").bank is None


@pytest.mark.parametrize("kind", SCORES)
def test_a_score_survives_its_file_and_needs_no_more_than_it(fitted, kind):
    strangeness, features, _ = fitted
    chosen = strangeness.choose(kind)
    logits = torch.randn(len(features), 3)
    again = Strangeness.from_tensors(chosen.tensors(), kind)
    expected = strangeness.all_scores(features, logits)[kind]
    torch.testing.assert_close(again(features, logits), expected)


def test_other_scores_are_refused():
    with pytest.raises(SpecError, match="no score 'novelty'"):
        check_score("novelty")
