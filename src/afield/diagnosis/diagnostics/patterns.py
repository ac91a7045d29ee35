"""What does the model find hard? Every sample in three views, and its seed category (Mei et al.).

    features      what the last layer sees
    path          of every stage, the channel with the highest mean activation
    loss          under the deployed model
    category      samples of a domain ranked by loss, cut into `count` equal parts
    CCT(A → B)    how often two samples in one cluster of A are in one cluster of B (Eq. 3)

K-means makes the clusters, within each class that has two samples for each cluster. Beside each CCT
stands its chance: how often any two samples are in one cluster of B, as a large cluster takes in
most of them whatever A is. The paper has only `random`, two random divisions. Paths are compared as
names, not as numbers: that a channel is the fifth says nothing; the last stage is the head, so a
path ends in the answer. For the accuracy of each category over training the run is trained once
more; categories are those of the deployed weights, also where the method made its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from afield.data.images import to_rgb
from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Variant
from afield.networks.features import Views, view_samples
from afield.progress import track
from afield.training.sample_groups import (
    consistency,
    indices_by_label,
    kmeans_labels,
    quantile_bins,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Patterns"]

# Domains with a contact sheet, points in a map of samples, and moments of the training.
MAX_SHEETS, MAX_MAP_POINTS, MAX_MOMENTS = 6, 1500, 12
# Categories with fewer samples than these are called the worst only if there are no others.
MIN_CATEGORY_SAMPLES = 10
# Over so many pairs of random divisions their agreement is averaged.
RANDOM_PAIRS = 10
# A run that took more seconds than these is trained once more on request only.
MAX_RETRAIN_SECONDS = 600
# Pictures on a contact sheet, across and down, and what a row of them takes with its captions.
SHEET_GRID, ROW_HEIGHT = (5, 3), 1.3

Within = Literal["class", "domain", "domain_class"]
Painter = Callable[["Axes"], None]


@dataclass(frozen=True)
class Patterns(Diagnostic):
    """What is hard, of at most so many `samples` a domain, in `count` seed categories each.

    K-means has so many `kmeans_labels` of the samples `within` a class, a domain, or a class of a
    domain. With `history` the run is trained once more, for the accuracy of each category over
    training; none means: if that took ten minutes at most.
    """

    samples: Annotated[int, LogUniform(100, 10_000)] = 1000
    count: Annotated[int, Variant((2, 3, 4))] = 4
    clusters: Annotated[int, LogUniform(2, 20)] = 10
    within: Annotated[Within, Variant(("class", "domain", "domain_class"))] = "class"
    history: Annotated[bool | None, Variant((None, True, False))] = None

    def __post_init__(self) -> None:
        for name in ("samples", "count", "clusters"):
            if getattr(self, name) < 2:
                raise SpecError(f"patterns.{name}={getattr(self, name)}: must be at least 2")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Views, categories, their history, the agreement of the views, and pictures of it all."""
        subject = single_run(subjects, "patterns")
        chosen = {
            name: subject.sample_indices(name, self.samples).sort().values
            for name in subject.domains
        }
        views = Views.concatenate(list(_looked_at(subject, chosen)))
        table = _table(subject, chosen, views, self.count)
        seed = subject.record.run.seed % 2**31
        agreement = self._agreement(table, views, seed)
        history = self._history(subject, chosen, table)
        table = table.assign(**_maps(views, seed))
        categories = _categories(table)
        painters: list[Painter] = [
            lambda axes: _paint_map(axes, table, "features", "features (t-SNE)"),
            lambda axes: _paint_map(axes, table, "path", "activation paths (t-SNE)"),
            *([lambda axes: _paint_agreement(axes, agreement)] if len(agreement) else []),
            *([lambda axes: _paint_history(axes, history, subject.step)] if len(history) else []),
            *(
                _sheet(subject, name, table)
                for name in subject.shown(MAX_SHEETS)
                if _pictures(subject)
            ),
        ]

        def paint(axes: Sequence["Axes"]) -> None:
            for each, painter in zip(axes, painters, strict=True):
                painter(each)

        told = [f"the weights of step {subject.step}:", *_told(categories, table)]
        told.append(_agreed(agreement) if len(agreement) else self._too_few())
        more = {"samples": table.drop(columns=["label", "place"])}
        more |= {n: t for n, t in (("cct", agreement), ("history", history)) if len(t)}
        return Finding(categories, "\n".join(told), paint, len(painters), more)

    def _too_few(self) -> str:
        unit = self.within.replace("_", " and ")
        need = f"{2 * self.clusters} samples for {self.clusters} clusters"
        return f"views are not compared: no {unit} has {need}; use --set clusters or within"

    def _history(
        self, subject: FinishedRun, chosen: Mapping[str, Tensor], table: pd.DataFrame
    ) -> pd.DataFrame:
        """The accuracy of every category at a few moments of the training."""
        quick = subject.record.seconds <= MAX_RETRAIN_SECONDS
        if not (quick if self.history is None else self.history):
            return pd.DataFrame()
        found = []
        for step, model in track(
            subject.retrain(MAX_MOMENTS), "training once more", MAX_MOMENTS + 1
        ):
            parts = [
                subject.answers(model, subject.domains[name], index)
                for name, index in chosen.items()
            ]
            hits = torch.cat(parts).numpy() == table["label"].to_numpy()
            groups = table.assign(step=step, accuracy=hits).groupby(
                ["step", "domain", "seen", "category"]
            )
            found.append(groups["accuracy"].mean().reset_index())
        return pd.concat(found, ignore_index=True)

    def _agreement(self, table: pd.DataFrame, views: Views, seed: int) -> pd.DataFrame:
        """CCT of every pair of views, and of two random divisions; nothing if samples are few."""
        columns = {"class": ["label"], "domain": ["domain"], "domain_class": ["domain", "label"]}
        group = torch.tensor(table.groupby(columns[self.within]).ngroup().tolist())
        large = [index for index in indices_by_label(group) if len(index) >= 2 * self.clusters]
        if not large:
            return pd.DataFrame()
        points = {
            "features": views.features,
            "path": _indicators(views.path),
            "loss": views.losses[:, None],
        }
        labels = {name: torch.full_like(group, -1) for name in points}
        for index in track(large, "clusters", len(large)):
            for name, view in points.items():
                labels[name][index] = kmeans_labels(view[index].numpy(), self.clusters, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        dice = torch.randint(self.clusters, (2, RANDOM_PAIRS, len(group)), generator=generator)
        kept, together = torch.cat(large), torch.zeros_like(group)

        def agree(first: Tensor, second: Tensor) -> float:
            return consistency(first[kept], second[kept], group[kept])

        rows = [
            (a, b, agree(labels[a], labels[b]), agree(together, labels[b]))
            for a, b in permutations(points, 2)
        ]
        random = [(agree(a, b), agree(together, b)) for a, b in zip(*dice, strict=True)]
        rows.append(("random", "random", *np.mean(random, axis=0).tolist()))
        found = pd.DataFrame(rows, columns=["first", "second", "cct", "chance"])
        return found.assign(groups=len(large), samples=len(kept))


def _looked_at(subject: FinishedRun, chosen: Mapping[str, Tensor]) -> Iterator[Views]:
    for name, index in track(chosen.items(), "views", len(chosen)):
        yield view_samples(subject.model, subject.domains[name], index)


def _table(
    subject: FinishedRun, chosen: Mapping[str, Tensor], views: Views, count: int
) -> pd.DataFrame:
    """One row a sample: where it is from, what it is, what the model says, and its category."""
    classes = np.array(subject.learner.task.classes)
    losses = views.losses.split([len(index) for index in chosen.values()])
    rows = [(name, i) for name, index in chosen.items() for i in index.tolist()]
    return pd.DataFrame(
        {
            "domain": [name for name, _ in rows],
            "seen": [name in subject.record.run.sources for name, _ in rows],
            "sample": [subject.sample_names[name][i] for name, i in rows],
            "place": [i for _, i in rows],
            "label": views.y.numpy(),
            "class": classes[views.y.numpy()],
            "answer": classes[views.predictions.numpy()],
            "right": (views.predictions == views.y).numpy(),
            "loss": views.losses.numpy(),
            "category": torch.cat([quantile_bins(part, count) + 1 for part in losses]).numpy(),
        }
    )


def _indicators(path: Tensor) -> Tensor:
    """One column for every channel that is on some path: a path is a set of names."""
    columns = [column[:, None] == column.unique() for column in path.T]
    return torch.cat(columns, dim=1).float()


def _categories(table: pd.DataFrame) -> pd.DataFrame:
    """One row for every category of every domain; means are those of seen, or unseen, domains."""
    order = table["domain"].unique().tolist()
    groups = table.groupby(["domain", "seen", "category"])
    found = groups.agg(samples=("right", "size"), accuracy=("right", "mean"), loss=("loss", "mean"))
    found = found.reset_index()
    found["below_mean"] = found["seen"].map(table.groupby("seen")["right"].mean())
    found["below_mean"] -= found["accuracy"]
    place = found["domain"].map(order.index)
    return found.iloc[np.lexsort((found["category"], place))].reset_index(drop=True)


def _maps(views: Views, seed: int) -> dict[str, Any]:
    """Features and paths of some samples on a plane; NaN for the others."""
    from sklearn.manifold import TSNE

    size = len(views.y)
    kept = np.sort(np.random.default_rng(seed).permutation(size)[:MAX_MAP_POINTS])
    width = min(30.0, (len(kept) - 1) / 3)
    found: dict[str, Any] = {}
    kinds = (("features", "euclidean"), ("path", "hamming"))
    for view, metric in track(kinds, "maps", len(kinds)):
        tsne = TSNE(metric=metric, init="random", perplexity=width, random_state=seed)
        places = np.full((size, 2), np.nan)
        places[kept] = tsne.fit_transform(getattr(views, view)[kept].double().numpy())
        found |= {f"{view}_x": places[:, 0], f"{view}_y": places[:, 1]}
    return found


def _told(categories: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    """The worst category of what was trained on, and of what was not."""
    count = categories["category"].max()
    for seen, what in ((True, "of the samples it was trained on"), (False, "of unseen domains")):
        own = categories[categories["seen"] == seen]
        if len(own):
            large = own[own["samples"] >= MIN_CATEGORY_SAMPLES]
            own = large if len(large) else own
            worst = own.sort_values(["accuracy", "loss"], ascending=[True, False]).index[0]
            yield f"{what}, {_sentence(categories.loc[worst].to_dict(), table, count)}"


def _sentence(worst: Mapping[str, Any], table: pd.DataFrame, count: int) -> str:
    rows = table[(table["domain"] == worst["domain"]) & (table["category"] == worst["category"])]
    share = {2: "half", 3: "third", 4: "quarter"}.get(count, f"{count}th")
    which = "hardest " if worst["category"] == count else f"{worst['category']}. "
    mean = worst["accuracy"] + worst["below_mean"]
    told = (
        f"the {which}{share} of {worst['domain']} is worst: {len(rows)} "
        f"sample{'s' * (len(rows) > 1)}, {100 * worst['accuracy']:.1f} % right, "
        f"{100 * worst['below_mean']:.1f} points below the mean of all these ({100 * mean:.1f} %), "
        f"mean loss {worst['loss']:.2g}"
    )
    common = rows["class"].value_counts()
    told += f"; most often {common.index[0]} ({common.iloc[0]})"
    wrong = rows[~rows["right"]].groupby(["class", "answer"]).size()
    if len(wrong):
        label, answer = wrong.idxmax()
        told += f", most frequent error {label} taken for {answer} ({wrong.max()})"
    return told


def _agreed(agreement: pd.DataFrame) -> str:
    cct = {tuple(row[:2]): row[2:4] for row in agreement.itertuples(index=False)}
    ours, chance = cct["features", "loss"]
    return (
        f"two samples in one cluster of features are in one of loss {100 * ours:.0f} % of the time "
        f"(by chance {100 * chance:.0f} %, random groups {100 * cct['random', 'random'][0]:.0f} %; "
        f"{agreement['samples'].iloc[0]} samples in {agreement['groups'].iloc[0]} groups)"
    )


def _pictures(subject: FinishedRun) -> bool:
    return len(subject.stream.samples.x.shape) == 3


def _sheet(subject: FinishedRun, name: str, table: pd.DataFrame) -> Painter:
    """The pictures of a domain with the highest losses, what they are and are taken for."""
    own = table[table["domain"] == name].nlargest(SHEET_GRID[0] * SHEET_GRID[1], "loss")
    x = subject.domains[name].x
    (taken,) = x.chunks(len(own), torch.tensor(own["place"].tolist()))
    pictures = [to_rgb(x) for x in subject.modality.upright(taken.cpu())]
    unseen = "" if name in subject.record.run.sources else " (unseen)"
    title = f"highest losses in {_short(name, 24)}{unseen}"
    return lambda axes: _paint_sheet(axes, title, pictures, own)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _paint_map(axes: "Axes", table: pd.DataFrame, view: str, title: str) -> None:
    kept = table.dropna(subset=[f"{view}_x"])
    kept = kept.assign(rank=kept["loss"].rank(pct=True))
    for seen, own in kept.groupby("seen"):
        drawn = axes.scatter(
            own[f"{view}_x"],
            own[f"{view}_y"],
            c=own["rank"],
            marker="o" if seen else "^",
            s=8 if seen else 14,
            linewidths=0,
            vmin=0,
            vmax=1,
            label="trained on" if seen else "unseen",
        )
    axes.figure.colorbar(drawn, ax=axes, label="loss, by rank")
    for handle in axes.legend(fontsize=7).legend_handles:
        # Colour says something else.
        handle.set(array=None, color="grey")  # type: ignore[union-attr]
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=10)


def _paint_agreement(axes: "Axes", agreement: pd.DataFrame) -> None:
    pairs = zip(agreement["first"], agreement["second"], strict=True)
    labels = [a if a == b else f"{a} → {b}" for a, b in pairs]
    places = range(len(labels))
    axes.barh(places, agreement["cct"], label="CCT")
    axes.scatter(agreement["chance"], places, color="k", marker="|", s=160, label="chance")
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.legend(fontsize=7)
    axes.set_title("do clusters of two views agree?", fontsize=10)


def _paint_history(axes: "Axes", history: pd.DataFrame, deployed: int) -> None:
    from matplotlib import colormaps

    numbers = sorted(history["category"].unique().tolist())
    for number in numbers:
        colour = colormaps["viridis"]((number - 1) / max(1, len(numbers) - 1))
        for seen, style in ((True, "-"), (False, "--")):
            own = history[(history["category"] == number) & (history["seen"] == seen)]
            curve = 100 * own.groupby("step")["accuracy"].mean()
            label = f"category {number}" if seen else None
            axes.plot(curve.index, curve, style, color=colour, label=label, linewidth=1.4)
    axes.axvline(deployed, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="step (dotted: deployed)", ylabel="accuracy (%)", ylim=(0, 102))
    axes.legend(fontsize=7, title="dashed: unseen", title_fontsize=7)
    axes.set_title("accuracy of each seed category", fontsize=10)


def _paint_sheet(axes: "Axes", title: str, pictures: Sequence[Any], own: pd.DataFrame) -> None:
    across, down = SHEET_GRID
    style: dict[str, Any] = {"fontsize": 6, "ha": "center", "va": "top", "parse_math": False}
    rows = zip(pictures, own["class"], own["answer"], own["right"], strict=True)
    for i, (picture, label, answer, right) in enumerate(rows):
        top, left = ROW_HEIGHT * (i // across), i % across
        extent = (left, left + 0.94, top + 0.94, top)
        axes.imshow(picture, cmap="gray", vmin=0, vmax=1, extent=extent)
        told = _short(label, 13) + ("" if right else f"\n→ {_short(answer, 12)}")
        colour = "black" if right else "tab:red"
        axes.text(left + 0.47, top + 0.97, told, color=colour, **style)
    axes.set(xlim=(0, across), ylim=(ROW_HEIGHT * down, 0), aspect="auto")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10, parse_math=False)
