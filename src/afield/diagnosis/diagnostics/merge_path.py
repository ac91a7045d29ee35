"""Which scale is best? Accuracy along the line from the base through the merged model.

    weights(s) = base + s · (merged - base)      s = 0: the base;   1: as merged;   > 1: beyond

The option `--scale` of a merge chooses this scale. Sources are evaluated on their validation
splits, which no expert was trained on, and unseen domains on their test splits. The best scale is
the one with the best mean over the sources, and among equals the one nearest to 1. All
floating-point tensors are scaled, but running statistics stay between base and merged model.
Integers stay as merged.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import color_of, legend_below
from afield.diagnosis.merged_runs import check_merged
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MergePath"]

# Unseen domains in the summary, and sources with a curve of their own.
MAX_UNSEEN_LISTED, MAX_SOURCE_CURVES = 3, 10


@dataclass(frozen=True)
class MergePath(Diagnostic):
    """Accuracy at `points` scales up to `furthest`, on at most `samples` of each domain."""

    points: Annotated[int, LogUniform(5, 101)] = 21
    furthest: Annotated[float, Uniform(1.0, 3.0)] = 2.0
    samples: Annotated[int, LogUniform(16, 10_000)] = 2000

    def __post_init__(self) -> None:
        if self.points < 2:
            raise SpecError(f"merge_path.points={self.points}: must be at least 2")
        if self.furthest <= 0:
            raise SpecError(f"merge_path.furthest={self.furthest}: must be above 0")
        if self.samples < 1:
            raise SpecError(f"merge_path.samples={self.samples}: must be at least 1")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute the accuracies on all domains at every scale, including 1."""
        finished = single_run(runs, "merge_path")
        check_merged(finished, "merge_path")
        merged = {
            name: value.to("cpu", copy=True) for name, value in finished.model.state_dict().items()
        }
        if all(torch.equal(value, finished.base[name]) for name, value in merged.items()):
            method = finished.record.run.method
            raise SpecError(f"merge_path: {method} equals its base; choose another merge")
        grid = [self.furthest * point / (self.points - 1) for point in range(self.points)]
        scales = sorted({*grid, 1.0})
        model, rows = copy.deepcopy(finished.model), []
        for scale in track(scales, "scales", len(scales)):
            model.load_state_dict(interpolate_weights(finished.base, merged, scale))
            rows += [(scale, *row) for row in self._accuracies(finished, model)]
        data = pd.DataFrame(rows, columns=["scale", "domain", "seen", "accuracy"])
        sources = data[data["seen"]].groupby("scale")["accuracy"].mean()
        best = _best(sources)
        summary = _summarize(data, sources, best)
        return Finding(data, summary, lambda axes: _plot(axes[0], data, sources, best))

    def _accuracies(
        self, finished: FinishedRun, model: nn.Module
    ) -> Iterator[tuple[str, bool, float]]:
        for name in finished.domains:
            seen = name in finished.record.run.sources
            samples = (finished.probes if seen else finished.domains)[name]
            generator = torch.Generator().manual_seed(finished.record.run.seed)
            index = torch.randperm(len(samples), generator=generator)[: self.samples]
            hits = finished.answers(model, samples, index) == samples.y.cpu()[index]
            yield name, seen, float(hits.double().mean())


def interpolate_weights(
    base: Mapping[str, Tensor], merged: Mapping[str, Tensor], scale: float
) -> dict[str, Tensor]:
    """The weights at a scale: exactly the base at 0, exactly the merged model at 1."""
    weights = {}
    for name, value in merged.items():
        if value.is_floating_point():
            # As in merges, running statistics are not extrapolated.
            bounded = min(max(scale, 0.0), 1.0) if "running_" in name else scale
            weights[name] = torch.lerp(base[name].to(value.dtype), value, bounded)
        else:
            weights[name] = value
    return weights


def _best(accuracy: "pd.Series[float]") -> float:
    """The best scale, among equals the nearest to 1; equal means may differ by rounding."""
    good = accuracy[accuracy >= accuracy.max() - 1e-9]
    return min(map(float, good.index), key=lambda scale: abs(scale - 1))


def _summarize(data: pd.DataFrame, sources: "pd.Series[float]", best: float) -> str:
    sentences = [f"best scale on the sources: {best:g} ({_compare_scales(sources, best)})"]
    for name, rows in data[~data["seen"]].groupby("domain", sort=False):
        accuracy = rows.set_index("scale")["accuracy"]
        sentences.append(
            f"{name} (unseen) at this scale: {_compare_scales(accuracy, best)}; its own best scale "
            f"would be {_best(accuracy):g} ({100 * accuracy.max():.1f} %)"
        )
    rest = len(sentences) - 1 - MAX_UNSEEN_LISTED
    shown = "; ".join(sentences[: 1 + MAX_UNSEEN_LISTED])
    return shown + f"; and {rest} more unseen domains" * (rest > 0)


def _compare_scales(accuracy: "pd.Series[float]", best: float) -> str:
    """The accuracies at the best scale, at 1 and at 0, each scale once."""
    notes = {best: "", 1.0: " as merged", 0.0: " for the base"}
    return ", ".join(f"{100 * accuracy[scale]:.1f} %{note}" for scale, note in notes.items())


def _plot(axes: "Axes", data: pd.DataFrame, sources: "pd.Series[float]", best: float) -> None:
    axes.plot(sources.index, 100 * sources, color="k", label=" sources (mean)", zorder=3)
    seen = dict(iter(data[data["seen"]].groupby("domain", sort=False)))
    for number, rows in enumerate(list(seen.values())[:MAX_SOURCE_CURVES]):
        label = "" if number else " each source"
        thin: dict[str, Any] = {"color": "gray", "alpha": 0.5, "linewidth": 0.8, "label": label}
        axes.plot(rows["scale"], 100 * rows["accuracy"], **thin)
    unseen = data[~data["seen"]].groupby("domain", sort=False)
    for number, (name, rows) in enumerate(unseen):
        label = f" {name} (unseen)"
        axes.plot(rows["scale"], 100 * rows["accuracy"], color=color_of(number), label=label)
    axes.axvline(1.0, color="gray", linestyle=":", label=" as merged")
    style: dict[str, Any] = {"marker": "*", "color": "k", "markersize": 11, "linestyle": ""}
    axes.plot([best], [100 * sources[best]], label=f" best on the sources: {best:g}", **style)
    axes.set(xlabel="scale (0: the base)", ylabel="accuracy (%)")
    axes.set_title("from the base through the merged model", fontsize=10)
    legend_below(axes)
