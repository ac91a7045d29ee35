"""Which samples are hard? Every sample in three views, and its seed category (Mei et al.).

    features      the input of the last layer
    path          of every stage, the channel with the highest mean activation
    loss          under the deployed model
    category      samples of a domain ranked by loss, divided into `count` equal groups
    CCT(A → B)    how often two samples in one cluster of A are in one cluster of B (Eq. 3)

K-means forms the clusters within each class that has two samples for each cluster. Each CCT comes
with its chance level: how often any two samples are in one cluster of B, since a large cluster
contains most of them whatever A is. The paper has only `random`, two random divisions. Paths are
compared as names, not as numbers: the index of a channel has no meaning. The last stage is the
head, so a path ends in the prediction. The run is trained once more for the accuracy of each
category over training. Categories are those of the deployed weights, even if the method made its
own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import COLORS, legend_below
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.networks.features import Views, view_samples
from afield.progress import track
from afield.runs.finished import FinishedRun
from afield.training.sample_groups import (
    consistency,
    indices_by_label,
    kmeans_labels,
    quantile_bins,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Patterns"]

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
    images = [finished.modality.to_rgb(image) for image in chosen.cpu()]
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


# Domains with a contact sheet, points on a map, and checkpoints of the history.
MAX_SHEETS, MAX_MAP_POINTS, MAX_MOMENTS = 6, 1500, 12
# A category with fewer samples is called the worst only if all have fewer.
MIN_CATEGORY_SAMPLES = 10
# Pairs of random divisions to average over.
RANDOM_PAIRS = 10
# A run that took longer is trained once more only on request.
MAX_RETRAIN_SECONDS = 600

Within = Literal["class", "domain", "domain_class"]


@dataclass(frozen=True)
class Patterns(Diagnostic):
    """Hard samples among at most `samples` of each domain, in `count` seed categories.

    K-means divides the samples `within` a class, a domain, or a class of a domain into `clusters`.
    With `history`, the run is trained once more for the accuracy of each category over training;
    none means: if the run took at most ten minutes.
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

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute views, categories, their history and the agreement of the views."""
        finished = single_run(runs, "patterns")
        chosen = {
            name: finished.sample_indices(name, self.samples).sort().values
            for name in finished.domains
        }
        views = Views.concatenate(list(_compute_views(finished, chosen)))
        table = _table(finished, chosen, views, self.count)
        seed = finished.record.run.seed % 2**31
        agreement = self._agreement(table, views, seed)
        history = self._history(finished, chosen, table)
        table = table.assign(**_maps(views, seed))
        categories = _categories(table)
        plots: list[PanelPlot] = [
            lambda axes: plot_map(axes, table, "features", "features (t-SNE)"),
            lambda axes: plot_map(axes, table, "path", "activation paths (t-SNE)"),
            *([lambda axes: plot_agreement(axes, agreement)] if len(agreement) else []),
            *([lambda axes: plot_history(axes, history, finished.step)] if len(history) else []),
        ]
        if _has_images(finished):
            shown = finished.shown(MAX_SHEETS)
            plots += [contact_sheet(finished, name, table) for name in shown]

        def plot(axes: Sequence["Axes"]) -> None:
            for panel, plot_panel in zip(axes, plots, strict=True):
                plot_panel(panel)

        lines = [f"the weights of step {finished.step}:", *_describe_worst(categories, table)]
        lines.append(_describe_agreement(agreement) if len(agreement) else self._too_few())
        tables = {"samples": table.drop(columns=["label", "place"])}
        tables |= {n: t for n, t in (("cct", agreement), ("history", history)) if len(t)}
        return Finding(categories, "\n".join(lines), plot, len(plots), tables)

    def _too_few(self) -> str:
        unit = self.within.replace("_", " and ")
        need = f"{2 * self.clusters} samples for {self.clusters} clusters"
        return f"views are not compared: no {unit} has {need}; use --set clusters or within"

    def _history(
        self, finished: FinishedRun, chosen: Mapping[str, Tensor], table: pd.DataFrame
    ) -> pd.DataFrame:
        """The accuracy of every category at a few checkpoints of the training."""
        quick = finished.record.seconds <= MAX_RETRAIN_SECONDS
        if not (quick if self.history is None else self.history):
            return pd.DataFrame()
        rows = []
        for step, model in track(
            finished.retrain(MAX_MOMENTS), "training once more", MAX_MOMENTS + 1
        ):
            predictions = [
                finished.answers(model, finished.domains[name], index)
                for name, index in chosen.items()
            ]
            hits = torch.cat(predictions).numpy() == table["label"].to_numpy()
            groups = table.assign(step=step, accuracy=hits).groupby(
                ["step", "domain", "seen", "category"]
            )
            rows.append(groups["accuracy"].mean().reset_index())
        return pd.concat(rows, ignore_index=True)

    def _agreement(self, table: pd.DataFrame, views: Views, seed: int) -> pd.DataFrame:
        """CCT of every pair of views and of random divisions; empty with too few samples."""
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
        labels = {name: torch.zeros_like(group) for name in points}
        for index in track(large, "clusters", len(large)):
            for name, view in points.items():
                labels[name][index] = kmeans_labels(view[index].numpy(), self.clusters, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        divisions = torch.randint(self.clusters, (2, RANDOM_PAIRS, len(group)), generator=generator)
        kept, one_cluster = torch.cat(large), torch.zeros_like(group)

        def agree(first: Tensor, second: Tensor) -> float:
            return consistency(first[kept], second[kept], group[kept])

        rows = [
            (a, b, agree(labels[a], labels[b]), agree(one_cluster, labels[b]))
            for a, b in permutations(points, 2)
        ]
        random = [(agree(a, b), agree(one_cluster, b)) for a, b in zip(*divisions, strict=True)]
        rows.append(("random", "random", *np.mean(random, axis=0).tolist()))
        pairs = pd.DataFrame(rows, columns=["first", "second", "cct", "chance"])
        return pairs.assign(groups=len(large), samples=len(kept))


def _compute_views(finished: FinishedRun, chosen: Mapping[str, Tensor]) -> Iterator[Views]:
    for name, index in track(chosen.items(), "views", len(chosen)):
        yield view_samples(finished.model, finished.domains[name], index)


def _table(
    finished: FinishedRun, chosen: Mapping[str, Tensor], views: Views, count: int
) -> pd.DataFrame:
    """One row per sample: its domain, class, prediction, loss and category."""
    classes = np.array(finished.learner.task.classes)
    losses = views.losses.split([len(index) for index in chosen.values()])
    rows = [(name, i) for name, index in chosen.items() for i in index.tolist()]
    return pd.DataFrame(
        {
            "domain": [name for name, _ in rows],
            "seen": [name in finished.record.run.sources for name, _ in rows],
            "sample": [finished.sample_names[name][i] for name, i in rows],
            "place": [i for _, i in rows],
            "label": views.y.numpy(),
            "class": classes[views.y.numpy()],
            "answer": classes[views.predictions.numpy()],
            "right": (views.predictions == views.y).numpy(),
            "loss": views.losses.numpy(),
            "category": torch.cat([quantile_bins(own, count) + 1 for own in losses]).numpy(),
        }
    )


def _indicators(path: Tensor) -> Tensor:
    """Paths as indicators: one column for every channel that is on some path."""
    columns = [column[:, None] == column.unique() for column in path.T]
    return torch.cat(columns, dim=1).float()


def _categories(table: pd.DataFrame) -> pd.DataFrame:
    """One row for every category of every domain, compared with all seen or all unseen samples."""
    order = table["domain"].unique().tolist()
    groups = table.groupby(["domain", "seen", "category"])
    rows = groups.agg(samples=("right", "size"), accuracy=("right", "mean"), loss=("loss", "mean"))
    rows = rows.reset_index()
    rows["below_mean"] = rows["seen"].map(table.groupby("seen")["right"].mean())
    rows["below_mean"] -= rows["accuracy"]
    position = rows["domain"].map(order.index)
    return rows.iloc[np.lexsort((rows["category"], position))].reset_index(drop=True)


def _maps(views: Views, seed: int) -> dict[str, Any]:
    """Two-dimensional maps of the features and paths of some samples; NaN for the others."""
    from sklearn.manifold import TSNE

    size = len(views.y)
    kept = np.sort(np.random.default_rng(seed).permutation(size)[:MAX_MAP_POINTS])
    perplexity = min(30.0, (len(kept) - 1) / 3)
    columns: dict[str, Any] = {}
    kinds = (("features", "euclidean"), ("path", "hamming"))
    for view, metric in track(kinds, "maps", len(kinds)):
        tsne = TSNE(metric=metric, init="random", perplexity=perplexity, random_state=seed)
        positions = np.full((size, 2), np.nan)
        positions[kept] = tsne.fit_transform(getattr(views, view)[kept].double().numpy())
        columns |= {f"{view}_x": positions[:, 0], f"{view}_y": positions[:, 1]}
    return columns


def _describe_worst(categories: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    """The worst categories of the training samples and of unseen domains."""
    count = categories["category"].max()
    for seen, words in ((True, "training samples"), (False, "unseen domains")):
        rows = categories[categories["seen"] == seen]
        if len(rows):
            large = rows[rows["samples"] >= MIN_CATEGORY_SAMPLES]
            rows = large if len(large) else rows
            worst = rows.sort_values(["accuracy", "loss"], ascending=[True, False]).index[0]
            yield f"{words}: {_describe_category(categories.loc[worst].to_dict(), table, count)}"


def _describe_category(worst: Mapping[str, Any], table: pd.DataFrame, count: int) -> str:
    rows = table[(table["domain"] == worst["domain"]) & (table["category"] == worst["category"])]
    share = {2: "half", 3: "third", 4: "quarter"}.get(count, f"{count}th")
    which = f"the hardest {share}" if worst["category"] == count else f"{share} {worst['category']}"
    mean = worst["accuracy"] + worst["below_mean"]
    text = (
        f"{which} of {worst['domain']} is worst: {len(rows)} "
        f"sample{'s' * (len(rows) > 1)}, accuracy {100 * worst['accuracy']:.1f} %, "
        f"{100 * worst['below_mean']:.1f} points below the mean ({100 * mean:.1f} %), "
        f"mean loss {worst['loss']:.2g}"
    )
    common = rows["class"].value_counts()
    text += f"; most frequent class {common.index[0]} ({common.iloc[0]})"
    errors = rows[~rows["right"]].groupby(["class", "answer"]).size()
    if len(errors):
        label, predicted = errors.idxmax()
        text += f", most frequent error {label} predicted as {predicted} ({errors.max()})"
    return text


def _describe_agreement(agreement: pd.DataFrame) -> str:
    rows = agreement.set_index(["first", "second"]).to_dict("index")
    found, random = rows["features", "loss"], rows["random", "random"]
    return (
        "two samples in one cluster of features are in one cluster of loss "
        f"{100 * found['cct']:.0f} % of the time (by chance {100 * found['chance']:.0f} %, random "
        f"groups {100 * random['cct']:.0f} %; {found['samples']} samples in {found['groups']} "
        "groups)"
    )


def _has_images(finished: FinishedRun) -> bool:
    return len(finished.stream.samples.x.shape) == 3
