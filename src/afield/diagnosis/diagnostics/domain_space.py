"""Where are the domains? A map of the features that separate them (CrossGrad, Figs. 6 and 7).

    g          the features of CrossGrad's domain net; for other methods, those of the network
    map        the two directions in which g varies most over all samples shown (PCA)
    between    the mean of an unseen domain relative to the line through the means of the two
               nearest sources: its position along the line (0: the nearest, 1: the other) and its
               distance from the line, in units of the line's length. A point that is unrelated to
               both is far from the line, so both numbers matter.
    silhouette how well samples of a kind cluster, from -1 to 1; 0 means not at all

The figure shows the domains, the samples of one source as its method perturbs them (CrossGrad,
LabelGrad), and the labels of that source. If g represents domains and not labels, labels do not
cluster.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from torch import Tensor, nn

from afield.data.samples import Batch
from afield.diagnosis.diagnostic import (
    Diagnostic,
    Finding,
    choose_domains,
    single_run,
    trained_learner,
)
from afield.diagnosis.figure_style import COLORS, PALE, color_of, legend_below
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DomainSpace"]

# Domains shown, and samples per forward pass.
MAX_DOMAINS, CHUNK = 8, 256
# A mean is between two others if its distance from their line is below half of its length.
MAX_OFFSET_RATIO = 0.5

Points = NDArray[np.float64]


@dataclass(frozen=True)
class DomainSpace(Diagnostic):
    """A map of `domains` (empty means some of all) from `samples` of each.

    `moved` is the source whose perturbed samples are shown; by default the one nearest to the
    first unseen domain, or the first.
    """

    domains: Annotated[tuple[str, ...], Variant(((),))] = ()
    moved: Annotated[str, Variant(("",))] = ""
    samples: Annotated[int, LogUniform(20, 2000)] = 200

    def __post_init__(self) -> None:
        if self.samples < 3:
            raise SpecError(f"domain_space.samples={self.samples}: must be at least 3")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Map the features of all domains and of the perturbed samples of one source."""
        finished = single_run(runs, "domain_space")
        names = choose_domains(finished, self.domains, MAX_DOMAINS)
        features = _feature_net(finished)
        batches = {name: _batch(finished, name, self.samples) for name in names}
        g = {name: _compute(features, batches[name].x) for name in track(names, "g", len(names))}
        pooled = np.concatenate(list(g.values()))
        if len(pooled) < 3 or not pooled.std(axis=0).any():
            raise SpecError("domain_space needs three samples, and features that differ")
        centers = {name: points.mean(axis=0) for name, points in g.items()}
        source = self._source(finished, centers)
        inputs = _perturbed_inputs(finished, batches[source]) if source else None
        perturbed = None if inputs is None else _compute(features, inputs)
        data = _table(finished, batches, g, source, perturbed)
        sentences = [
            *_describe_positions(finished, centers),
            *_describe_perturbed(source, centers, g, perturbed),
            _describe_clusters(g, batches),
        ]

        def plot(axes: Sequence["Axes"]) -> None:
            _plot_domains(axes[0], data, finished)
            if source:
                _plot_perturbed(axes[1], data, source, shown=perturbed is not None)
                _plot_labels(axes[2], data, source)

        return Finding(data, "; ".join(sentences), plot, 3 if source else 1)

    def _source(self, finished: FinishedRun, centers: dict[str, Points]) -> str:
        """The source whose perturbed samples are shown; empty if no source is shown."""
        sources = [name for name in centers if name in finished.record.run.sources]
        if self.moved and self.moved not in sources:
            known = f"choose from {', '.join(sources)}" if sources else "no source is shown"
            raise SpecError(f"domain_space.moved={self.moved}: not a source; {known}")
        unseen = [name for name in centers if name not in sources]
        if self.moved or not unseen or not sources:
            return self.moved or (sources[0] if sources else "")
        return _nearest(centers, unseen[0], sources)[0]


def _feature_net(finished: FinishedRun) -> nn.Module:
    """The module that computes g: the features of the domain net, or of the network."""
    method: Any = finished.method
    has_domain_net = hasattr(method, "domain_classifier")
    net = method.domain_classifier(trained_learner(finished)) if has_domain_net else finished.model
    features = getattr(net, "features", None)
    if features is None:
        raise SpecError(
            f"domain_space needs features before a head; {finished.record.run.method} has none"
        )
    return cast(nn.Module, features)


def _batch(finished: FinishedRun, name: str, count: int) -> Batch:
    """Samples of a domain as a batch; those of a source with its number, others with -1."""
    samples, sources = finished.domains[name], finished.record.run.sources
    batch = samples.batch(finished.sample_indices(name, count).to(samples.y.device))
    number = sources.index(name) if name in sources else -1
    return batch._replace(domain=torch.full_like(batch.y, number))


@torch.no_grad()
def _compute(features: nn.Module, x: Tensor) -> Points:
    chunks = [features(chunk).flatten(1).double().cpu() for chunk in x.split(CHUNK)]
    return cast(Points, torch.cat(chunks).numpy())


def _perturbed_inputs(finished: FinishedRun, batch: Batch) -> Tensor | None:
    """The inputs as the method perturbs them in training; None if it does not."""
    method: Any = finished.method
    if not hasattr(method, "perturbed_inputs"):
        return None
    return cast(
        Tensor, method.perturbed_inputs(trained_learner(finished), batch, finished.stream.total)
    )


