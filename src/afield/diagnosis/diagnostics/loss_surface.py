"""The loss on the plane through three networks, one panel per domain (Arith, Fig. 3).

With one run, the three networks are trained from its deployed weights: `steps` steps on the first
source domain, then on the second, then on the third. Arith steps to their centroid, Fish to the
last of them. With three runs, they are the deployed networks of these runs.

    point(x, y) = w₁ + x · u + y · v,   u and v: an orthonormal basis of w₂ - w₁ and w₃ - w₁

With two source domains, the start is the third point of the plane. The statistics of BatchNorm
layers that are not frozen are computed anew at every point.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, check_unmasked
from afield.diagnosis.figure_style import legend_outside
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.networks.freezing import has_unfrozen_batchnorm, update_batchnorm
from afield.progress import track
from afield.runs.finished import FinishedRun
from afield.tensors import add, assign, flatten, set_gradients, unflatten
from afield.training.method import pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LossSurface"]

START, CENTROID = "start", "centroid"
# Samples per forward pass, and batches for the statistics of BatchNorm at a point.
CHUNK, STATISTICS_BATCHES = 128, 8
LEVELS = 16
# Domains with a panel.
MAX_PANELS = 9


@dataclass(frozen=True)
class LossSurface(Diagnostic):
    """Losses of `samples` of each domain at `points` × `points` positions.

    `margin` is the border around the three networks, relative to their distance. The inner steps
    use the `optimizer` of the run, new for each domain, or plain `sgd`, at `rate` times the
    learning rate of the run.
    """

    steps: Annotated[int, LogUniform(3, 300)] = 30
    rate: Annotated[float, LogUniform(0.1, 100.0)] = 1.0
    inner: Annotated[Literal["optimizer", "sgd"], Variant(("optimizer", "sgd"))] = "optimizer"
    points: Annotated[int, Uniform(5, 51)] = 15
    samples: Annotated[int, LogUniform(16, 2048)] = 128
    margin: Annotated[float, Uniform(0.1, 2.0)] = 0.5

    def __post_init__(self) -> None:
        minima = {"steps": 1, "points": 2, "samples": 1, "margin": 0, "rate": 0}
        for name, minimum in minima.items():
            value = getattr(self, name)
            if value < minimum:
                raise SpecError(f"loss_surface.{name}={value}: must be at least {minimum}")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Find the plane, then compute the loss of every domain on it."""
        if len(runs) not in (1, 3):
            raise SpecError(f"loss_surface takes one run or three, not {len(runs)}")
        first, names = runs[0], runs[0].shown(MAX_PANELS)
        marks = self._trained(first) if len(runs) == 1 else _deployed_weights(runs)
        plane = _Plane.through(list(marks.values())[-3:])
        corners = [weights for name, weights in marks.items() if name != START]
        marks[CENTROID] = torch.stack(corners).mean(0)
        positions = {name: plane.project(weights) for name, weights in marks.items()}
        grid = self._grid(np.array(list(positions.values())))
        losses = _Losses(first, {name: first.sample_indices(name, self.samples) for name in names})
        rows = [
            (name, *positions[name], domain, loss)
            for name, weights in marks.items()
            for domain, loss in losses.at(weights)
        ]
        rows += [
            ("", x, y, domain, loss)
            for x, y in track(grid, "loss surface", len(grid))
            for domain, loss in losses.at(plane.at(x, y))
        ]
        data = pd.DataFrame(rows, columns=["mark", "x", "y", "domain", "loss"])
        data["seen"] = data["domain"].isin(first.record.run.sources)

        def plot(axes: "Sequence[Axes]") -> None:
            for panel, name in zip(axes, names, strict=True):
                _plot(panel, data[data["domain"] == name], name, legend=name == names[0])

        return Finding(data, _summarize(data), plot, panels=len(names))

    def _trained(self, finished: FinishedRun) -> dict[str, Tensor]:
        """The weights at the start, and after training on each of the first source domains."""
        check_unmasked(finished, "loss_surface")
        sources = finished.record.run.sources[:3]
        if len(sources) < 2:
            raise SpecError("loss_surface needs two source domains or more; this run has one")
        model, task = copy.deepcopy(finished.model).train(), finished.learner.task
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        rate = self.rate * finished.learner.lr
        weights = {START: flatten(parameters)}
        for source in track(sources, "inner steps", len(sources)):
            optimizer = task.optimizer(parameters, lr=rate)
            for batch in islice(finished.batches(source), self.steps):
                loss = F.cross_entropy(model(batch.x), batch.y)
                gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
                if self.inner == "sgd":
                    add(parameters, gradient, times=-rate)
                else:
                    set_gradients(parameters, gradient)
                    optimizer.step()
            weights[f"after {source}"] = flatten(parameters)
        return weights

    def _grid(self, positions: NDArray[np.float64]) -> list[list[float]]:
        """A grid of positions around the marks."""
        low, high = positions.min(axis=0), positions.max(axis=0)
        border = self.margin * (high - low).max()
        axes = np.linspace(low - border, high + border, self.points)
        return [[x, y] for x in axes[:, 0].tolist() for y in axes[:, 1].tolist()]


