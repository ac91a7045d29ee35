"""A look at a base and experts before they are merged: how long, how alike and how wide they are.

    norm      ‖Δ_i‖ of all tensors together, also relative to the base and to the shortest expert
    cosine    ⟨Δ_i, Δ_j⟩ / ‖Δ_i‖ ‖Δ_j‖
    signs     the share of entries with the same sign, of those that both experts changed;
              0.5 by chance
    SAR       how much of one delta lies in the leading directions of the other, the mean of both
              ways and over matrices; as in the diagnostic `overlap`
    angle     the mean principal angle between the first 8 directions, or fewer in small matrices
    spread    √(Σ_i ‖Δ_i - mean‖² / D) / ‖base‖ of one tensor: where the experts differ most

It needs no data and no network: only the files. Tensors are read one at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Finding
from afield.diagnosis.diagnostics.overlap import kept_rank, principal_angles, sar
from afield.errors import SpecError
from afield.merging.checks import TensorChange
from afield.merging.files import FileMerge
from afield.merging.job import ENTRIES_PER_PIECE, MergeJob, log_merge_warnings, read_deltas
from afield.merging.plan import leave_overrides
from afield.merging.scopes import MERGED, tensor_action
from afield.merging.spectral import leading_triplets
from afield.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The share of a delta's norm that its leading directions hold, and how many are compared by angle.
ENERGY, DIMENSION = 0.97, 8


class _Overlap(NamedTuple):
    """The SAR of a pair in one matrix, its value for random directions, and the mean angle."""

    sar: float
    chance: float
    angle: float


@dataclass
class _Sums:
    """What is added up over tensors: products of the deltas, and entries with equal signs."""

    experts: int
    products: Tensor = field(init=False)
    same: Tensor = field(init=False)
    both: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = self.experts, self.experts
        self.products, self.same, self.both = (
            torch.zeros(shape, dtype=torch.float64) for _ in range(3)
        )

    def add(self, deltas: Tensor) -> None:
        """Add entries [experts, n] of the deltas."""
        rows = deltas.double()
        self.products += rows @ rows.mT
        signs = rows.sign()
        changed = signs.abs()
        both = changed @ changed.mT
        self.both += both
        self.same += (signs @ signs.mT + both) / 2

    def merge(self, other: "_Sums") -> None:
        """Add the sums of another tensor."""
        self.products += other.products
        self.same += other.same
        self.both += other.both


def inspect_experts(
    base: str | Path, experts: Sequence[str | Path], *, leave: Sequence[str] = ()
) -> Finding:
    """Compare the changes that experts made to their base, before they are merged.

    The data of the finding are the pairs of experts; its extra tables are `experts` and `tensors`.
    Doubts about the models are logged, as every merge does.

    Parameters
    ----------
    base
        The model from which the experts were fine-tuned: a file or folder that can be merged.
    experts
        At least two fine-tuned models, or adapters.
    leave
        Patterns of tensors that are left out, such as head.*.
    """
    if len(experts) < 2:
        raise SpecError(f"{len(experts)} expert given; give at least two models to compare")
    request = FileMerge(
        *("task_arithmetic", Path(base), tuple(map(Path, experts))),
        overrides=leave_overrides(leave),
        space="full",
    )
    job = request.open_job()
    labels = _short_labels([expert.label for expert in job.experts])
    total, base_square = _Sums(len(labels)), 0.0
    changes: list[TensorChange] = []
    rows: list[tuple[str, float, float]] = []
    overlaps: dict[tuple[int, int], list[_Overlap]] = {
        pair: [] for pair in combinations(range(len(labels)), 2)
    }
    names = [name for name in job.base.specs if job.acts_on(name)]
    for name in track(names, "experts", len(names)):
        sums, norm = _read(job, name, overlaps)
        total.merge(sums)
        base_square += norm**2
        rows.append((name, _spread(sums.products, norm), float(_cosines(sums.products).min())))
        norms = tuple(sums.products.diagonal().sqrt().tolist())
        changes.append(TensorChange(name, norm, norms, identical_pairs=_identical(sums.products)))
    log_merge_warnings(job, changes)
    lengths = total.products.diagonal().sqrt()
    tables = {
        "experts": _expert_table(labels, lengths, math.sqrt(base_square)),
        "tensors": pd.DataFrame(rows, columns=["tensor", "spread", "lowest_cosine"]).sort_values(
            "spread", ascending=False, kind="stable", ignore_index=True
        ),
    }
    pairs = _pair_table(labels, total, overlaps)

    def plot(axes: Sequence["Axes"]) -> None:
        _plot_norms(axes[0], tables["experts"])
        _plot_pairs(axes[1], labels, pairs, "cosine", (-1.0, 1.0))
        _plot_pairs(axes[2], labels, pairs, "sar", (0.0, 1.0))

    return Finding(pairs, _summarize(tables["experts"], pairs), plot, 3, tables)


def _read(
    job: MergeJob, name: str, overlaps: dict[tuple[int, int], list[_Overlap]]
) -> tuple[_Sums, float]:
    """The sums of one tensor and the norm of the base; adds the overlaps of a matrix."""
    spec, sums, square = job.base.specs[name], _Sums(len(job.experts)), 0.0
    is_matrix = tensor_action("matrix", name, spec) == MERGED
    step = spec.size if is_matrix else ENTRIES_PER_PIECE
    for start in range(0, spec.size, step):
        base, deltas, _ = read_deltas(job, name, start, start + step)
        piece = float(base.double().square().sum())
        square += piece if math.isfinite(piece) else 0.0
        sums.add(deltas)
        if is_matrix and deltas.any(dim=1).all():
            found = _overlaps(deltas.view(len(deltas), *spec.shape))
            for pair, value in found.items():
                overlaps[pair].append(value)
    return sums, math.sqrt(square)


def _overlaps(deltas: Tensor) -> dict[tuple[int, int], _Overlap]:
    """The overlap of every pair in one matrix that all experts changed."""
    rows, columns = deltas.shape[1:]
    triplets = [leading_triplets(delta, min(rows, columns)) for delta in deltas]
    ranks = [kept_rank(triplet.values, ENERGY) for triplet in triplets]
    found = {}
    for i, j in combinations(range(len(deltas)), 2):
        both = [sar(deltas[a], triplets[b].left[:, : ranks[b]]) for a, b in ((i, j), (j, i))]
        chance = sum((ranks[k] / rows) ** 0.5 for k in (i, j)) / 2
        count = max(1, min(DIMENSION, rows // 2, *(len(triplets[k].values) for k in (i, j))))
        angles = principal_angles(*(triplets[k].left[:, :count] for k in (i, j)))
        found[i, j] = _Overlap(sum(both) / 2, chance, float(angles.mean().rad2deg()))
    return found


def _cosines(products: Tensor) -> Tensor:
    """The cosines of all pairs; 0 for an expert that changed nothing."""
    norms = products.diagonal().sqrt()
    norms = norms.where(norms > 0, norms.new_ones(()))
    return products / norms / norms[:, None]


def _spread(products: Tensor, base: float) -> float:
    """How far the experts are from their mean, relative to the base; 0 for a base of zeros."""
    squares = float(products.diagonal().sum() - products.sum() / len(products))
    return math.sqrt(max(0.0, squares) / len(products)) / base if base else 0.0


def _identical(products: Tensor) -> frozenset[tuple[int, int]]:
    """The pairs with equal products, which equal deltas have."""
    pairs = combinations(range(len(products)), 2)
    return frozenset((i, j) for i, j in pairs if products[i, i] == products[j, j] == products[i, j])


def _short_labels(labels: Sequence[str]) -> list[str]:
    """The last parts of the paths, if they differ."""
    short = [Path(label).name for label in labels]
    return short if len(set(short)) == len(short) else list(labels)


def _expert_table(labels: Sequence[str], lengths: Tensor, base: float) -> pd.DataFrame:
    changed = lengths[lengths > 0]
    shortest = float(changed.min()) if len(changed) else 1.0
    return pd.DataFrame(
        [
            (label, length, length / base if base else math.nan, length / shortest)
            for label, length in zip(labels, lengths.tolist(), strict=True)
        ],
        columns=["expert", "norm", "of_base", "of_shortest"],
    )


def _pair_table(
    labels: Sequence[str], total: _Sums, overlaps: dict[tuple[int, int], list[_Overlap]]
) -> pd.DataFrame:
    cosines = _cosines(total.products)
    rows = []
    for (i, j), found in overlaps.items():
        signs = float(total.same[i, j] / total.both[i, j]) if total.both[i, j] else math.nan
        means = pd.DataFrame(found, columns=list(_Overlap._fields)).mean()
        rows.append((labels[i], labels[j], float(cosines[i, j]), signs, *means))
    return pd.DataFrame(rows, columns=["first", "second", "cosine", "signs", *_Overlap._fields])


def _summarize(experts: pd.DataFrame, pairs: pd.DataFrame) -> str:
    longest = experts.sort_values("norm").iloc[-1]
    parts = [
        f"changes of up to {longest['of_base']:.2g} times the base's norm; the longest "
        f"({longest['expert']}) has {longest['of_shortest']:.2g} times the norm of the shortest",
        f"cosine {pairs['cosine'].mean():.2f} on average",
        f"{pairs['signs'].mean():.0%} of signs agree (50% by chance)",
    ]
    if pairs["sar"].notna().any():
        parts.append(
            f"SAR {pairs['sar'].mean():.2f} ({pairs['chance'].mean():.2f} for random directions), "
            f"principal angles {pairs['angle'].mean():.0f}°"
        )
    return "; ".join(parts)


def _plot_norms(axes: "Axes", experts: pd.DataFrame) -> None:
    axes.bar(range(len(experts)), experts["norm"])
    axes.set_xticks(
        range(len(experts)), experts["expert"], rotation=45, ha="right", parse_math=False
    )
    axes.set_title("norms of the changes", fontsize=10)


def _plot_pairs(
    axes: "Axes",
    labels: Sequence[str],
    pairs: pd.DataFrame,
    column: str,
    limits: tuple[float, float],
) -> None:
    """A square of a value of all pairs, in gray on the diagonal."""
    square = torch.full((len(labels), len(labels)), math.nan)
    for row in pairs.to_dict("records"):
        i, j = labels.index(row["first"]), labels.index(row["second"])
        square[i, j] = square[j, i] = row[column]
        for x, y in ((i, j), (j, i)):
            if not math.isnan(row[column]):
                axes.text(x, y, f"{row[column]:.2f}", ha="center", va="center", fontsize=8)
    colors = "RdBu_r" if limits[0] < 0 else "Blues"
    axes.imshow(square.numpy(), cmap=colors, vmin=limits[0], vmax=limits[1], alpha=0.6)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set_title({"sar": "SAR, mean over matrices"}.get(column, column), fontsize=10)
