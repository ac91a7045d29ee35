"""The loss on the plane through three networks, one panel for each domain (Arith, Fig. 3).

Given one run, the three are experts on a walk from its deployed weights: after `steps` steps on the
first source domain, then on the second, then on the third. Their centroid is where Arith steps to,
the last of them where Fish does. Given three runs, they are the deployed networks of these.

    point(x, y) = w₁ + x · u + y · v,   u and v: an orthonormal basis of w₂ - w₁ and w₃ - w₁

Two source domains make a plane with the start of the walk. Statistics of BatchNorm layers that are
not frozen are measured anew at every point.
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
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.networks.batchnorm import has_unfrozen_batchnorm, update_batchnorm
from afield.progress import track
from afield.tensors import add, assign, flatten, set_gradients, unflatten
from afield.training.method import pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LossSurface"]

START, CENTROID = "start", "centroid"
# Samples that go through the network at once, and batches for BatchNorm's statistics at a point.
CHUNK, STATISTICS_BATCHES = 128, 8
LEVELS = 16
# Domains that have a panel.
MAX_PANELS = 9


@dataclass(frozen=True)
class LossSurface(Diagnostic):
    """Losses of `samples` of each domain at `points` × `points` places; `margin` around the three.

    The experts take their steps with the run's `optimizer`, afresh for each domain, or plain `sgd`,
    at `rate` times the run's learning rate.
    """

    steps: Annotated[int, LogUniform(3, 300)] = 30
    rate: Annotated[float, LogUniform(0.1, 100.0)] = 1.0
    inner: Annotated[Literal["optimizer", "sgd"], Variant(("optimizer", "sgd"))] = "optimizer"
    points: Annotated[int, Uniform(5, 51)] = 15
    samples: Annotated[int, LogUniform(16, 2048)] = 128
    margin: Annotated[float, Uniform(0.1, 2.0)] = 0.5

    def __post_init__(self) -> None:
        least_of = {"steps": 1, "points": 2, "samples": 1, "margin": 0, "rate": 0}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise SpecError(f"{name}={getattr(self, name)}: must not be below {least}")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Find the plane, then the loss of every domain at every place of it."""
        if len(subjects) not in (1, 3):
            raise SpecError(f"loss_surface looks at one run or at three, not at {len(subjects)}")
        first, names = subjects[0], subjects[0].shown(MAX_PANELS)
        marks = self._experts(first) if len(subjects) == 1 else _of_runs(subjects)
        plane = _Plane.through(list(marks.values())[-3:])
        experts = [weights for name, weights in marks.items() if name != START]
        marks[CENTROID] = torch.stack(experts).mean(0)
        placed = {name: plane.place(weights) for name, weights in marks.items()}
        grid = self._grid(np.array(list(placed.values())))
        losses = _Losses(first, {name: first.sample_indices(name, self.samples) for name in names})
        rows = [
            (name, *placed[name], domain, loss)
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

        def paint(axes: "Sequence[Axes]") -> None:
            for each, name in zip(axes, names, strict=True):
                _paint(each, data[data["domain"] == name], name, explained=name == names[0])

        return Finding(data, _told(data), paint, panels=len(names))

    def _experts(self, subject: FinishedRun) -> dict[str, Tensor]:
        """The weights on a walk over the first source domains, and where it starts."""
        check_unmasked(subject, "loss_surface")
        sources = subject.record.run.sources[:3]
        if len(sources) < 2:
            raise SpecError("loss_surface walks over two source domains or more; this run has one")
        model, task = copy.deepcopy(subject.model).train(), subject.learner.task
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        rate = self.rate * subject.learner.lr
        found = {START: flatten(parameters)}
        for source in track(sources, "experts", len(sources)):
            optimizer = task.optimizer(parameters, lr=rate)
            for batch in islice(subject.batches(source), self.steps):
                loss = F.cross_entropy(model(batch.x), batch.y)
                slope = torch.autograd.grad(loss, parameters, materialize_grads=True)
                if self.inner == "sgd":
                    add(parameters, slope, times=-rate)
                else:
                    set_gradients(parameters, slope)
                    optimizer.step()
            found[f"after {source}"] = flatten(parameters)
        return found

    def _grid(self, places: NDArray[np.float64]) -> list[list[float]]:
        """Places all around the marks."""
        low, high = places.min(axis=0), places.max(axis=0)
        room = self.margin * (high - low).max()
        axes = np.linspace(low - room, high + room, self.points)
        return [[x, y] for x in axes[:, 0].tolist() for y in axes[:, 1].tolist()]


class _Losses:
    """Losses of domains at any weights of a run's network; their samples are made ready once."""

    def __init__(self, subject: FinishedRun, chosen: Mapping[str, Tensor]) -> None:
        self.model = subject.model
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.batches = {
            name: [
                subject.domains[name].batch(part.to(subject.domains[name].y.device))
                for part in index.split(CHUNK)
            ]
            for name, index in chosen.items()
        }
        self.statistics: list[Tensor] = []
        if has_unfrozen_batchnorm(self.model):
            batches = islice(subject.stream.fresh_copy(), STATISTICS_BATCHES)
            self.statistics = [pool(each).x for each in batches]

    @torch.no_grad()
    def at(self, weights: Tensor) -> Iterator[tuple[str, float]]:
        """Each domain's mean loss with these weights."""
        assign(self.parameters, unflatten(weights, self.parameters))
        if self.statistics:
            update_batchnorm(self.model, self.statistics)
        self.model.eval()
        for name, batches in self.batches.items():
            losses = [F.cross_entropy(self.model(b.x), b.y, reduction="none") for b in batches]
            yield name, float(torch.cat(losses).mean())


@dataclass(frozen=True)
class _Plane:
    """A point and two directions of length one, at right angles."""

    origin: Tensor
    u: Tensor
    v: Tensor

    @classmethod
    def through(cls, corners: Sequence[Tensor]) -> "_Plane":
        """The plane through three points."""
        origin = corners[0]
        first, second = corners[1] - origin, corners[2] - origin
        u = F.normalize(first, dim=0)
        aside = second - (second @ u) * u
        if not first.norm() > 0 or not aside.norm() > 1e-6 * second.norm():
            raise SpecError("the three networks lie on one line: there is no plane through them")
        return cls(origin, u, F.normalize(aside, dim=0))

    def place(self, weights: Tensor) -> tuple[float, float]:
        """Where on the plane these weights are, or would be seen from above it."""
        away = weights - self.origin
        return float(away @ self.u), float(away @ self.v)

    def at(self, x: float, y: float) -> Tensor:
        """The weights at a place."""
        return self.origin + x * self.u + y * self.v


def _of_runs(subjects: Sequence[FinishedRun]) -> dict[str, Tensor]:
    """The deployed weights of three runs that saw the same samples in the same form."""
    found = {}
    for subject in subjects:
        parameters = [p for p in subject.model.parameters() if p.requires_grad]
        found[subject.record.run.key] = flatten(parameters)
    for name in ("dataset", "data", "backbone", "size", "sources", "trial"):
        if len({getattr(subject.record.run, name) for subject in subjects}) > 1:
            raise SpecError(f"three runs on one plane must have the same {name}")
    if len(found) < 3:
        raise SpecError("three different runs are needed for a plane")
    return found


def _told(data: pd.DataFrame) -> str:
    """The loss at the centroid beside that at the last of the three, of the domains shown."""
    marks = [mark for mark in dict.fromkeys(data["mark"]) if mark not in ("", START, CENTROID)]
    told = []
    for seen, words in ((True, "on the sources"), (False, "on unseen domains")):
        own = data[data["seen"] == seen].groupby("mark")["loss"].mean()
        if len(own):
            told.append(
                f"mean loss {words}: {own[CENTROID]:.3f} at the centroid, "
                f"{own[marks[-1]]:.3f} at {marks[-1]!r}"
            )
    return "; ".join(told)


def _paint(axes: "Axes", data: pd.DataFrame, domain: str, *, explained: bool) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.patheffects import withStroke

    grid = data[data["mark"] == ""].pivot_table(index="y", columns="x", values="loss")
    # Steps of equal ratio: away from the middle a loss grows by orders of magnitude.
    losses = grid.to_numpy() + 1e-6
    levels = np.geomspace(losses.min() * (1 - 1e-6), losses.max() * (1 + 1e-6), LEVELS)
    form: dict[str, Any] = {
        "levels": levels,
        "norm": LogNorm(levels[0], levels[-1]),
        "cmap": "Blues_r",
    }
    drawn = axes.contourf(grid.columns, grid.index, losses, **form)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.2g", ticks=levels[::3])
    bar.set_label("loss (deeper is better)", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    bar.ax.minorticks_off()
    marks = data[data["mark"] != ""].set_index("mark")
    experts = marks.drop(index=[START, CENTROID], errors="ignore")
    centroid, last = marks.loc[CENTROID], experts.iloc[-1]
    if START in marks.index:
        start = marks.loc[START]
        for end, colour in ((last, "red"), (centroid, "gold")):
            arrow = {"arrowstyle": "->", "color": colour, "lw": 1.8}
            axes.annotate("", (end["x"], end["y"]), (start["x"], start["y"]), arrowprops=arrow)
        axes.plot([], [], color="red", label=" to the end of the walk (Fish)")
        told = " start (seen from above)"
        axes.scatter(start["x"], start["y"], s=30, c="w", edgecolor="k", label=told)
    style: dict[str, Any] = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 9}
    style |= {"color": "w", "path_effects": [withStroke(linewidth=2, foreground="k")]}
    for number, (name, row) in enumerate(experts.iterrows(), start=1):
        own = "gold" if name == f"after {domain}" else "black"
        told = f" {number}: {str(name)[:24]}"
        axes.scatter(row["x"], row["y"], marker="^", s=70, edgecolor="w", c=own, label=told)
        axes.annotate(str(number), (row["x"], row["y"]), **style)
    star: dict[str, Any] = {
        "marker": "*",
        "s": 160,
        "c": "gold",
        "edgecolor": "k",
        "label": " centroid of 1 to 3 (Arith)",
    }
    axes.scatter(centroid["x"], centroid["y"], **star)
    if explained:
        for text in axes.legend(fontsize=6, framealpha=0.8, loc="upper left").get_texts():
            text.set_parse_math(False)
    title = domain if data["seen"].iloc[0] else f"{domain} (unseen)"
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.tick_params(labelsize=7)
