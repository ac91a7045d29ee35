"""Do experts share directions? As in Figs. 2 and 4 of SCORE's paper (Chaves et al., 2026).

    SAR(i, j) = ‖U Uᵀ Δ_i‖ / ‖Δ_i‖   with U the leading left singular vectors of Δ_j: the fewest
                                     that hold more than `energy` of its norm
    angles    arccos of the singular values of UᵀW, with U and W the first `dimension` left singular
              vectors of two experts' deltas

SAR is a mean over the matrices that all experts changed. It is not symmetric, and on the diagonal
it is a little above `energy`. `chance` is the value for the same number k of random directions in m
dimensions, √(k / m). The angles are a mean over the matrices in which every expert has at least
`dimension` directions with a signal and that have at least twice as many rows: with fewer rows, any
two subspaces intersect. If there is no such matrix, the dimension is the largest that one allows.

Differs from the paper: the vectors hold more than `energy`, where Eq. 2 has ≥ with `energy` =
√(1 - ε²); the two differ only if a number of vectors holds exactly `energy`. The paper does not say
for how many dimensions its angles are. Differs from the authors' code: it takes one vector fewer
(`rank_rule=code`), which may be none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import legend_below
from afield.diagnosis.merged_runs import changed_matrices, check_merged, matrix_deltas
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.merging.spectral import leading_triplets
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Overlap"]

RankRule = Literal["paper", "code"]
# Pairs of random subspaces to average over, and the most pairs of experts with a legend.
RANDOM_DRAWS, MAX_LEGEND_PAIRS = 8, 10


class _Matrix(NamedTuple):
    """One matrix: its number of rows, the SAR of its experts, and their directions."""

    rows: int
    shares: pd.DataFrame
    bases: list[Tensor]

    @property
    def max_dimension(self) -> int:
        """The largest dimension in which angles are informative."""
        return max(1, min(self.rows // 2, *(basis.shape[1] for basis in self.bases)))


@dataclass(frozen=True)
class Overlap(Diagnostic):
    """Overlap of the directions that hold `energy` of a delta, and angles in `dimension`."""

    energy: Annotated[float, Uniform(0.9, 0.99)] = 0.97
    rank_rule: Annotated[RankRule, Variant(("paper", "code"))] = "paper"
    dimension: Annotated[int, LogUniform(2, 64)] = 8

    def __post_init__(self) -> None:
        if not 0 < self.energy < 1:
            raise SpecError(f"overlap.energy={self.energy}: must be between 0 and 1")
        if self.dimension < 1:
            raise SpecError(f"overlap.dimension={self.dimension}: must be at least 1")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute the SAR and the principal angles of every pair."""
        finished = single_run(runs, "overlap")
        check_merged(finished, "overlap", experts=2)
        names, experts = changed_matrices(finished), list(finished.experts)
        matrices = []
        for name, deltas in track(
            zip(names, matrix_deltas(finished, names), strict=True), "overlaps", len(names)
        ):
            if deltas.flatten(1).any(dim=1).all():
                matrices.append(self._compare(name, deltas, experts))
        if not matrices:
            raise SpecError("overlap: there is no matrix that all experts changed")
        layers = pd.concat([matrix.shares for matrix in matrices], ignore_index=True)
        data = layers.groupby(["first", "second"], sort=False)[["sar", "chance"]].mean()
        data = data.reset_index()
        dimension = min(self.dimension, max(matrix.max_dimension for matrix in matrices))
        angles = _angles(matrices, experts, dimension)
        used = f"{angles['matrices'].iloc[0]} of {len(matrices)} matrices"

        def plot(axes: Sequence["Axes"]) -> None:
            _plot_sar(axes[0], data, experts)
            _plot_angles(axes[1], angles, f"{dimension} dimensions, {used}")

        scope = f"principal angles in {dimension} dimensions, in {used}"
        tables = {"angles": angles, "layers": layers}
        return Finding(data, _summarize(data, angles, scope), plot, 2, tables)

    def _compare(self, name: str, deltas: Tensor, experts: list[str]) -> _Matrix:
        _, rows, columns = deltas.shape
        triplets = [leading_triplets(delta, min(rows, columns)) for delta in deltas]
        ranks = [kept_rank(triplet.values, self.energy, self.rank_rule) for triplet in triplets]
        shares = [
            (name, first, second, rank, sar(delta, triplet.left[:, :rank]), (rank / rows) ** 0.5)
            for first, delta in zip(experts, deltas, strict=True)
            for second, triplet, rank in zip(experts, triplets, ranks, strict=True)
        ]
        table = pd.DataFrame(shares, columns=["layer", "first", "second", "rank", "sar", "chance"])
        # Clones free the memory of the other directions.
        bases = [triplet.left[:, : self.dimension].clone() for triplet in triplets]
        return _Matrix(rows, table, bases)


