"""Do experts share directions? As in Figs. 2 and 4 of SCORE's paper (Chaves et al., 2026).

    SAR(i, j) = ‖U Uᵀ Δ_i‖ / ‖Δ_i‖   with U the leading left singular vectors of Δ_j: the fewest
                                     that hold more than `energy` of its norm
    angles    arccos of the singular values of UᵀW, with U and W the first `dimension` left singular
              vectors of two experts' deltas

SAR is a mean over the matrices that all experts changed. It is not symmetric: on the diagonal it is
a little above `energy`. What directions drawn at random would have, as many in as many dimensions
(√(k / m)), stands beside it as `chance`. The angles are a mean over the matrices in which every
expert has so many directions with a signal, and that have twice as many rows: in fewer, two
subspaces meet whatever they are. If there are none, the dimension is as large as one allows.

Where the authors' code differs: it takes one vector fewer (`rank_rule` code), which may be none.
The paper does not say for how many dimensions its angles are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.merged_runs import changed_matrices, check_merged, matrix_deltas
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.merging.spectral import leading_triplets
from afield.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Overlap"]

RankRule = Literal["paper", "code"]
# Random subspaces are drawn so often; more pairs than so many have no legend.
RANDOM_DRAWS, MAX_LEGEND_PAIRS = 8, 10


class _Matrix(NamedTuple):
    """One matrix: what the experts share in it, and their directions."""

    rows: int
    shares: pd.DataFrame
    bases: list[Tensor]

    @property
    def room(self) -> int:
        """For how many dimensions angles say something."""
        return max(1, min(self.rows // 2, *(basis.shape[1] for basis in self.bases)))


@dataclass(frozen=True)
class Overlap(Diagnostic):
    """What experts share: directions that hold `energy` of a delta, and angles in `dimension`."""

    energy: Annotated[float, Uniform(0.9, 0.99)] = 0.97
    rank_rule: Annotated[RankRule, Variant(("paper", "code"))] = "paper"
    dimension: Annotated[int, LogUniform(2, 64)] = 8

    def __post_init__(self) -> None:
        if not 0 < self.energy < 1:
            raise SpecError(f"overlap.energy={self.energy}: must be between 0 and 1")
        if self.dimension < 1:
            raise SpecError(f"overlap.dimension={self.dimension}: must be above 0")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """The matrix of SAR, and the angles of every pair."""
        subject = single_run(subjects, "overlap")
        check_merged(subject, "overlap", experts=2)
        names, experts = changed_matrices(subject), list(subject.experts)
        matrices = []
        for name, deltas in track(
            zip(names, matrix_deltas(subject, names), strict=True), "overlaps", len(names)
        ):
            if deltas.flatten(1).any(dim=1).all():
                matrices.append(self._compared(name, deltas, experts))
        if not matrices:
            raise SpecError("there is no matrix that all experts changed")
        layers = pd.concat([matrix.shares for matrix in matrices], ignore_index=True)
        data = layers.groupby(["first", "second"], sort=False)[["sar", "chance"]].mean()
        data = data.reset_index()
        dimension = min(self.dimension, max(matrix.room for matrix in matrices))
        angles = _angles(matrices, experts, dimension)
        of = f"{angles['matrices'].iloc[0]} of {len(matrices)} matrices"

        def paint(axes: Sequence["Axes"]) -> None:
            _paint_sar(axes[0], data, experts)
            _paint_angles(axes[1], angles, f"{dimension} dimensions, {of}")

        told = _told(data, angles, f"principal angles in {dimension} dimensions, in {of}")
        return Finding(data, told, paint, 2, {"angles": angles, "layers": layers})

    def _compared(self, name: str, deltas: Tensor, experts: list[str]) -> _Matrix:
        _, rows, columns = deltas.shape
        triplets = [leading_triplets(delta, min(rows, columns)) for delta in deltas]
        ranks = [kept_rank(found.values, self.energy, self.rank_rule) for found in triplets]
        shares = [
            (name, first, second, rank, sar(delta, found.left[:, :rank]), (rank / rows) ** 0.5)
            for first, delta in zip(experts, deltas, strict=True)
            for second, found, rank in zip(experts, triplets, ranks, strict=True)
        ]
        table = pd.DataFrame(shares, columns=["layer", "first", "second", "rank", "sar", "chance"])
        # Clones: what is left out is not to stay in memory.
        bases = [found.left[:, : self.dimension].clone() for found in triplets]
        return _Matrix(rows, table, bases)


def kept_rank(values: Tensor, energy: float, rule: RankRule = "paper") -> int:
    """How many singular values it takes for more than a share of the norm; `code`: one fewer."""
    norms = values.square().cumsum(0).sqrt()
    fewer = int((norms <= energy * norms[-1]).sum())
    return min(fewer + 1, len(values)) if rule == "paper" else fewer


def sar(delta: Tensor, basis: Tensor) -> float:
    """The share of a delta's norm that lies in a subspace, given by orthonormal columns."""
    precise = delta.double()
    return float((basis.mT @ precise).norm() / precise.norm())


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """The angles between two subspaces, given by orthonormal columns; in radians, smallest first.

    From sines and cosines: an arccos alone is right to 1e-8 only where an angle is small.
    """
    shared = first.mT @ second
    cosines = torch.linalg.svdvals(shared)
    sines = torch.linalg.svdvals(second - first @ shared).flip(0)
    return torch.atan2(sines, cosines)


