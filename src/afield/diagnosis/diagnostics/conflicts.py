"""What does SCORE keep? The kept part of every matrix, and Fig. 3 of its paper (Chaves et al.).

    M_d = U⊥ᵀ Δ_d V⊥ what expert d changed, in the basis all share
    kept             of the entries beside the diagonals of all M_d, the share within the threshold
    energy kept      of the squares of these entries
    on diagonal      of the squares of all entries, those on which the experts agree
    conflict         of the squares of all entries, those that the trim takes away

The picture is of Σ_d |M_d| before and after the trim, with one logarithmic scale of colours.
Looks at the experts of any merged run, as SCORE would merge them with these settings (one of score:
as it did, but for those that are given here).

Fig. 3 shows the sum itself, before the trim: there, what experts want in opposite directions is not
seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.merged_runs import (
    changed_matrices,
    check_matrices,
    check_merged,
    matrix_deltas,
)
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import Uniform, Variant, defaults
from afield.merging.merges.score import Center, agreement_mask, score
from afield.merging.spectral import full_precision, shared_basis
from afield.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Conflicts"]

# Layers that are shown at most, and those that have their names at the bars.
MAX_LAYERS_SHOWN, MAX_LAYERS_NAMED = 7, 14
# Experts that have their names at the pictures, letters of these in a line, and of a layer's name.
MAX_EXPERTS_NAMED, LABEL_LINE_LENGTH, LAYER_NAME_LENGTH = 6, 24, 28
# Colours go over so many orders of magnitude.
DECADES = 3
COUNTS = ("entries", "kept entries", "diagonal", "beside", "kept beside")


class _Trim(NamedTuple):
    """Which entries are trimmed: further than so many standard deviations from where."""

    width: float
    center: Center
    told: str


class _Picture(NamedTuple):
    """One matrix in the shared basis, before and after the trim."""

    layer: str
    before: Tensor
    after: Tensor
    blocks: int  # directions of each expert; 0 if they have not equally many


@dataclass(frozen=True)
class Conflicts(Diagnostic):
    """What SCORE keeps of every matrix; pictures of `layers`, or of the largest and the worst."""

    tau: Annotated[float | None, Uniform(0.5, 3.0)] = None
    divide_by_domains: Annotated[bool | None, Variant((True, False))] = None
    center: Annotated[Center | None, Variant(("mean", "zero"))] = None
    layers: Annotated[tuple[str, ...], Variant(((),))] = ()

    def __post_init__(self) -> None:
        if self.tau is not None and self.tau < 0:
            raise SpecError(f"conflicts.tau={self.tau}: must not be below 0")
        if len(self.layers) > MAX_LAYERS_SHOWN:
            raise SpecError(
                f"conflicts.layers: {len(self.layers)} are too many; at most {MAX_LAYERS_SHOWN}"
            )

    @full_precision()
    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """The numbers of every matrix, and pictures of some."""
        subject = single_run(subjects, "conflicts")
        check_merged(subject, "conflicts", experts=2)
        names, trim = changed_matrices(subject), self._trim(subject)
        check_matrices(names, self.layers, "conflicts.layers")
        rows = []
        for name, deltas in track(
            zip(names, matrix_deltas(subject, names), strict=True), "conflicts", len(names)
        ):
            rows += [(name, *row) for row in _counted(deltas, list(subject.experts), trim)]
        counts = pd.DataFrame(rows, columns=["layer", "rows", "columns", "expert", *COUNTS])
        data = _shares(counts, ["layer", "rows", "columns"])
        shown = list(dict.fromkeys(self.layers)) or _remarkable(data)
        pictures = [
            _picture(name, deltas, trim)
            for name, deltas in zip(shown, matrix_deltas(subject, shown), strict=True)
        ]

        def paint(axes: Sequence["Axes"]) -> None:
            bars, rest = _arranged(axes, len(shown))
            _paint_kept(bars[0], data)
            _paint_energy(bars[1], data)
            for number, picture in enumerate(pictures):
                _paint_pair(rest[2 * number :][:2], picture, list(subject.experts))

        more = {"experts": _shares(counts, ["layer", "expert"])}
        told = _told(data, _shares(counts.assign(all=1), ["all"]).iloc[0], trim)
        return Finding(data, told, paint, 2 + 2 * len(shown), more)

    def _trim(self, subject: FinishedRun) -> _Trim:
        """The settings: those given, the run's own where it is of score, and the usual ones."""
        run = subject.record.run
        values = {**defaults(score), **(run.params if run.method == "score" else {})}
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {name: value for name, value in own.items() if value is not None}
        experts = len(subject.experts) if values["divide_by_domains"] else 1
        told = f"{values['tau']:g} σ" + f" / {experts}" * (experts > 1)
        return _Trim(values["tau"] / experts, values["center"], told)


def _squares(deltas: Tensor) -> Iterator[Tensor]:
    """The deltas in the basis that they share, as SCORE has them."""
    left, _, right = shared_basis(deltas, exact=False)
    for delta in deltas:
        yield torch.linalg.multi_dot([left.mT, delta, right])


def _agreeing(square: Tensor, trim: _Trim) -> tuple[Tensor, Tensor]:
    """Which entries are beside the diagonal, and which of them stay."""
    beside = ~torch.eye(len(square), dtype=torch.bool, device=square.device)
    if len(square) < 2:
        return beside, beside
    return beside, beside & agreement_mask(square * beside, width=trim.width, center=trim.center)


