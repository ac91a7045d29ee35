"""What SCORE keeps: counted again by hand, and the limits of its threshold."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from afield.diagnosis.diagnostics.conflicts import Conflicts
from afield.errors import SpecError
from afield.merging.merges.score import score
from afield.merging.spectral import shared_basis
from tests.diagnosis.diagnostics.runs import merged


@pytest.fixture
def given(subject):
    torch.manual_seed(0)
    common = torch.randn(24, 16, dtype=torch.float64)
    deltas = [common + torch.randn(24, 16, dtype=torch.float64) for _ in range(3)]
    small = [torch.randn(6, 9, dtype=torch.float64) for _ in range(3)]
    return merged(subject, *deltas, small=small)


def squares(given, name="w"):
    """The deltas in the shared basis."""
    deltas = torch.stack([expert[name] for expert in given.experts.values()])
    left, _, right = shared_basis(deltas, exact=True)
    return (left.T @ deltas @ right).numpy()


def by_hand(matrices, width, center=None):
    """The four shares, in plain numpy."""
    off = [m - np.diag(np.diag(m)) for m in matrices]
    kept = []
    for m in off:
        middle = m.mean() if center is None else center
        spread = np.sqrt((m**2).sum() - m.size * middle**2) / np.sqrt(m.size - 1)
        kept.append((np.abs(m - middle) <= width * spread) & ~np.eye(len(m), dtype=bool))
    entries = sum(m.size - len(m) for m in off)
    beside = sum((m**2).sum() for m in off)
    after = sum((m[stays] ** 2).sum() for m, stays in zip(off, kept, strict=True))
    energy = sum((m**2).sum() for m in matrices)
    return (
        sum(stays.sum() for stays in kept) / entries,
        after / beside,
        1 - beside / energy,
        (beside - after) / energy,
    )


@pytest.mark.parametrize(
    ("settings", "width", "center"),
    [
        ({}, 1.96 / 3, None),
        ({"tau": 1.0}, 1 / 3, None),
        ({"divide_by_domains": False}, 1.96, None),
        ({"center": "zero", "tau": 2.4}, 0.8, 0.0),
    ],
)
def test_the_shares_are_those_counted_by_hand(given, settings, width, center):
    finding = Conflicts(**settings).diagnose_runs([given])
    data = finding.data.set_index("layer")[["kept", "energy kept", "on diagonal", "conflict"]]
    for name in ("w", "small"):
        expected = by_hand(squares(given, name), width, center)
        assert data.loc[name].tolist() == pytest.approx(expected, abs=1e-12)
    each = finding.extra_tables["experts"].set_index(["layer", "expert"])
    expected = by_hand(squares(given)[1:2], width, center)
    assert each.loc[("w", "expert1"), "kept"] == pytest.approx(expected[0])


def test_a_threshold_beyond_all_keeps_everything_and_none_keeps_the_diagonal(given):
    everything = Conflicts(tau=1e6).diagnose_runs([given]).data
    assert (everything["kept"] == 1).all()
    assert (everything["energy kept"] == 1).all()
    assert (everything["conflict"] == 0).all()
    nothing = Conflicts(tau=0.0, center="zero").diagnose_runs([given]).data
    assert (nothing["kept"] == 0).all()
    assert nothing["conflict"].tolist() == pytest.approx((1 - nothing["on diagonal"]).tolist())
    diagonal = everything["on diagonal"].tolist()
    assert nothing["on diagonal"].tolist() == pytest.approx(diagonal)


def test_what_is_kept_is_what_score_merges(given):
    # Where but one expert changed anything, nothing is summed: energies are those of the result.
    alone = replace(given, experts={**given.experts, "expert1": given.base, "expert2": given.base})
    data = Conflicts(tau=0.9).diagnose_runs([alone]).data.set_index("layer")
    deltas = torch.stack([expert["w"] for expert in alone.experts.values()])
    energies = [score(deltas, tau=0.9, keep=keep).square().sum() for keep in ("trimmed", "full")]
    share = float(energies[0] / energies[1])
    assert data.loc["w", "conflict"] == pytest.approx(1 - share)


def test_experts_without_anything_in_common_have_no_conflict(subject):
    deltas = torch.zeros(2, 8, 8)
    deltas[0, 0, 0], deltas[1, 1, 1] = 3.0, 2.0
    data = Conflicts().diagnose_runs([merged(subject, *deltas)]).data
    assert data["on diagonal"].tolist() == pytest.approx([1])
    assert data["conflict"].tolist() == pytest.approx([0])


def test_a_run_of_score_is_looked_at_with_its_own_settings(given):
    record = given.record
    params = {"tau": 0.7, "divide_by_domains": False, "center": "zero", "scale": 1.0}
    run = replace(record.run, method="score", params=params)
    own = replace(given, record=replace(record, run=run))
    expected = Conflicts(tau=0.7, divide_by_domains=False, center="zero").diagnose_runs([given])
    finding = Conflicts().diagnose_runs([own])
    pd.testing.assert_frame_equal(finding.data, expected.data)
    assert finding.summary.startswith("SCORE within 0.7 σ of 0 keeps ")
    two = replace(given, experts=dict(list(given.experts.items())[:2]))
    assert Conflicts(tau=1).diagnose_runs([two]).summary.startswith("SCORE within 1 σ / 2 of ")
    assert "within 1 σ of the mean" in Conflicts(tau=1, center="mean").diagnose_runs([own]).summary


def drawn(finding):
    """The images of a picture, by the titles of their panels."""
    axes = finding.figure().axes
    return {each.get_title(): each.images[0].get_array() for each in axes if each.images}


def test_pictures_are_of_the_largest_matrix_and_of_the_worst_of_the_others(subject):
    torch.manual_seed(1)
    common = torch.randn(10, 10)
    calm = torch.zeros(2, 12, 12)
    calm[0, 0, 0], calm[1, 1, 1] = 1.0, 1.0
    alike = [common, common + 0.1 * torch.randn(10, 10)]
    given = merged(subject, *calm, alike=alike, other=calm[:, :5, :5])
    finding = Conflicts().diagnose_runs([given])
    titles = list(drawn(finding))
    assert [title for title in titles if title.endswith("Σ|M|")] == ["w: Σ|M|", "alike: Σ|M|"]
    assert "most in alike" in finding.summary


def test_a_picture_is_of_the_sums_before_and_after(given):
    finding = Conflicts(layers=("small",)).diagnose_runs([given])
    assert finding.panels == 4
    before, after = drawn(finding).values()
    expected = np.abs(squares(given, "small")).sum(axis=0)
    np.testing.assert_allclose(before, expected.clip(expected.max() / 1000), rtol=1e-10)
    np.testing.assert_allclose(np.diag(after), np.diag(before), rtol=1e-10)
    assert (after <= before + 1e-12).all()


def test_unknown_layers_and_other_runs_are_refused(given, subject):
    with pytest.raises(
        SpecError, match=r"no changed matrix is called 'smal'; did you mean 'small'"
    ):
        Conflicts(layers=("smal",)).diagnose_runs([given])
    with pytest.raises(SpecError, match=r"conflicts takes merged runs, .* this is a run of arith"):
        Conflicts().diagnose_runs([subject])
    with pytest.raises(SpecError, match="8 layers, but at most 7 fit"):
        Conflicts(layers=tuple("abcdefgh"))
    with pytest.raises(SpecError, match=r"conflicts.tau=-1: must be at least 0"):
        Conflicts(tau=-1)
    assert len(Conflicts(layers=tuple("abcdefg"), tau=0).layers) == 7


def test_layers_are_in_the_order_of_the_network(subject):
    weights = subject.model.state_dict()
    base = dict(sorted(weights.items(), reverse=True))
    experts = {str(i): {k: v + torch.randn(v.shape) for k, v in base.items()} for i in range(2)}
    data = Conflicts().diagnose_runs([replace(subject, base=base, experts=experts)]).data
    assert data["layer"].tolist() == [name for name, value in weights.items() if value.ndim == 2]


@pytest.mark.slow
def test_a_picture_can_be_drawn_of_many_layers(subject, tmp_path):
    names = {f"block{i}.{'long' * 10}": [torch.randn(4, 4) for _ in range(2)] for i in range(20)}
    given = merged(subject, torch.randn(1, 3), torch.randn(1, 3), **names)
    paths = Conflicts().diagnose_runs([given]).save(tmp_path / "a.png")
    assert [path.name for path in paths] == ["a.png", "a.csv", "a.experts.csv"]
    assert len(pd.read_csv(paths[1])) == 21
