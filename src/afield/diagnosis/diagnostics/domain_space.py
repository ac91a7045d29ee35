"""Where do domains lie? A map of the features that tell them apart (CrossGrad, Figs. 6 and 7).

    g          the features of CrossGrad's domain net; of other methods those of the network itself
    map        the two directions in which g varies most over all that is shown (PCA)
    between    an unseen domain's mean, on the line through those of the two nearest sources: 0 is
               the nearest, 1 the other; and how far beside that line, in its lengths. A point that
               has nothing to do with either is far beside it, so both numbers count.
    silhouette how much samples of a kind keep to themselves, from -1 to 1; 0 is not at all

Drawn are the domains, the samples of one source as its method moves them (CrossGrad, LabelGrad),
and the labels of that source. If g is of domains, and not of labels, labels do not cluster.
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

from afield.diagnosis.diagnostic import (
    Diagnostic,
    Finding,
    choose_domains,
    single_run,
    trained_learner,
)
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Variant
from afield.progress import track
from afield.training.method import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DomainSpace"]

# Domains that are shown, and samples that go through a network at once.
MAX_DOMAINS, CHUNK = 8, 256
# As far beside the line as from its middle to an end is not between any more.
MAX_OFFSET_RATIO = 0.5

Points = NDArray[np.float64]


@dataclass(frozen=True)
class DomainSpace(Diagnostic):
    """A map of `domains` (by default some), from so many `samples` of each.

    `moved` is the source whose moved samples are shown; by default the one nearest to the first
    unseen domain, or the first.
    """

    domains: Annotated[tuple[str, ...], Variant(((),))] = ()
    moved: Annotated[str, Variant(("",))] = ""
    samples: Annotated[int, LogUniform(20, 2000)] = 200

    def __post_init__(self) -> None:
        if self.samples < 3:
            raise SpecError(f"domain_space.samples={self.samples}: at least 3 are needed")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """The features of all domains, and of one source's moved samples."""
        subject = single_run(subjects, "domain_space")
        names = choose_domains(subject, self.domains, MAX_DOMAINS)
        features = _feature_net(subject)
        batches = {name: _batch(subject, name, self.samples) for name in names}
        g = {name: _through(features, batches[name].x) for name in track(names, "g", len(names))}
        every = np.concatenate(list(g.values()))
        if len(every) < 3 or not every.std(axis=0).any():
            raise SpecError("domain_space needs three samples, and features that differ")
        centres = {name: points.mean(axis=0) for name, points in g.items()}
        source = self._source(subject, centres)
        away = _moved(subject, batches[source]) if source else None
        shifted = None if away is None else _through(features, away)
        data = _table(subject, batches, g, source, shifted)
        told = [*_between(subject, centres), *_scattered(source, centres, g, shifted)]
        told += _clustered(g, batches)

        def paint(axes: Sequence["Axes"]) -> None:
            _paint_domains(axes[0], data, subject)
            if source:
                _paint_moved(axes[1], data, source, shown=shifted is not None)
                _paint_labels(axes[2], data, source)

        return Finding(data, "; ".join(told), paint, 3 if source else 1)

    def _source(self, subject: FinishedRun, centres: dict[str, Points]) -> str:
        """The source whose samples are moved."""
        sources = [name for name in centres if name in subject.record.run.sources]
        if self.moved and self.moved not in sources:
            known = f"shown are {', '.join(sources)}" if sources else "no source is shown"
            raise SpecError(f"domain_space.moved={self.moved}: not a source; {known}")
        unseen = [name for name in centres if name not in sources]
        if self.moved or not unseen or not sources:
            return self.moved or (sources[0] if sources else "")
        return _nearest(centres, unseen[0], sources)[0]


def _feature_net(subject: FinishedRun) -> nn.Module:
    """What gives g: the domain net's features, or the network's own."""
    method: Any = subject.method
    own = hasattr(method, "domain_classifier")
    net = method.domain_classifier(trained_learner(subject)) if own else subject.model
    features = getattr(net, "features", None)
    if features is None:
        raise SpecError(
            f"domain_space looks at features before a head; {subject.record.run.method} has none"
        )
    return cast(nn.Module, features)


def _batch(subject: FinishedRun, name: str, count: int) -> Batch:
    """Samples of a domain, ready for a network; a source's with its number."""
    samples, sources = subject.domains[name], subject.record.run.sources
    batch = samples.batch(subject.sample_indices(name, count).to(samples.y.device))
    number = sources.index(name) if name in sources else -1
    return batch._replace(domain=torch.full_like(batch.y, number))


@torch.no_grad()
def _through(features: nn.Module, x: Tensor) -> Points:
    parts = [features(part).flatten(1).double().cpu() for part in x.split(CHUNK)]
    return cast(Points, torch.cat(parts).numpy())


def _moved(subject: FinishedRun, batch: Batch) -> Tensor | None:
    """The inputs as the method moves them in a batch of training, if it does."""
    method: Any = subject.method
    if not hasattr(method, "perturbed_inputs"):
        return None
    return cast(
        Tensor, method.perturbed_inputs(trained_learner(subject), batch, subject.stream.total)
    )