def kept_rank(values: Tensor, energy: float, rule: RankRule = "paper") -> int:
    """The fewest singular values that hold more than `energy` of the norm; `code`: one fewer."""
    norms = values.square().cumsum(0).sqrt()
    fewer = int((norms <= energy * norms[-1]).sum())
    return min(fewer + 1, len(values)) if rule == "paper" else fewer


def sar(delta: Tensor, basis: Tensor) -> float:
    """The share of a delta's norm in a subspace, given by orthonormal columns."""
    precise = delta.double()
    return float((basis.mT @ precise).norm() / precise.norm())


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """The angles between two subspaces, given by orthonormal columns; in radians, smallest first.

    They use sines and cosines: arccos alone is accurate to only 1e-8 for small angles.
    """
    shared = first.mT @ second
    cosines = torch.linalg.svdvals(shared)
    sines = torch.linalg.svdvals(second - first @ shared).flip(0)
    return torch.atan2(sines, cosines)


def _angles(matrices: list[_Matrix], experts: list[str], dimension: int) -> pd.DataFrame:
    """The mean angles over matrices, in degrees, for every pair and for random subspaces."""
    used = [matrix for matrix in matrices if matrix.max_dimension >= dimension]
    sizes = [matrix.rows for matrix in used]
    random_angles = {rows: _random_angles(rows, dimension) for rows in sorted(set(sizes))}
    chance = torch.stack([random_angles[rows] for rows in sizes]).mean(dim=0).rad2deg().tolist()
    rows = []
    for i, j in combinations(range(len(experts)), 2):
        angles = [
            principal_angles(*(matrix.bases[k][:, :dimension] for k in (i, j))) for matrix in used
        ]
        mean = torch.stack(angles).mean(dim=0).rad2deg().tolist()
        for number, (angle, random) in enumerate(zip(mean, chance, strict=True), start=1):
            rows.append((experts[i], experts[j], number, angle, random, len(used)))
    columns = ["first", "second", "number", "angle", "chance", "matrices"]
    return pd.DataFrame(rows, columns=columns)


def _random_angles(rows: int, dimension: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    angles = []
    for _ in range(RANDOM_DRAWS):
        pair = torch.randn(2, rows, dimension, generator=generator, dtype=torch.float64)
        angles.append(principal_angles(*torch.linalg.qr(pair).Q))
    return torch.stack(angles).mean(dim=0)


def _summarize(data: pd.DataFrame, angles: pd.DataFrame, scope: str) -> str:
    other = data[data["first"] != data["second"]]
    highest = other.sort_values("sar").iloc[-1]
    return (
        f"SAR of two experts: {other['sar'].mean():.2f} on average ({other['chance'].mean():.2f} "
        f"for random directions), {highest['sar']:.2f} at most (the delta of {highest['first']} in "
        f"the directions of {highest['second']}); {scope}: {angles['angle'].mean():.0f}° on "
        f"average ({angles['chance'].mean():.0f}° for random directions)"
    )


def _plot_sar(axes: "Axes", data: pd.DataFrame, experts: list[str]) -> None:
    square = data.pivot_table(index="first", columns="second", values="sar").loc[experts, experts]
    axes.imshow(square.to_numpy(), cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(experts)), experts, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(experts)), experts, parse_math=False)
    size = 8 if len(experts) <= 8 else 5
    for i, row in enumerate(square.to_numpy()):
        for j, value in enumerate(row):
            color = "white" if value < 0.6 else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=color, fontsize=size)
    chance = data[data["first"] != data["second"]]["chance"].mean()
    axes.set_title(f"SAR, mean over matrices (random directions: {chance:.2f})", fontsize=10)
    axes.set(xlabel="in the directions of", ylabel="share of the delta of")


def _plot_angles(axes: "Axes", angles: pd.DataFrame, scope: str) -> None:
    pairs = angles.groupby(["first", "second"], sort=False)
    for (first, second), rows in pairs:
        label = f" {first} and {second}" if pairs.ngroups <= MAX_LEGEND_PAIRS else None
        axes.plot(rows["number"], rows["angle"], marker="o", markersize=3, label=label)
    first_pair = angles[: int(angles["number"].max())]
    chance = first_pair["chance"]
    axes.plot(first_pair["number"], chance, "--", color="gray", label=" random directions")
    axes.set(
        ylim=(0, 92),
        yticks=range(0, 91, 15),
        xlabel="number of the angle",
        ylabel="angle (degrees)",
    )
    axes.set_xticks(range(1, len(chance) + 1, -(-len(chance) // 8)))
    axes.set_title(f"principal angles ({scope})", fontsize=10)
    legend_below(axes, columns=3)
