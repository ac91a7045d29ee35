"""SAR and principal angles: the reference numbers, and where they are known without any."""

import numpy as np
import pytest
import torch

from afield.diagnosis.diagnostics.overlap import (
    Overlap,
    _random_angles,
    kept_rank,
    principal_angles,
    sar,
)
from afield.errors import SpecError
from afield.merging.spectral import leading_triplets
from tests.diagnosis.diagnostics.runs import merged
from tests.files import GOLDEN

REFERENCE = dict(np.load(GOLDEN / "subspace_overlap.npz"))
# Of random subspaces with 3 of 12 dimensions, in degrees: a mean over eight pairs.
CHANCE_ANGLES = [45.7281, 66.1896, 80.8029]
EXPERTS = [f"expert{i}" for i in range(5)]
DELTAS = [torch.from_numpy(REFERENCE[f"a.weight/delta{i}"]) for i in range(5)]


def square(finding):
    table = finding.data.pivot_table(index="first", columns="second", values="sar")
    return table.to_numpy()


def orthogonal(seed=0, rows=40):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.float64)).Q


@pytest.mark.parametrize("energy", [0.97, 0.95])
@pytest.mark.parametrize(
    ("rule", "ranks", "shares"),
    [("paper", "k_paper_eq2", "SAR_paper_eq1"), ("code", "k_code", "SAR_code")],
)
def test_sar_is_that_of_the_reference(subject, energy, rule, ranks, shares):
    finding = Overlap(energy=energy, rank_rule=rule).diagnose_runs([merged(subject, *DELTAS)])
    key = f"a.weight/th{energy}"
    np.testing.assert_allclose(square(finding), REFERENCE[f"{key}/{shares}"], rtol=0, atol=1e-8)
    layers = finding.extra_tables["layers"]
    result = layers[layers["first"] == "expert0"]["rank"].tolist()
    assert result == REFERENCE[f"{key}/{ranks}"].tolist()


@pytest.mark.parametrize("dimension", [4, 8])
def test_principal_angles_are_those_of_the_reference(subject, dimension):
    finding = Overlap(dimension=dimension).diagnose_runs([merged(subject, *DELTAS)])
    angles = finding.extra_tables["angles"].groupby(["first", "second"])["angle"]
    expected = np.degrees(REFERENCE[f"a.weight/principal_angles_top{dimension}"])
    assert angles.ngroups == 10
    for (first, second), result in angles:
        i, j = EXPERTS.index(first), EXPERTS.index(second)
        np.testing.assert_allclose(result.to_numpy(), expected[i, j], rtol=0, atol=1e-6)
        radians = np.radians(result.to_numpy())
        np.testing.assert_allclose(radians, np.radians(expected[i, j]), rtol=0, atol=1e-8)


def test_where_one_direction_holds_nearly_all_the_codes_rule_keeps_none():
    matrix = torch.from_numpy(REFERENCE["edge/matrix"])
    left, values, _ = leading_triplets(matrix, 12)
    ranks = {rule: kept_rank(values, 0.97, rule) for rule in ("paper", "code")}
    assert ranks == {"paper": int(REFERENCE["edge/k_paper_eq2"]), "code": 0}
    assert sar(matrix, left[:, :0]) == REFERENCE["edge/SAR_self_code"] == 0
    assert sar(matrix, left[:, :1]) >= 0.97


def test_identical_experts_share_everything(subject):
    delta = orthogonal()[:, :3] @ torch.diag(torch.tensor([3.0, 2.0, 1.0])).double()
    finding = Overlap(energy=0.99).diagnose_runs([merged(subject, delta, 2 * delta, -delta)])
    np.testing.assert_allclose(square(finding), np.ones((3, 3)), atol=1e-12)
    assert finding.extra_tables["angles"]["angle"].max() < 1e-10
    assert "principal angles in 3 dimensions, in 1 of 1 matrices: 0° on average" in finding.summary


