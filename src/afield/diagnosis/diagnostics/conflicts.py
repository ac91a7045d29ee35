"""What does SCORE keep? The kept share of every matrix, and Fig. 3 of its paper (Chaves et al.).

    M_d = U⊥ᵀ Δ_d V⊥ the delta of expert d in the shared basis
    kept             share of the off-diagonal entries of all M_d that are within the threshold
    energy kept      share of the sum of squares of these entries
    on diagonal      share of the sum of squares of all entries that is on the diagonal, where the
                     experts agree
    conflict         share of the sum of squares of all entries that the trim removes

The figure shows Σ_d |M_d| before and after the trim, on one logarithmic color scale. It examines
the experts of any merged run as SCORE would merge them with these settings. For a run of score,
settings that are not given here are those of the run.

Fig. 3 shows the sum itself before the trim, where opposite changes of experts cancel out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import COLORS, PALE, legend_below
from afield.diagnosis.merged_runs import (
    changed_matrices,
    check_matrices,
    check_merged,
    matrix_deltas,
)
from afield.errors import SpecError
from afield.hyperparameters import Uniform, Variant, defaults
from afield.merging.merges.score import Center, agreement_mask, score
from afield.merging.spectral import full_precision, shared_basis
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Conflicts"]

# The most layers with a figure, and the most layers whose bars have labels.
MAX_LAYERS_SHOWN, MAX_LAYERS_NAMED = 7, 14
# The most experts with labels, and the most characters of their labels and of a layer's name.
MAX_EXPERTS_NAMED, LABEL_LINE_LENGTH, LAYER_NAME_LENGTH = 6, 24, 28
# Orders of magnitude that the color scale covers.
DECADES = 3
COUNTS = ("entries", "kept entries", "diagonal", "off diagonal", "kept off diagonal")


class _Trim(NamedTuple):
    """The trim removes entries further than `width` standard deviations from the center."""

    width: float
    center: Center
    description: str


class _Heatmaps(NamedTuple):
    """One matrix in the shared basis, before and after the trim."""

    layer: str
    before: Tensor
    after: Tensor
    block: int  # directions of each expert; 0 if their numbers differ


@dataclass(frozen=True)
class Conflicts(Diagnostic):
    """What SCORE keeps of every matrix; heatmaps of `layers`, or of the largest and the worst."""

    tau: Annotated[float | None, Uniform(0.5, 3.0)] = None
    divide_by_domains: Annotated[bool | None, Variant((True, False))] = None
    center: Annotated[Center | None, Variant(("mean", "zero"))] = None
    layers: Annotated[tuple[str, ...], Variant(((),))] = ()

    def __post_init__(self) -> None:
        if self.tau is not None and self.tau < 0:
            raise SpecError(f"conflicts.tau={self.tau}: must be at least 0")
        if len(self.layers) > MAX_LAYERS_SHOWN:
            raise SpecError(
                f"conflicts.layers: {len(self.layers)} layers, but at most {MAX_LAYERS_SHOWN} fit"
            )

    @full_precision()
    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute the numbers of every matrix, and heatmaps of some."""
        finished = single_run(runs, "conflicts")
        check_merged(finished, "conflicts", experts=2)
        names, trim = changed_matrices(finished), self._trim(finished)
        check_matrices(names, self.layers, "conflicts.layers")
        rows = []
        for name, deltas in track(
            zip(names, matrix_deltas(finished, names), strict=True), "conflicts", len(names)
        ):
            rows += [(name, *row) for row in _count_entries(deltas, list(finished.experts), trim)]
        counts = pd.DataFrame(rows, columns=["layer", "rows", "columns", "expert", *COUNTS])
        data = _shares(counts, ["layer", "rows", "columns"])
        shown = list(dict.fromkeys(self.layers)) or _notable_layers(data)
        heatmaps = [
            _heatmaps(name, deltas, trim)
            for name, deltas in zip(shown, matrix_deltas(finished, shown), strict=True)
        ]

        def plot(axes: Sequence["Axes"]) -> None:
            bars, rest = _arrange(axes, len(shown))
            _plot_kept(bars[0], data)
            _plot_energy(bars[1], data)
            for number, pair in enumerate(heatmaps):
                _plot_pair(rest[2 * number :][:2], pair, list(finished.experts))

        extra = {"experts": _shares(counts, ["layer", "expert"])}
        summary = _summarize(data, _shares(counts.assign(all=1), ["all"]).iloc[0], trim)
        return Finding(data, summary, plot, 2 + 2 * len(shown), extra)

    def _trim(self, finished: FinishedRun) -> _Trim:
        """The settings given here, otherwise those of a run of score, otherwise the defaults."""
        run = finished.record.run
        values = {**defaults(score), **(run.params if run.method == "score" else {})}
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: value for name, value in chosen.items() if value is not None}
        experts = len(finished.experts) if values["divide_by_domains"] else 1
        description = f"{values['tau']:g} σ" + f" / {experts}" * (experts > 1)
        return _Trim(values["tau"] / experts, values["center"], description)