def _table(
    finished: FinishedRun,
    batches: dict[str, Batch],
    g: dict[str, Points],
    source: str,
    perturbed: Points | None,
) -> pd.DataFrame:
    """One row per sample: its domain, label and position, and whether it is perturbed."""
    pca = PCA(2, svd_solver="full").fit(np.concatenate(list(g.values())))
    classes = finished.learner.task.classes
    groups = [(name, points, False) for name, points in g.items()]
    if perturbed is not None:
        groups.append((source, perturbed, True))
    frames = []
    for name, points, moved in groups:
        first, second = pca.transform(points).T
        labels = [classes[i] for i in batches[name].y.tolist()]
        frame = pd.DataFrame({"domain": name, "label": labels, "first": first, "second": second})
        frames.append(frame.assign(seen=name in finished.record.run.sources, moved=moved))
    return pd.concat(frames, ignore_index=True)


def _nearest(centers: dict[str, Points], name: str, others: Sequence[str]) -> list[str]:
    return sorted(others, key=lambda other: float(np.linalg.norm(centers[other] - centers[name])))


def _describe_positions(finished: FinishedRun, centers: dict[str, Points]) -> Iterator[str]:
    """Where unseen domains are relative to their two nearest sources."""
    sources = [name for name in centers if name in finished.record.run.sources]
    if len(sources) < 2:
        return
    for name in centers:
        if name in sources:
            continue
        first, second, *_ = _nearest(centers, name, sources)
        line, offset = centers[second] - centers[first], centers[name] - centers[first]
        if not line.any():
            continue
        along = float(offset @ line / (line @ line))
        distance = float(np.linalg.norm(offset - along * line) / np.linalg.norm(line))
        where = "between" if 0 < along < 1 and distance < MAX_OFFSET_RATIO else "not between"
        yield (
            f"{name} (unseen) lies {where} {first} and {second}, at {along:.2f} of the way and "
            f"{distance:.2f} of it from the line"
        )


def _describe_perturbed(
    source: str, centers: dict[str, Points], g: dict[str, Points], perturbed: Points | None
) -> Iterator[str]:
    """How many samples are nearest to another domain, before and after the perturbation."""
    if perturbed is None or len(centers) < 2:
        return
    names = list(centers)
    means = np.stack([centers[name] for name in names])

    def elsewhere(points: Points) -> float:
        nearest = np.linalg.norm(points[:, None] - means, axis=2).argmin(axis=1)
        return 100 * float((nearest != names.index(source)).mean())

    yield (
        f"{elsewhere(g[source]):.0f} % of the samples of {source} are nearest to the mean of "
        f"another domain, {elsewhere(perturbed):.0f} % when perturbed"
    )


def _describe_clusters(g: dict[str, Points], batches: dict[str, Batch]) -> str:
    """The silhouettes of domains, and of labels within a domain."""
    of_labels = []
    for name, points in g.items():
        labels = batches[name].y.cpu().numpy()
        if 1 < len(set(labels)) < len(labels):
            of_labels.append(float(silhouette_score(points, labels)))
    silhouettes = [f"{np.mean(of_labels):.2f} of labels within a domain"] if of_labels else []
    if 1 < len(g) < sum(len(points) for points in g.values()):
        origin = np.repeat(list(g), [len(points) for points in g.values()])
        of_domains = float(silhouette_score(np.concatenate(list(g.values())), origin))
        silhouettes.insert(0, f"{of_domains:.2f} of domains")
    if not silhouettes:
        return "too few samples for a silhouette"
    return f"silhouette: {', '.join(silhouettes)}"


def _plot_domains(axes: "Axes", data: pd.DataFrame, finished: FinishedRun) -> None:
    clean = data[~data["moved"]]
    for number, name in enumerate(dict.fromkeys(clean["domain"])):
        rows = clean[clean["domain"] == name]
        seen = name in finished.record.run.sources
        style: dict[str, Any] = {"marker": "o" if seen else "^", "s": 9 if seen else 16}
        label = f" {name}" if seen else f" {name} (unseen)"
        axes.scatter(rows["first"], rows["second"], color=color_of(number), label=label, **style)
    _label(axes, "domains")


def _plot_perturbed(axes: "Axes", data: pd.DataFrame, source: str, *, shown: bool) -> None:
    clean, rows = data[~data["moved"]], data[data["domain"] == source]
    others = clean[clean["domain"] != source]
    axes.scatter(others["first"], others["second"], s=6, color=PALE, label=" other domains")
    before, after = rows[~rows["moved"]], rows[rows["moved"]]
    axes.scatter(before["first"], before["second"], s=9, color=COLORS[0], label=f" {source}")
    if shown:
        axes.scatter(after["first"], after["second"], s=9, color=COLORS[5], label=" perturbed")
    _label(axes, f"{source}, and perturbed" if shown else f"{source} (no perturbations)")


def _plot_labels(axes: "Axes", data: pd.DataFrame, source: str) -> None:
    rows = data[(data["domain"] == source) & ~data["moved"]]
    names = list(dict.fromkeys(sorted(rows["label"])))
    numbers = rows["label"].map({name: i for i, name in enumerate(names)})
    style: dict[str, Any] = {"c": numbers, "cmap": "hsv"}
    if len(names) <= len(COLORS):
        style = {"c": [color_of(number) for number in numbers]}
    axes.scatter(rows["first"], rows["second"], s=9, **style)
    axes.set_title(f"{source} by label (one color each)", fontsize=10, parse_math=False)
    axes.set(xlabel="first component of g", ylabel="second")


def _label(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set(xlabel="first component of g", ylabel="second")
    legend_below(axes, columns=3)