def _counted(
    deltas: Tensor, experts: list[str], trim: _Trim
) -> Iterator[tuple[int | float | str, ...]]:
    """For each expert, entries beside the diagonal before and after the trim, and the energies."""
    for name, square in zip(experts, _squares(deltas), strict=True):
        energy, (beside, stays) = square.double().square(), _agreeing(square, trim)
        squares = (float(part.sum()) for part in (energy.diagonal(), energy[beside], energy[stays]))
        yield *deltas.shape[1:], name, int(beside.sum()), int(stays.sum()), *squares


def _shares(counts: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The shares, from sums over rows; where there is nothing beside a diagonal, all is kept."""
    total = counts.groupby(by, sort=False)[list(COUNTS)].sum()
    energy = total["diagonal"] + total["beside"]
    kept = (total["kept entries"] / total["entries"]).fillna(1.0)
    found = {
        "kept": kept,
        "energy kept": (total["kept beside"] / total["beside"]).fillna(1.0),
        "on diagonal": total["diagonal"] / energy,
        "conflict": (total["beside"] - total["kept beside"]) / energy,
    }
    return pd.DataFrame(found).reset_index()


def _remarkable(data: pd.DataFrame) -> list[str]:
    """The largest matrix, and the one of most conflict among the others."""
    sizes = (data["rows"] * data["columns"]).to_numpy()
    first = str(data["layer"].iloc[int(sizes.argmax())])
    others = data[data["layer"] != first].sort_values("conflict", kind="stable")
    return [first, *map(str, others["layer"].iloc[-1:])]


def _picture(name: str, deltas: Tensor, trim: _Trim) -> _Picture:
    before = after = torch.zeros(())
    for square in _squares(deltas):
        beside, stays = _agreeing(square, trim)
        before = before + square.abs()
        after = after + square.abs() * (stays | ~beside)
    share = max(1, min(deltas.shape[1:]) // len(deltas))
    whole = len(before) == share * len(deltas)
    return _Picture(name, before.cpu(), after.cpu(), share if whole else 0)


def _told(data: pd.DataFrame, total: "pd.Series[float]", trim: _Trim) -> str:
    worst = data.sort_values("conflict").iloc[-1]
    center = "the mean" if trim.center == "mean" else "0"
    return (
        f"SCORE within {trim.told} of {center} keeps {100 * total['kept']:.0f} % of the entries "
        f"beside the diagonal, with {100 * total['energy kept']:.1f} % of their energy; "
        f"{100 * total['on diagonal']:.0f} % of all energy is on the diagonal, "
        f"{100 * total['conflict']:.0f} % is taken away, most in {worst['layer']} "
        f"({100 * worst['conflict']:.0f} %)"
    )


def _arranged(
    axes: Sequence["Axes"], layers: int
) -> tuple[tuple["Axes", "Axes"], Sequence["Axes"]]:
    """The panels of bars, and those of pairs: of two layers, each has a row."""
    if layers == 2:
        return (axes[0], axes[3]), (*axes[1:3], *axes[4:])
    return (axes[0], axes[1]), axes[2:]


def _paint_kept(axes: "Axes", data: pd.DataFrame) -> None:
    places = pd.Series(range(len(data)))
    axes.barh(places - 0.2, 100 * data["kept"], 0.4, color="tab:blue", label="entries")
    axes.barh(places + 0.2, 100 * data["energy kept"], 0.4, color="tab:cyan", label="their energy")
    _settle(axes, data, "kept beside the diagonal")


def _paint_energy(axes: "Axes", data: pd.DataFrame) -> None:
    parts = {
        "diagonal": (data["on diagonal"], "tab:green"),
        "kept beside": (1 - data["on diagonal"] - data["conflict"], "tab:cyan"),
        "taken away": (data["conflict"], "tab:red"),
    }
    left = 0 * data["conflict"]
    for label, (share, colour) in parts.items():
        axes.barh(range(len(data)), 100 * share, 0.8, left=100 * left, color=colour, label=label)
        left = left + share
    _settle(axes, data, "energy in the shared basis")


def _settle(axes: "Axes", data: pd.DataFrame, title: str) -> None:
    if len(data) <= MAX_LAYERS_NAMED:
        axes.set_yticks(range(len(data)), map(_short, data["layer"]), fontsize=7, parse_math=False)
    else:
        axes.set_ylabel("matrix, in the network's order")
    axes.set(xlim=(0, 100), ylim=(len(data) - 0.5, -0.5), xlabel="%")
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _paint_pair(axes: Sequence["Axes"], picture: _Picture, experts: list[str]) -> None:
    from matplotlib.colors import LogNorm

    largest = float(picture.before.max())
    norm = LogNorm(largest / 10**DECADES, largest)
    titles = (f"{_short(picture.layer)}: Σ|M|", "after the trim (grey: all taken away)")
    crowded = len("".join(experts)) > LABEL_LINE_LENGTH
    for each, square, title in zip(axes, (picture.before, picture.after), titles, strict=True):
        shown = square.clamp(min=norm.vmin).where(square > 0, torch.nan)
        image = each.imshow(shown.numpy(), cmap="magma", norm=norm, interpolation="nearest")
        each.set_facecolor("lightgrey")
        each.set_title(title, fontsize=9, parse_math=False)
        middles = [picture.blocks * (number + 0.5) - 0.5 for number in range(len(experts))]
        if picture.blocks and len(experts) <= MAX_EXPERTS_NAMED:
            turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if crowded else {}
            each.set_xticks(middles, experts, fontsize=7, parse_math=False, **turned)
            each.set_yticks(middles, experts, fontsize=7, parse_math=False)
        each.figure.colorbar(image, ax=each, shrink=0.8)


def _short(layer: str) -> str:
    return layer if len(layer) <= LAYER_NAME_LENGTH else f"…{layer[1 - LAYER_NAME_LENGTH :]}"
