"""How far should one go? Accuracy along the line from the base through the merged model.

    weights(s) = base + s · (merged - base)      s = 0: the base;   1: as merged;   further beyond

What `--scale` of a merge chooses. The sources are read on their probe parts, which no expert was
trained on, unseen domains on their main ones; the best scale is that of the sources' mean, and if
several are as good, the one nearest to 1. All floating-point tensors move; running variances not
below 0, and integers not at all.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
from torch import Tensor, nn

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.merged_runs import check_merged
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Uniform
from afield.progress import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MergePath"]

# Unseen domains that are told, and sources that have a curve of their own.
MAX_UNSEEN_LISTED, MAX_SOURCE_CURVES = 3, 10


@dataclass(frozen=True)
class MergePath(Diagnostic):
    """Accuracy at so many `points` to the `furthest`, on so many `samples` of each domain."""

    points: Annotated[int, LogUniform(5, 101)] = 21
    furthest: Annotated[float, Uniform(1.0, 3.0)] = 2.0
    samples: Annotated[int, LogUniform(16, 10_000)] = 2000

    def __post_init__(self) -> None:
        if self.points < 2:
            raise SpecError(f"merge_path.points={self.points}: at least 2 are needed")
        if self.furthest <= 0:
            raise SpecError(f"merge_path.furthest={self.furthest}: must be above 0")
        if self.samples < 1:
            raise SpecError(f"merge_path.samples={self.samples}: must be above 0")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Accuracies on all domains at every scale, the merged model's own included."""
        subject = single_run(subjects, "merge_path")
        check_merged(subject, "merge_path")
        merged = {
            name: value.to("cpu", copy=True) for name, value in subject.model.state_dict().items()
        }
        if all(torch.equal(value, subject.base[name]) for name, value in merged.items()):
            method = subject.record.run.method
            raise SpecError(f"merge_path: {method} is where its base is; look at another merge")
        even = [self.furthest * point / (self.points - 1) for point in range(self.points)]
        scales = sorted({*even, 1.0})
        model, rows = copy.deepcopy(subject.model), []
        for scale in track(scales, "scales", len(scales)):
            model.load_state_dict(interpolate_weights(subject.base, merged, scale))
            rows += [(scale, *row) for row in self._accuracies(subject, model)]
        data = pd.DataFrame(rows, columns=["scale", "domain", "seen", "accuracy"])
        sources = data[data["seen"]].groupby("scale")["accuracy"].mean()
        best = _best(sources)
        told = _told(data, sources, best)
        return Finding(data, told, lambda axes: _paint(axes[0], data, sources, best))

    def _accuracies(
        self, subject: FinishedRun, model: nn.Module
    ) -> Iterator[tuple[str, bool, float]]:
        for name in subject.domains:
            seen = name in subject.record.run.sources
            samples = (subject.probes if seen else subject.domains)[name]
            generator = torch.Generator().manual_seed(subject.record.run.seed)
            index = torch.randperm(len(samples), generator=generator)[: self.samples]
            right = subject.answers(model, samples, index) == samples.y.cpu()[index]
            yield name, seen, float(right.double().mean())


def interpolate_weights(
    base: Mapping[str, Tensor], merged: Mapping[str, Tensor], scale: float
) -> dict[str, Tensor]:
    """The weights at a scale: at 0 those of the base, at 1 the merged ones, to the bit."""
    found = {}
    for name, value in merged.items():
        moves = value.is_floating_point()
        # As in merges: running statistics stay within those of base and experts.
        own = min(max(scale, 0.0), 1.0) if "running_" in name else scale
        found[name] = torch.lerp(base[name].to(value.dtype), value, own) if moves else value
    return found


def _best(accuracy: "pd.Series[float]") -> float:
    """The best scale; of several, the nearest to 1. Means that are equal may differ by rounding."""
    good = accuracy[accuracy >= accuracy.max() - 1e-9]
    return min(map(float, good.index), key=lambda scale: abs(scale - 1))


def _told(data: pd.DataFrame, sources: "pd.Series[float]", best: float) -> str:
    told = [f"on the sources best at scale {best:g} ({_compared(sources, best)})"]
    for name, rows in data[~data["seen"]].groupby("domain", sort=False):
        own = rows.set_index("scale")["accuracy"]
        told.append(
            f"{name} (unseen) there: {_compared(own, best)}; its own best, {100 * own.max():.1f} % "
            f"at {_best(own):g}, is not for the sources to know"
        )
    rest = len(told) - 1 - MAX_UNSEEN_LISTED
    return "; ".join(told[: 1 + MAX_UNSEEN_LISTED]) + f"; and {rest} more unseen domains" * (
        rest > 0
    )


def _compared(own: "pd.Series[float]", best: float) -> str:
    """The accuracies at the best scale, as merged and of the base; each scale once."""
    at = {best: "", 1.0: " as merged", 0.0: " for the base"}
    return ", ".join(f"{100 * own[scale]:.1f} %{told}" for scale, told in at.items())


def _paint(axes: "Axes", data: pd.DataFrame, sources: "pd.Series[float]", best: float) -> None:
    axes.plot(sources.index, 100 * sources, color="k", label=" sources (mean)", zorder=3)
    home = dict(iter(data[data["seen"]].groupby("domain", sort=False)))
    for number, own in enumerate(list(home.values())[:MAX_SOURCE_CURVES]):
        label = "" if number else " each source"
        thin: dict[str, Any] = {"color": "grey", "alpha": 0.5, "linewidth": 0.8, "label": label}
        axes.plot(own["scale"], 100 * own["accuracy"], **thin)
    away = data[~data["seen"]].groupby("domain", sort=False)
    for number, (name, own) in enumerate(away):
        label = f" {name} (unseen)"
        axes.plot(own["scale"], 100 * own["accuracy"], color=f"C{number}", label=label)
    axes.axvline(1.0, color="grey", linestyle=":", label=" as merged")
    style: dict[str, Any] = {"marker": "*", "color": "k", "markersize": 11, "linestyle": ""}
    axes.plot([best], [100 * sources[best]], label=f" best on the sources: {best:g}", **style)
    axes.set(xlabel="scale (0: the base)", ylabel="accuracy (%)")
    axes.set_title("from the base through the merged model", fontsize=10)
    for text in axes.legend(fontsize=7).get_texts():
        text.set_parse_math(False)
