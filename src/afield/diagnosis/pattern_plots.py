"""Panels of the diagnostic `patterns`: maps of samples, agreement, history and contact sheets."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from afield.data.images import to_rgb
from afield.diagnosis.figure_style import COLORS, legend_below
from afield.experiments.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PanelPlot", "contact_sheet", "plot_agreement", "plot_history", "plot_map"]

# Columns and rows of a contact sheet, and the height of a row with its captions.
SHEET_GRID, ROW_HEIGHT = (5, 3), 1.42

PanelPlot = Callable[["Axes"], None]


def plot_map(axes: "Axes", table: pd.DataFrame, view: str, title: str) -> None:
    """Draw the t-SNE map of a view, colored by loss."""
    mapped = table.dropna(subset=[f"{view}_x"])
    mapped = mapped.assign(rank=mapped["loss"].rank(pct=True))
    for seen, rows in mapped.groupby("seen"):
        drawn = axes.scatter(
            rows[f"{view}_x"],
            rows[f"{view}_y"],
            c=rows["rank"],
            marker="o" if seen else "^",
            s=14 if seen else 22,
            linewidths=0,
            vmin=0,
            vmax=1,
            label="trained on" if seen else "unseen",
        )
    axes.figure.colorbar(drawn, ax=axes, label="loss, by rank")
    for handle in legend_below(axes).legend_handles:
        # Colors mean the loss, so the legend has none.
        handle.set(array=None, color="gray")  # type: ignore[union-attr]
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)


def plot_agreement(axes: "Axes", agreement: pd.DataFrame) -> None:
    """Draw the CCT of every pair of views as bars, with its chance level."""
    pairs = zip(agreement["first"], agreement["second"], strict=True)
    labels = [a if a == b else f"{a} → {b}" for a, b in pairs]
    rows = range(len(labels))
    axes.barh(rows, agreement["cct"], label="CCT")
    axes.scatter(agreement["chance"], rows, color="k", marker="|", s=160, label="chance")
    axes.set_yticks(rows, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    legend_below(axes)
    axes.set_title("do clusters of two views agree?", fontsize=10)


def plot_history(axes: "Axes", history: pd.DataFrame, deployed: int) -> None:
    """Draw the accuracy of every category over training; `deployed` is the deployed step."""
    from matplotlib import colormaps

    categories = sorted(history["category"].unique().tolist())
    for category in categories:
        color = colormaps["viridis"]((category - 1) / max(1, len(categories) - 1))
        for seen, style in ((True, "-"), (False, "--")):
            rows = history[(history["category"] == category) & (history["seen"] == seen)]
            curve = 100 * rows.groupby("step")["accuracy"].mean()
            label = f"category {category}" if seen else None
            axes.plot(curve.index, curve, style, color=color, label=label, linewidth=1.4)
    axes.axvline(deployed, color="gray", linestyle=":", linewidth=1)
    axes.set(xlabel="step (dotted: deployed)", ylabel="accuracy (%)", ylim=(0, 102))
    legend_below(axes, title="dashed: unseen", title_fontsize=7)
    axes.set_title("accuracy of each seed category", fontsize=10)


def contact_sheet(finished: FinishedRun, name: str, table: pd.DataFrame) -> PanelPlot:
    """A panel of the images of a domain with the highest losses, their classes and predictions."""
    hardest = table[table["domain"] == name].nlargest(SHEET_GRID[0] * SHEET_GRID[1], "loss")
    x = finished.domains[name].x
    (chosen,) = x.chunks(len(hardest), torch.tensor(hardest["place"].tolist()))
    images = [to_rgb(image) for image in finished.modality.upright(chosen.cpu())]
    unseen = "" if name in finished.record.run.sources else " (unseen)"
    title = f"highest losses in {_short(name, 24)}{unseen}"
    return lambda axes: _plot_sheet(axes, title, images, hardest)


def _plot_sheet(axes: "Axes", title: str, images: Sequence[Any], samples: pd.DataFrame) -> None:
    columns, rows = SHEET_GRID
    style: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "top", "parse_math": False}
    predictions = zip(samples["class"], samples["answer"], samples["right"], strict=True)
    for i, (image, (label, predicted, right)) in enumerate(zip(images, predictions, strict=True)):
        top, left = ROW_HEIGHT * (i // columns), i % columns
        extent = (left, left + 0.94, top + 0.94, top)
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent)
        caption = _short(label, 13) + ("" if right else f"\n→ {_short(predicted, 12)}")
        color = "black" if right else COLORS[5]
        axes.text(left + 0.47, top + 0.97, caption, color=color, **style)
    axes.set(xlim=(0, columns), ylim=(ROW_HEIGHT * rows, 0), aspect="auto")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10, parse_math=False)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