def test_orthogonal_experts_share_nothing(subject):
    q, (one, other) = orthogonal(), (torch.randn(5, 20).double() for _ in range(2))
    finding = Overlap(dimension=5).diagnose_runs(
        [merged(subject, q[:, :5] @ one, q[:, 5:10] @ other)]
    )
    values = square(finding)
    assert abs(values[0, 1]) < 1e-12
    assert abs(values[1, 0]) < 1e-12
    assert values[0, 0] >= 0.97
    np.testing.assert_allclose(finding.extra_tables["angles"]["angle"], 90, atol=1e-5)


def test_angles_are_those_by_which_a_plane_is_turned():
    q, turned = orthogonal(), torch.tensor([1e-9, 0.3, 1.5]).double()
    second = q[:, :3] * turned.cos() + q[:, 3:6] * turned.sin()
    torch.testing.assert_close(principal_angles(q[:, :3], second), turned, rtol=1e-6, atol=1e-12)


def test_directions_drawn_at_random_share_what_chance_says(subject):
    torch.manual_seed(0)
    deltas = [torch.randn(100, 30, dtype=torch.float64) for _ in range(4)]
    finding = Overlap(dimension=5).diagnose_runs([merged(subject, *deltas)])
    other = finding.data[finding.data["first"] != finding.data["second"]]
    np.testing.assert_allclose(other["sar"], other["chance"], atol=0.05)
    angles = finding.extra_tables["angles"]
    assert (angles["angle"] - angles["chance"]).abs().mean() < 4


def test_it_is_a_mean_over_the_matrices_that_all_experts_changed(subject):
    q = orthogonal()
    same, apart = (q[:, :1], q[:, :1]), (q[:, :1], q[:, 1:2])
    half = [q[:, :1], torch.zeros(40, 1).double()]
    given = merged(subject, *same, other=apart, one=half, vector=[torch.ones(5)] * 2)
    finding = Overlap(dimension=1).diagnose_runs([given])
    assert set(finding.extra_tables["layers"]["layer"]) == {"w", "other"}
    assert square(finding)[0, 1] == pytest.approx(0.5)
    assert finding.extra_tables["angles"]["angle"].tolist() == pytest.approx([45])
    with pytest.raises(SpecError, match="there is no matrix that all experts changed"):
        Overlap().diagnose_runs([merged(subject, *half)])


def test_the_dimension_is_one_that_there_is_and_it_is_reported(subject):
    deltas = [torch.randn(9, 20) for _ in range(2)]
    large = [torch.randn(16, 16) for _ in range(2)]
    finding = Overlap(dimension=6).diagnose_runs([merged(subject, *deltas, large=large)])
    assert "principal angles in 6 dimensions, in 1 of 2 matrices" in finding.summary
    finding = Overlap(dimension=100).diagnose_runs([merged(subject, *deltas)])
    # Half of the rows: beyond it, two subspaces meet in any case.
    assert "principal angles in 4 dimensions, in 1 of 1 matrices" in finding.summary
    assert len(finding.extra_tables["angles"]) == 4


def test_other_runs_and_settings_are_refused(subject):
    with pytest.raises(SpecError, match=r"overlap takes merged runs, .* this is a run of arith"):
        Overlap().diagnose_runs([subject])
    with pytest.raises(SpecError, match="overlap compares experts, and arith has 1"):
        Overlap().diagnose_runs([merged(subject, torch.ones(4, 4))])
    with pytest.raises(SpecError, match="no expert changed a matrix"):
        Overlap().diagnose_runs([merged(subject, torch.zeros(4, 4), torch.zeros(4, 4))])
    with pytest.raises(SpecError, match=r"overlap.energy=1.0: must be between 0 and 1"):
        Overlap(energy=1.0)
    with pytest.raises(SpecError, match=r"overlap.dimension=0: must be at least 1"):
        Overlap(dimension=0)


@pytest.mark.slow
def test_a_picture_can_be_drawn_of_many_experts(subject, tmp_path):
    deltas = [torch.randn(12, 12) for _ in range(9)]
    paths = Overlap().diagnose_runs([merged(subject, *deltas)]).save(tmp_path / "a.png")
    assert [path.name for path in paths] == ["a.png", "a.csv", "a.angles.csv", "a.layers.csv"]


def test_the_chance_of_random_subspaces_is_as_ever():
    assert _random_angles(12, 3).rad2deg().tolist() == pytest.approx(CHANCE_ANGLES, abs=1e-3)