def _angles(matrices: list[_Matrix], experts: list[str], dimension: int) -> pd.DataFrame:
    """The mean over matrices, in degrees, for every pair, and for subspaces drawn at random."""
    counted = [matrix for matrix in matrices if matrix.room >= dimension]
    sizes = [matrix.rows for matrix in counted]
    drawn = {rows: _random_angles(rows, dimension) for rows in sorted(set(sizes))}
    chance = torch.stack([drawn[rows] for rows in sizes]).mean(dim=0).rad2deg().tolist()
    rows = []
    for i, j in combinations(range(len(experts)), 2):
        found = [
            principal_angles(*(matrix.bases[k][:, :dimension] for k in (i, j)))
            for matrix in counted
        ]
        mean = torch.stack(found).mean(dim=0).rad2deg().tolist()
        for number, (angle, random) in enumerate(zip(mean, chance, strict=True), start=1):
            rows.append((experts[i], experts[j], number, angle, random, len(counted)))
    columns = ["first", "second", "number", "angle", "chance", "matrices"]
    return pd.DataFrame(rows, columns=columns)


def _random_angles(rows: int, dimension: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(RANDOM_DRAWS):
        pair = torch.randn(2, rows, dimension, generator=generator, dtype=torch.float64)
        found.append(principal_angles(*torch.linalg.qr(pair).Q))
    return torch.stack(found).mean(dim=0)


def _told(data: pd.DataFrame, angles: pd.DataFrame, of: str) -> str:
    other = data[data["first"] != data["second"]]
    highest = other.sort_values("sar").iloc[-1]
    return (
        f"SAR of two experts: {other['sar'].mean():.2f} on average ({other['chance'].mean():.2f} "
        f"for directions drawn at random), {highest['sar']:.2f} at most (of {highest['first']} in "
        f"the directions of {highest['second']}); {of}: {angles['angle'].mean():.0f}° on average "
        f"({angles['chance'].mean():.0f}° at random)"
    )


def _paint_sar(axes: "Axes", data: pd.DataFrame, experts: list[str]) -> None:
    square = data.pivot_table(index="first", columns="second", values="sar").loc[experts, experts]
    axes.imshow(square.to_numpy(), cmap="viridis", vmin=0, vmax=1)
    axes.set_xticks(range(len(experts)), experts, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(experts)), experts, parse_math=False)
    size = 8 if len(experts) <= 8 else 5
    for i, row in enumerate(square.to_numpy()):
        for j, value in enumerate(row):
            colour = "white" if value < 0.6 else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=size)
    chance = data[data["first"] != data["second"]]["chance"].mean()
    axes.set_title(f"SAR, mean over matrices (at random: {chance:.2f})", fontsize=10)
    axes.set(xlabel="in the directions of", ylabel="share of the delta of")


def _paint_angles(axes: "Axes", angles: pd.DataFrame, of: str) -> None:
    pairs = angles.groupby(["first", "second"], sort=False)
    for (first, second), own in pairs:
        label = f" {first} and {second}" if pairs.ngroups <= MAX_LEGEND_PAIRS else None
        axes.plot(own["number"], own["angle"], marker="o", markersize=3, label=label)
    own = angles[: int(angles["number"].max())]
    axes.plot(own["number"], own["chance"], "--", color="grey", label=" at random")
    axes.set(ylim=(0, 92), yticks=range(0, 91, 15), xlabel="which angle", ylabel="angle (degrees)")
    axes.set_xticks(range(1, len(own) + 1, -(-len(own) // 8)))
    axes.set_title(f"principal angles ({of})", fontsize=10)
    for text in axes.legend(fontsize=7).get_texts():
        text.set_parse_math(False)