class _Losses:
    """Losses of domains at any weights of a run's network; the samples are prepared once."""

    def __init__(self, finished: FinishedRun, chosen: Mapping[str, Tensor]) -> None:
        self.model = finished.model
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.batches = {
            name: [
                finished.domains[name].batch(chunk.to(finished.domains[name].y.device))
                for chunk in index.split(CHUNK)
            ]
            for name, index in chosen.items()
        }
        self.statistics: list[Tensor] = []
        if has_unfrozen_batchnorm(self.model):
            batches = islice(finished.stream.fresh_copy(), STATISTICS_BATCHES)
            self.statistics = [pool(batch).x for batch in batches]

    @torch.no_grad()
    def at(self, weights: Tensor) -> Iterator[tuple[str, float]]:
        """The mean loss of each domain at these weights."""
        assign(self.parameters, unflatten(weights, self.parameters))
        if self.statistics:
            update_batchnorm(self.model, self.statistics)
        self.model.eval()
        for name, batches in self.batches.items():
            losses = [F.cross_entropy(self.model(b.x), b.y, reduction="none") for b in batches]
            yield name, float(torch.cat(losses).mean())


@dataclass(frozen=True)
class _Plane:
    """A point and two orthonormal directions."""

    origin: Tensor
    u: Tensor
    v: Tensor

    @classmethod
    def through(cls, corners: Sequence[Tensor]) -> "_Plane":
        """The plane through three points."""
        origin = corners[0]
        first, second = corners[1] - origin, corners[2] - origin
        u = F.normalize(first, dim=0)
        orthogonal = second - (second @ u) * u
        if not first.norm() > 0 or not orthogonal.norm() > 1e-6 * second.norm():
            raise SpecError("the three networks are on one line, so they span no plane")
        return cls(origin, u, F.normalize(orthogonal, dim=0))

    def project(self, weights: Tensor) -> tuple[float, float]:
        """The position of the weights, projected onto the plane."""
        offset = weights - self.origin
        return float(offset @ self.u), float(offset @ self.v)

    def at(self, x: float, y: float) -> Tensor:
        """The weights at a position."""
        return self.origin + x * self.u + y * self.v


def _deployed_weights(runs: Sequence[FinishedRun]) -> dict[str, Tensor]:
    """The deployed weights of three runs on the same data with the same backbone."""
    weights = {}
    for finished in runs:
        parameters = [p for p in finished.model.parameters() if p.requires_grad]
        weights[finished.record.run.key] = flatten(parameters)
    for name in ("dataset", "data", "backbone", "size", "sources", "trial"):
        if len({getattr(finished.record.run, name) for finished in runs}) > 1:
            raise SpecError(f"loss_surface: the three runs must have the same {name}")
    if len(weights) < 3:
        raise SpecError("loss_surface: the three runs must be three different runs")
    return weights


def _summarize(data: pd.DataFrame) -> str:
    """The losses at the centroid and at the last network, over the domains shown."""
    marks = [mark for mark in dict.fromkeys(data["mark"]) if mark not in ("", START, CENTROID)]
    sentences = []
    for seen, words in ((True, "on the sources"), (False, "on unseen domains")):
        losses = data[data["seen"] == seen].groupby("mark")["loss"].mean()
        if len(losses):
            sentences.append(
                f"mean loss {words}: {losses[CENTROID]:.3f} at the centroid, "
                f"{losses[marks[-1]]:.3f} at {marks[-1]!r}"
            )
    return "; ".join(sentences)


def _plot(axes: "Axes", data: pd.DataFrame, domain: str, *, legend: bool) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.patheffects import withStroke

    grid = data[data["mark"] == ""].pivot_table(index="y", columns="x", values="loss")
    # Logarithmic levels: the loss grows by orders of magnitude away from the center.
    losses = grid.to_numpy() + 1e-6
    levels = np.geomspace(losses.min() * (1 - 1e-6), losses.max() * (1 + 1e-6), LEVELS)
    style: dict[str, Any] = {
        "levels": levels,
        "norm": LogNorm(levels[0], levels[-1]),
        "cmap": "Blues_r",
    }
    drawn = axes.contourf(grid.columns, grid.index, losses, **style)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.2g", ticks=levels[::3])
    bar.set_label("loss (darker is better)", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    bar.ax.minorticks_off()
    marks = data[data["mark"] != ""].set_index("mark")
    experts = marks.drop(index=[START, CENTROID], errors="ignore")
    centroid, last = marks.loc[CENTROID], experts.iloc[-1]
    if START in marks.index:
        start = marks.loc[START]
        for end, color in ((last, "red"), (centroid, "gold")):
            arrow = {"arrowstyle": "->", "color": color, "lw": 1.8}
            axes.annotate("", (end["x"], end["y"]), (start["x"], start["y"]), arrowprops=arrow)
        axes.plot([], [], color="red", label=" to the last network (Fish)")
        label = " start (projected)"
        axes.scatter(start["x"], start["y"], s=30, c="w", edgecolor="k", label=label)
    text_style: dict[str, Any] = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 9}
    text_style |= {"color": "w", "path_effects": [withStroke(linewidth=2, foreground="k")]}
    for number, (name, row) in enumerate(experts.iterrows(), start=1):
        color = "gold" if name == f"after {domain}" else "black"
        label = f" {number}: {str(name)[:24]}"
        axes.scatter(row["x"], row["y"], marker="^", s=70, edgecolor="w", c=color, label=label)
        axes.annotate(str(number), (row["x"], row["y"]), **text_style)
    star: dict[str, Any] = {
        "marker": "*",
        "s": 160,
        "c": "gold",
        "edgecolor": "k",
        "label": " centroid of 1 to 3 (Arith)",
    }
    axes.scatter(centroid["x"], centroid["y"], **star)
    if legend:
        legend_outside(axes)
    title = domain if data["seen"].iloc[0] else f"{domain} (unseen)"
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.tick_params(labelsize=7)
