"""SCORE: the authors' numbers with fixed signs, and a meaning where theirs have none."""

import pytest
import torch

from afield.merging.merges.score import agreement_mask, keep_entries, score
from tests.merging.merges.matrices import MATRICES, leading_part, normal, numbers, reference, steep

VARIANTS = {
    "score_v1": {},
    "score_v1_medical": {"divide_by_domains": False},
    "score_v2": {"keep": "diagonal"},
    "score_v3": {"keep": "off_diagonal"},
}


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_authors_with_fixed_signs(variant, matrix):
    expected = numbers("score_canonical_signs")[f"D2/f64/{variant}/{matrix}"]
    result = score(reference(2, matrix), **VARIANTS[variant])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("domains", [2, 3])
def test_it_is_the_formula_without_padding_columns(domains, matrix):
    expected = numbers("score_canonical_signs")[f"D{domains}/f64/nopad_hand_score_v1/{matrix}"]
    torch.testing.assert_close(score(reference(domains, matrix)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("matrix", MATRICES)
def test_the_diagonal_alone_is_the_authors_whatever_their_signs(matrix):
    expected = numbers("merging_D2")[f"out/score_v2/{matrix}"]
    result = score(reference(2, matrix), keep="diagonal")
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize(
    ("name", "keep", "width"),
    [
        ("Sigma_v1", "trimmed", 0.98),
        ("Sigma_v1_medical", "trimmed", 1.96),
        ("Sigma_v2", "diagonal", 1.0),
    ],
)
def test_the_trim_is_the_authors_exactly(name, keep, width, matrix):
    squares = numbers("merging_D2")[f"inter/{matrix}/changed_basis"]
    result = sum(keep_entries(square, keep=keep, width=width) for square in squares)
    assert torch.equal(result, numbers("merging_D2")[f"inter/{matrix}/{name}"])


DELTAS, SQUARES, PART = normal(3, 20, 12), normal(2, 24, 24), leading_part(normal(60, 48), 16)
ALIKE = normal(60, 48).expand(3, 60, 48)
ONE_DIRECTION = normal(1, 8, 1) @ normal(1, 1, 6, seed=1)


@pytest.mark.parametrize(
    ("deltas", "settings", "expected"),
    [
        # One expert alone is that expert.
        *((DELTAS[:1], {"keep": keep}, DELTAS[0]) for keep in ("trimmed", "diagonal", "full")),
        (ONE_DIRECTION, {}, ONE_DIRECTION[0]),
        # Identical experts are one of them, cut to its share of the rank.
        (ALIKE, {}, PART),
        (ALIKE, {"keep": "diagonal"}, PART),
        (ALIKE, {"keep": "full"}, 3 * PART),
        # The full matrix is the sum where the basis is everything.
        (SQUARES, {"keep": "full"}, SQUARES.sum(dim=0)),
        # Without a threshold nothing is trimmed.
        (DELTAS, {"tau": 1e6}, score(DELTAS, keep="full")),
        # The diagonal and what is beside it are all.
        (DELTAS, {}, score(DELTAS, keep="diagonal") + score(DELTAS, keep="off_diagonal")),
    ],
)
def test_in_its_limits_the_result_is_known(deltas, settings, expected):
    torch.testing.assert_close(score(deltas, **settings), expected)


def test_one_expert_alone_has_nothing_beside_the_diagonal():
    assert score(normal(1, 20, 12), keep="off_diagonal").abs().max() < 1e-12


def test_weak_directions_of_identical_experts_may_come_more_than_once():
    delta = steep(1, 96, 96, ratio=1e4)
    part, result = leading_part(delta[0], 48), score(delta.expand(2, 96, 96))
    assert 1e-6 < (result - part).norm() / part.norm() < 2 / 48**0.5


def test_measured_from_zero_the_trim_does_not_depend_on_signs():
    square, signs = normal(9, 9) + 0.3, torch.tensor([1.0, -1, 1, 1, -1, -1, 1, -1, 1]).double()
    turned = signs[:, None] * square * signs

    def changes(center):
        here = keep_entries(square, keep="trimmed", width=1.0, center=center)
        there = keep_entries(turned, keep="trimmed", width=1.0, center=center)
        return not torch.equal(signs[:, None] * here * signs, there)

    assert changes("mean")
    assert not changes("zero")


@pytest.mark.parametrize(
    "setting",
    [{"tau": 1.0}, {"divide_by_domains": False}, {"center": "zero"}]
    + [{"keep": keep} for keep in ("diagonal", "off_diagonal", "full")],
)
def test_every_setting_matters(setting):
    deltas = normal(3, 20, 12)
    assert not torch.allclose(score(deltas, **setting), score(deltas))


@pytest.mark.slow
def test_the_quick_way_is_within_the_promise():
    deltas = steep(3, 384, 384, ratio=200).float()
    expected = score(deltas.double())
    assert (score(deltas) - expected).norm() < 5e-3 * expected.norm()
    assert (score(deltas, exact=True) - expected).norm() < 1e-3 * expected.norm()
    assert not torch.equal(score(deltas), score(deltas, exact=True))


def test_tf32_is_off_in_it_and_as_before_after_it(monkeypatch):
    products = torch.backends.cuda.matmul
    is_named = hasattr(products, "fp32_precision")
    name, on, off = ("fp32_precision", "tf32", "ieee") if is_named else ("allow_tf32", True, False)
    before, seen = getattr(products, name), []

    def watched(square, **settings):
        seen.append(getattr(products, name))
        return keep_entries(square, **settings)

    monkeypatch.setattr("afield.merging.merges.score.keep_entries", watched)
    setattr(products, name, on)
    try:
        score(normal(2, 8, 6).float())
        assert getattr(products, name) == on
    finally:
        setattr(products, name, before)
    assert set(seen) == {off}


def test_an_entry_at_the_threshold_is_kept():
    off = torch.zeros(3, 3)
    assert agreement_mask(off, width=0.0).all()
    assert agreement_mask(off, width=0.0, center="zero").all()
    one = off.clone()
    one[0, 1] = 1.0
    # With no width, only what equals the center is kept.
    assert agreement_mask(one, width=0.0, center="zero").sum() == 8
