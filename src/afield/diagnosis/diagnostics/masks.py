"""What do the masks of DMG share, and whom do they serve? As in §7.1 and Table 4 of its paper.

    IoU(i, j)      of the channels that either domain's mask keeps (p > ½), the share that both keep
    useless        channels that no mask keeps;   shared: that all keep;   specific: that some keep
    accuracy       of every source's masks, and of all together, on every domain

Sources are read on their probe parts, which were not trained on, unseen domains on their main ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform
from afield.networks.masks import MaskedNetwork, hard_overlap
from afield.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Masks"]

# Domains that are shown.
MAX_DOMAINS = 10
ALL_MASKS = "all masks"
KINDS = ("shared", "specific", "useless")


@dataclass(frozen=True)
class Masks(Diagnostic):
    """What masks share and whom they serve, on at most so many `samples` of each domain."""

    samples: Annotated[int, LogUniform(16, 10_000)] = 2000

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SpecError(f"masks.samples={self.samples}: must be above 0")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Overlaps, kinds of channels, and accuracies."""
        subject = single_run(subjects, "masks")
        if not isinstance(subject.model, MaskedNetwork):
            raise SpecError(
                f"masks looks at runs of dmg; this is one of {subject.record.run.method}"
            )
        overlap = pd.DataFrame(
            _overlaps(subject.model), columns=["layer", "first", "second", "iou"]
        )
        kinds = pd.DataFrame(_kinds(subject.model), columns=["layer", "kind", "channels", "share"])
        rows = list(self._accuracies(subject, subject.model))
        accuracy = pd.DataFrame(rows, columns=["masks", "domain", "seen", "accuracy"])

        def paint(axes: Sequence["Axes"]) -> None:
            _paint_overlap(axes[0], overlap)
            _paint_kinds(axes[1], kinds)
            _paint_accuracy(axes[2], accuracy)

        told = _told(overlap, kinds, accuracy)
        return Finding(overlap, told, paint, 3, {"kinds": kinds, "accuracy": accuracy})

    def _accuracies(
        self, subject: FinishedRun, model: MaskedNetwork
    ) -> Iterator[tuple[str, str, bool, float]]:
        names = subject.shown(MAX_DOMAINS)
        for name in track(names, "accuracies", len(names)):
            seen = name in model.domains
            chosen = (subject.probes if seen else subject.domains)[name]
            generator = torch.Generator().manual_seed(subject.record.run.seed)
            index = torch.randperm(len(chosen), generator=generator)[: self.samples]
            for masks, domain in (
                *zip(model.domains, range(MAX_DOMAINS), strict=False),
                (ALL_MASKS, None),
            ):
                answers = subject.answers(model, chosen, index, domain=domain)
                right = (answers == chosen.y.cpu()[index]).double().mean()
                yield masks, name, seen, float(right)


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


def _told(overlap: pd.DataFrame, kinds: pd.DataFrame, accuracy: pd.DataFrame) -> str:
    channels = kinds.groupby("kind")["channels"].sum()
    shares = (100 * channels / channels.sum()).round().astype(int)
    parts = [
        f"of {channels.sum()} masked channels all sources keep {shares['shared']} %, some "
        f"{shares['specific']} %, none {shares['useless']} %"
    ]
    if len(overlap):
        parts.append(f"two masks share {100 * overlap['iou'].mean():.0f} % of what either keeps")
    home = accuracy[accuracy["seen"]]
    own = home[home["masks"] == home["domain"]]["accuracy"].mean()
    others = home[(home["masks"] != home["domain"]) & (home["masks"] != ALL_MASKS)]["accuracy"]
    together = home[home["masks"] == ALL_MASKS]["accuracy"].mean()
    told = f"on a source its own masks are {100 * own:.1f} % right"
    told += f", another source's {100 * others.mean():.1f} %" if len(others) else ""
    parts.append(f"{told}, all together {100 * together:.1f} %")
    return "; ".join(parts)


def _paint_overlap(axes: "Axes", overlap: pd.DataFrame) -> None:
    layers = list(dict.fromkeys(overlap["layer"]))
    for place, layer in enumerate(layers):
        values = overlap[overlap["layer"] == layer]["iou"]
        axes.bar(place, values.mean(), color="tab:blue", alpha=0.5)
        axes.scatter([place] * len(values), values, color="k", s=10, zorder=3)
    axes.set_xticks(range(len(layers)), layers, fontsize=7)
    axes.set(ylim=(0, 1), ylabel="IoU of two domains' masks")
    axes.set_title("what masks share (dots: pairs)", fontsize=10)


def _paint_kinds(axes: "Axes", kinds: pd.DataFrame) -> None:
    layers = list(dict.fromkeys(kinds["layer"]))
    bottom = [0.0] * len(layers)
    colours = {"shared": "tab:green", "specific": "tab:orange", "useless": "lightgrey"}
    for kind in KINDS:
        shares = kinds[kinds["kind"] == kind]["share"].tolist()
        axes.bar(range(len(layers)), shares, bottom=bottom, label=kind, color=colours[kind])
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    axes.set_xticks(range(len(layers)), layers, fontsize=7)
    axes.set(ylim=(0, 1), ylabel="share of the channels")
    axes.legend(fontsize=7)
    axes.set_title("channels kept by all, some, none", fontsize=10)


def _paint_accuracy(axes: "Axes", accuracy: pd.DataFrame) -> None:
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
            colour = "white" if value < middle else "black"
            weight = "bold" if masks[i] == domains[j] else "normal"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
            axes.text(j, i, f"{value:.1f}", color=colour, weight=weight, **style)
    axes.set_title("accuracy (%) of masks on domains", fontsize=10)
