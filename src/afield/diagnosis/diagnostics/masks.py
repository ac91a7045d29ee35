"""What do the masks of DMG share, and which domains do they fit? See §7.1 and Table 4 of the paper.

    IoU(i, j)      of the channels that either domain's mask keeps (p > ½), the share that both keep
    useless        channels that no mask keeps;   shared: that all keep;   specific: that some keep
    accuracy       of the masks of every source, and of all masks together, on every domain

Sources are evaluated on their validation splits, unseen domains on their test splits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import COLORS, PALE, legend_below
from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.networks.masks import MaskedNetwork, hard_overlap
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Masks"]

# Domains shown.
MAX_DOMAINS = 10
ALL_MASKS = "all masks"
KINDS = ("shared", "specific", "useless")


@dataclass(frozen=True)
class Masks(Diagnostic):
    """Overlap and accuracy of the masks, on at most `samples` of each domain."""

    samples: Annotated[int, LogUniform(16, 10_000)] = 2000

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SpecError(f"masks.samples={self.samples}: must be at least 1")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute overlaps, kinds of channels, and accuracies."""
        finished = single_run(runs, "masks")
        if not isinstance(finished.model, MaskedNetwork):
            raise SpecError(
                f"masks takes runs of dmg; this is a run of {finished.record.run.method}"
            )
        overlap = pd.DataFrame(
            _overlaps(finished.model), columns=["layer", "first", "second", "iou"]
        )
        kinds = pd.DataFrame(_kinds(finished.model), columns=["layer", "kind", "channels", "share"])
        rows = list(self._accuracies(finished, finished.model))
        accuracy = pd.DataFrame(rows, columns=["masks", "domain", "seen", "accuracy"])

        def plot(axes: Sequence["Axes"]) -> None:
            _plot_overlap(axes[0], overlap)
            _plot_kinds(axes[1], kinds)
            _plot_accuracy(axes[2], accuracy)

        summary = _summarize(overlap, kinds, accuracy)
        return Finding(overlap, summary, plot, 3, {"kinds": kinds, "accuracy": accuracy})

    def _accuracies(
        self, finished: FinishedRun, model: MaskedNetwork
    ) -> Iterator[tuple[str, str, bool, float]]:
        names = finished.shown(MAX_DOMAINS)
        for name in track(names, "accuracies", len(names)):
            seen = name in model.domains
            samples = (finished.probes if seen else finished.domains)[name]
            generator = torch.Generator().manual_seed(finished.record.run.seed)
            index = torch.randperm(len(samples), generator=generator)[: self.samples]
            for masks, domain in (
                *zip(model.domains, range(MAX_DOMAINS), strict=False),
                (ALL_MASKS, None),
            ):
                predicted = finished.answers(model, samples, index, domain=domain)
                accuracy = (predicted == samples.y.cpu()[index]).double().mean()
                yield masks, name, seen, float(accuracy)


def _overlaps(model: MaskedNetwork) -> Iterator[tuple[str, str, str, float]]:
    pairs = list(combinations(model.domains, 2))
    for layer, p in zip(model.layers, model.probabilities(), strict=True):
        for (first, second), value in zip(pairs, hard_overlap(p).tolist(), strict=True):
            yield layer, first, second, value


def _kinds(model: MaskedNetwork) -> Iterator[tuple[str, str, int, float]]:
    for layer, p in zip(model.layers, model.probabilities(), strict=True):
        kept = (p > 0.5).sum(dim=0)
        shared, useless = int((kept == len(p)).sum()), int((kept == 0).sum())
        counts = {"shared": shared, "useless": useless, "specific": len(kept) - shared - useless}
        for kind in KINDS:
            yield layer, kind, counts[kind], counts[kind] / len(kept)


def _summarize(overlap: pd.DataFrame, kinds: pd.DataFrame, accuracy: pd.DataFrame) -> str:
    channels = kinds.groupby("kind")["channels"].sum()
    shares = (100 * channels / channels.sum()).round().astype(int)
    sentences = [
        f"of {channels.sum()} masked channels, {shares['shared']} % are kept by all sources, "
        f"{shares['specific']} % by some, {shares['useless']} % by none"
    ]
    if len(overlap):
        iou = 100 * overlap["iou"].mean()
        sentences.append(f"two masks share {iou:.0f} % of the channels that either keeps")
    on_sources = accuracy[accuracy["seen"]]
    masks = on_sources["masks"]
    matching = masks == on_sources["domain"]
    own = on_sources[matching]["accuracy"].mean()
    others = on_sources[~matching & (masks != ALL_MASKS)]["accuracy"]
    together = on_sources[masks == ALL_MASKS]["accuracy"].mean()
    means = f"accuracy on a source: {100 * own:.1f} % with its own masks"
    means += f", {100 * others.mean():.1f} % with those of another source" if len(others) else ""
    sentences.append(f"{means}, {100 * together:.1f} % with all masks together")
    return "; ".join(sentences)


def _plot_overlap(axes: "Axes", overlap: pd.DataFrame) -> None:
    layers = list(dict.fromkeys(overlap["layer"]))
    for x, layer in enumerate(layers):
        values = overlap[overlap["layer"] == layer]["iou"]
        axes.hlines(values.mean(), x - 0.3, x + 0.3, colors=COLORS[0], linewidth=3)
        axes.scatter([x] * len(values), values, color="k", s=10, zorder=3)
    axes.set_xticks(range(len(layers)), layers, fontsize=7)
    # The axis follows the data: overlaps of 0.93 and 0.98 would look alike on one from 0 to 1.
    axes.set(ylabel="IoU of two domains' masks")
    axes.set_title("overlap of masks (dots: pairs, line: mean)", fontsize=10)


def _plot_kinds(axes: "Axes", kinds: pd.DataFrame) -> None:
    layers = list(dict.fromkeys(kinds["layer"]))
    bottom = [0.0] * len(layers)
    colors = {"shared": COLORS[2], "specific": COLORS[1], "useless": PALE}
    for kind in KINDS:
        shares = kinds[kinds["kind"] == kind]["share"].tolist()
        axes.bar(range(len(layers)), shares, bottom=bottom, label=kind, color=colors[kind])
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    axes.set_xticks(range(len(layers)), layers, fontsize=7)
    axes.set(ylim=(0, 1), ylabel="share of the channels")
    legend_below(axes, columns=3)
    axes.set_title("channels kept by all, some, none", fontsize=10)


def _plot_accuracy(axes: "Axes", accuracy: pd.DataFrame) -> None:
    masks, domains = (list(dict.fromkeys(accuracy[name])) for name in ("masks", "domain"))
    table = accuracy.pivot_table(index="masks", columns="domain", values="accuracy")
    square = 100 * table.loc[masks, domains].to_numpy()
    axes.imshow(square, cmap="viridis", aspect="auto")
    unseen = set(accuracy[~accuracy["seen"]]["domain"])
    labels = [f"{name} (unseen)" if name in unseen else name for name in domains]
    axes.set_xticks(range(len(domains)), labels, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(masks)), masks, parse_math=False)
    middle = (square.min() + square.max()) / 2
    for i, row in enumerate(square):
        for j, value in enumerate(row):
            color = "white" if value < middle else "black"
            weight = "bold" if masks[i] == domains[j] else "normal"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(j, i, f"{value:.1f}", color=color, weight=weight, **style)
    axes.set_title("accuracy (%) of masks on domains", fontsize=10)