def _squares(deltas: Tensor) -> Iterator[Tensor]:
    """The deltas in their shared basis, as in SCORE."""
    left, _, right = shared_basis(deltas, exact=False)
    for delta in deltas:
        yield torch.linalg.multi_dot([left.mT, delta, right])


def _trim_masks(square: Tensor, trim: _Trim) -> tuple[Tensor, Tensor]:
    """Which entries are off the diagonal, and which of them the trim keeps."""
    off = ~torch.eye(len(square), dtype=torch.bool, device=square.device)
    if len(square) < 2:
        return off, off
    return off, off & agreement_mask(square * off, width=trim.width, center=trim.center)


def _count_entries(
    deltas: Tensor, experts: list[str], trim: _Trim
) -> Iterator[tuple[int | float | str, ...]]:
    """For each expert, off-diagonal entries before and after the trim, and the energies."""
    for name, square in zip(experts, _squares(deltas), strict=True):
        energy, (off, kept) = square.double().square(), _trim_masks(square, trim)
        sums = (float(values.sum()) for values in (energy.diagonal(), energy[off], energy[kept]))
        yield *deltas.shape[1:], name, int(off.sum()), int(kept.sum()), *sums


def _shares(counts: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The shares, from sums over rows; a matrix without off-diagonal entries keeps all."""
    total = counts.groupby(by, sort=False)[list(COUNTS)].sum()
    energy = total["diagonal"] + total["off diagonal"]
    kept = (total["kept entries"] / total["entries"]).fillna(1.0)
    shares = {
        "kept": kept,
        "energy kept": (total["kept off diagonal"] / total["off diagonal"]).fillna(1.0),
        "on diagonal": total["diagonal"] / energy,
        "conflict": (total["off diagonal"] - total["kept off diagonal"]) / energy,
    }
    return pd.DataFrame(shares).reset_index()


def _notable_layers(data: pd.DataFrame) -> list[str]:
    """The largest matrix, and the one with the most conflict among the others."""
    sizes = (data["rows"] * data["columns"]).to_numpy()
    first = str(data["layer"].iloc[int(sizes.argmax())])
    others = data[data["layer"] != first].sort_values("conflict", kind="stable")
    return [first, *map(str, others["layer"].iloc[-1:])]


def _heatmaps(name: str, deltas: Tensor, trim: _Trim) -> _Heatmaps:
    before = after = torch.zeros(())
    for square in _squares(deltas):
        off, kept = _trim_masks(square, trim)
        before = before + square.abs()
        after = after + square.abs() * (kept | ~off)
    block = max(1, min(deltas.shape[1:]) // len(deltas))
    equal = len(before) == block * len(deltas)
    return _Heatmaps(name, before.cpu(), after.cpu(), block if equal else 0)


def _summarize(data: pd.DataFrame, total: "pd.Series[float]", trim: _Trim) -> str:
    worst = data.sort_values("conflict").iloc[-1]
    center = "the mean" if trim.center == "mean" else "0"
    return (
        f"SCORE within {trim.description} of {center} keeps {100 * total['kept']:.0f} % of the "
        f"off-diagonal entries, with {100 * total['energy kept']:.1f} % of their energy; "
        f"{100 * total['on diagonal']:.0f} % of all energy is on the diagonal, and "
        f"{100 * total['conflict']:.0f} % is removed, most in {worst['layer']} "
        f"({100 * worst['conflict']:.0f} %)"
    )


def _arrange(axes: Sequence["Axes"], layers: int) -> tuple[tuple["Axes", "Axes"], Sequence["Axes"]]:
    """The panels of the bars and of the heatmaps; with two layers, each layer has a row."""
    if layers == 2:
        return (axes[0], axes[3]), (*axes[1:3], *axes[4:])
    return (axes[0], axes[1]), axes[2:]


def _plot_kept(axes: "Axes", data: pd.DataFrame) -> None:
    rows = pd.Series(range(len(data)))
    axes.barh(rows - 0.2, 100 * data["kept"], 0.4, color=COLORS[0], label="entries")
    axes.barh(rows + 0.2, 100 * data["energy kept"], 0.4, color=COLORS[1], label="their energy")
    _label(axes, data, "kept off the diagonal")


def _plot_energy(axes: "Axes", data: pd.DataFrame) -> None:
    parts = {
        "diagonal": (data["on diagonal"], COLORS[2]),
        "kept off diagonal": (1 - data["on diagonal"] - data["conflict"], COLORS[1]),
        "removed": (data["conflict"], COLORS[3]),
    }
    left = 0 * data["conflict"]
    for label, (share, color) in parts.items():
        axes.barh(range(len(data)), 100 * share, 0.8, left=100 * left, color=color, label=label)
        left = left + share
    _label(axes, data, "energy in the shared basis")


def _label(axes: "Axes", data: pd.DataFrame, title: str) -> None:
    if len(data) <= MAX_LAYERS_NAMED:
        axes.set_yticks(range(len(data)), map(_short, data["layer"]), fontsize=7, parse_math=False)
    else:
        axes.set_ylabel("matrix, in the order of the network")
    # The bars of one or two matrices are no thicker than those of four.
    room = 0.5 + max(0, 4 - len(data)) / 2
    axes.set(xlim=(0, 100), ylim=(len(data) - 1 + room, -room), xlabel="%")
    axes.set_title(title, fontsize=10)
    legend_below(axes, columns=3)


def _plot_pair(axes: Sequence["Axes"], heatmaps: _Heatmaps, experts: list[str]) -> None:
    from matplotlib.colors import LogNorm

    largest = float(heatmaps.before.max())
    norm = LogNorm(largest / 10**DECADES, largest)
    titles = (f"{_short(heatmaps.layer)}: Σ|M|", "after the trim (gray: all removed)")
    crowded = len("".join(experts)) > LABEL_LINE_LENGTH
    for panel, square, title in zip(axes, (heatmaps.before, heatmaps.after), titles, strict=True):
        shown = square.clamp(min=norm.vmin).where(square > 0, torch.nan)
        image = panel.imshow(shown.numpy(), cmap="magma", norm=norm, interpolation="nearest")
        panel.set_facecolor(PALE)
        panel.set_title(title, fontsize=9, parse_math=False)
        middles = [heatmaps.block * (number + 0.5) - 0.5 for number in range(len(experts))]
        if heatmaps.block and len(experts) <= MAX_EXPERTS_NAMED:
            style: dict[str, Any] = {"rotation": 45, "ha": "right"} if crowded else {}
            panel.set_xticks(middles, experts, fontsize=7, parse_math=False, **style)
            panel.set_yticks(middles, experts, fontsize=7, parse_math=False)
        panel.figure.colorbar(image, ax=panel, shrink=0.8)


def _short(layer: str) -> str:
    return layer if len(layer) <= LAYER_NAME_LENGTH else f"…{layer[1 - LAYER_NAME_LENGTH :]}"