def _table(
    subject: FinishedRun,
    batches: dict[str, Batch],
    g: dict[str, Points],
    source: str,
    shifted: Points | None,
) -> pd.DataFrame:
    """A row for each sample: its place on the map, its domain, its label, whether it is moved."""
    pca = PCA(2, svd_solver="full").fit(np.concatenate(list(g.values())))
    classes = subject.learner.task.classes
    parts = [(name, points, False) for name, points in g.items()]
    if shifted is not None:
        parts.append((source, shifted, True))
    frames = []
    for name, points, moved in parts:
        first, second = pca.transform(points).T
        labels = [classes[i] for i in batches[name].y.tolist()]
        frame = pd.DataFrame({"domain": name, "label": labels, "first": first, "second": second})
        frames.append(frame.assign(seen=name in subject.record.run.sources, moved=moved))
    return pd.concat(frames, ignore_index=True)


def _nearest(centres: dict[str, Points], name: str, others: Sequence[str]) -> list[str]:
    return sorted(others, key=lambda other: float(np.linalg.norm(centres[other] - centres[name])))


def _between(subject: FinishedRun, centres: dict[str, Points]) -> Iterator[str]:
    """Where unseen domains lie between their nearest sources."""
    sources = [name for name in centres if name in subject.record.run.sources]
    if len(sources) < 2:
        return
    for name in centres:
        if name in sources:
            continue
        first, second, *_ = _nearest(centres, name, sources)
        line, own = centres[second] - centres[first], centres[name] - centres[first]
        if not line.any():
            continue
        share = float(own @ line / (line @ line))
        beside = float(np.linalg.norm(own - share * line) / np.linalg.norm(line))
        where = "between" if 0 < share < 1 and beside < MAX_OFFSET_RATIO else "not between"
        yield (
            f"{name} (unseen) lies {where} {first} and {second}, at {share:.2f} of the way and "
            f"{beside:.2f} of it beside"
        )


def _scattered(
    source: str, centres: dict[str, Points], g: dict[str, Points], shifted: Points | None
) -> Iterator[str]:
    """How many samples are nearer to another domain than to their own, moved and not."""
    if shifted is None or len(centres) < 2:
        return
    names = list(centres)
    means = np.stack([centres[name] for name in names])

    def elsewhere(points: Points) -> float:
        nearest = np.linalg.norm(points[:, None] - means, axis=2).argmin(axis=1)
        return 100 * float((nearest != names.index(source)).mean())

    yield (
        f"of {source}, {elsewhere(g[source]):.0f} % are nearest to another domain's mean, "
        f"{elsewhere(shifted):.0f} % when moved"
    )


def _clustered(g: dict[str, Points], batches: dict[str, Batch]) -> Iterator[str]:
    """How much domains, and labels within a domain, keep to themselves."""
    of_labels = []
    for name, points in g.items():
        labels = batches[name].y.cpu().numpy()
        if 1 < len(set(labels)) < len(labels):
            of_labels.append(float(silhouette_score(points, labels)))
    told = f"{np.mean(of_labels):.2f} of labels within a domain" if of_labels else ""
    if 1 < len(g) < sum(len(points) for points in g.values()):
        origin = np.repeat(list(g), [len(points) for points in g.values()])
        whole = float(silhouette_score(np.concatenate(list(g.values())), origin))
        told = f"{whole:.2f} of domains" + f", {told}" * bool(told)
    yield f"silhouette: {told}" if told else "too few samples for a silhouette"


def _paint_domains(axes: "Axes", data: pd.DataFrame, subject: FinishedRun) -> None:
    clean = data[~data["moved"]]
    for number, name in enumerate(dict.fromkeys(clean["domain"])):
        own = clean[clean["domain"] == name]
        seen = name in subject.record.run.sources
        style: dict[str, Any] = {"marker": "o" if seen else "^", "s": 9 if seen else 16}
        label = f" {name}" if seen else f" {name} (unseen)"
        axes.scatter(own["first"], own["second"], color=f"C{number}", label=label, **style)
    _settle(axes, "domains")


def _paint_moved(axes: "Axes", data: pd.DataFrame, source: str, *, shown: bool) -> None:
    clean, own = data[~data["moved"]], data[data["domain"] == source]
    others = clean[clean["domain"] != source]
    axes.scatter(others["first"], others["second"], s=6, color="lightgrey", label=" other domains")
    before, after = own[~own["moved"]], own[own["moved"]]
    axes.scatter(before["first"], before["second"], s=9, color="tab:blue", label=f" {source}")
    if shown:
        axes.scatter(after["first"], after["second"], s=9, color="tab:red", label=" moved")
    _settle(axes, f"{source}, and its samples as moved" if shown else f"{source} (nothing moves)")


def _paint_labels(axes: "Axes", data: pd.DataFrame, source: str) -> None:
    own = data[(data["domain"] == source) & ~data["moved"]]
    names = list(dict.fromkeys(sorted(own["label"])))
    numbers = own["label"].map({name: i for i, name in enumerate(names)})
    style: dict[str, Any] = {"cmap": "tab10" if len(names) <= 10 else "hsv", "s": 9}
    axes.scatter(own["first"], own["second"], c=numbers, **style)
    axes.set_title(f"{source} by label (each a colour)", fontsize=10, parse_math=False)
    axes.set(xlabel="first component of g", ylabel="second")


def _settle(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.set(xlabel="first component of g", ylabel="second")
    for text in axes.legend(fontsize=7).get_texts():
        text.set_parse_math(False)
