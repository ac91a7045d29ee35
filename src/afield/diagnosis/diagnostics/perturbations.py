"""How does the method perturb inputs? Inputs, their perturbed versions and the difference.

It examines methods that move inputs along a gradient (CrossGrad, LabelGrad), with the deployed
networks. Each strip shows the input, the input as perturbed in training, and the difference, blue
for less and red for more, on one scale, which the title gives. The numbers say for every
sample how far it is moved, in units of the network's input, and whether its label, and with a
domain net its domain, is still predicted correctly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.samples import Batch
from afield.diagnosis.diagnostic import (
    Diagnostic,
    Finding,
    single_run,
    trained_learner,
)
from afield.diagnosis.figure_style import COLORS, PALE, legend_below
from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.progress import track
from afield.runs.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Perturbations"]

# Domains shown.
MAX_DOMAINS = 6


@dataclass(frozen=True)
class Perturbations(Diagnostic):
    """The figure has `strips` of every source shown, and the numbers are from `samples` of it."""

    strips: Annotated[int, LogUniform(1, 8)] = 3
    samples: Annotated[int, LogUniform(16, 4096)] = 128

    def __post_init__(self) -> None:
        for name in ("strips", "samples"):
            if getattr(self, name) < 1:
                raise SpecError(f"perturbations.{name}={getattr(self, name)}: must be at least 1")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Perturb samples of the sources."""
        finished = single_run(runs, "perturbations")
        method: Any = finished.method
        if not hasattr(method, "perturbed_inputs"):
            raise SpecError(
                f"perturbations takes runs of crossgrad or labelgrad; "
                f"{finished.record.run.method} does not perturb inputs"
            )
        names = [name for name in finished.record.run.sources if name in finished.domains][
            :MAX_DOMAINS
        ]
        rows, strips = [], []
        for name in track(names, "perturbed inputs", len(names)):
            index = finished.sample_indices(name, max(self.samples, self.strips))
            batch = _batch(finished, name, index)
            moved = method.perturbed_inputs(trained_learner(finished), batch, finished.stream.total)
            sample_names = [finished.sample_names[name][i] for i in index.tolist()]
            rows.append(_numbers(finished, batch, moved).assign(domain=name, sample=sample_names))
            shown = (x[: self.strips].float().cpu() for x in (batch.x, moved))
            pair = (finished.modality.upright(x).numpy() for x in shown)
            strips.append(_Strips(name, *pair))
        data = pd.concat(rows, ignore_index=True)
        data = data[["domain", "sample", *(c for c in data if c not in ("domain", "sample"))]]

        def plot(axes: Sequence["Axes"]) -> None:
            for panel, strip in zip(axes, strips, strict=True):
                strip.plot(panel)

        return Finding(data, _summarize(data), plot, len(strips))


@dataclass(frozen=True)
class _Strips:
    """Some inputs of a domain and their perturbed versions."""

    domain: str
    before: NDArray[np.float32]
    after: NDArray[np.float32]

    def plot(self, axes: "Axes") -> None:
        """Draw three images per sample in a row; for arrays, the first sample as lines."""
        added = self.after - self.before
        note, scale = "full color: ", float(np.abs(added).max())
        if self.before.ndim == 4:
            rows = zip(self.before, self.after, added, strict=True)
            axes.imshow(np.concatenate([_compare(*row, scale=scale) for row in rows]))
            axes.set_axis_off()
        else:
            note, scale = "", float(np.abs(added[0]).max())
            axes.plot(self.before[0].reshape(-1), color=PALE, label="input")
            axes.plot(self.after[0].reshape(-1), color=COLORS[5], label="perturbed", linewidth=0.8)
            legend_below(axes)
        title = f"{self.domain}: input, perturbed, difference\n({note}±{scale:.2g})"
        axes.set_title(title, fontsize=9, parse_math=False)


def _batch(finished: FinishedRun, name: str, index: Tensor) -> Batch:
    samples, sources = finished.domains[name], finished.record.run.sources
    batch = samples.batch(index.to(samples.y.device))
    return batch._replace(domain=torch.full_like(batch.y, sources.index(name)))


@torch.no_grad()
def _numbers(finished: FinishedRun, batch: Batch, moved: Tensor) -> pd.DataFrame:
    """One row per sample: how far it is moved, and the predictions before and after."""
    method: Any = finished.method
    classes = finished.learner.task.classes
    added = (moved - batch.x).flatten(1).abs()
    columns = {
        "label": [classes[i] for i in batch.y.tolist()],
        "mean shift": added.mean(dim=1).tolist(),
        "largest shift": added.amax(dim=1).tolist(),
    }
    for when, x in (("answer", batch.x), ("answer moved", moved)):
        columns[when] = [classes[i] for i in finished.model(x).argmax(dim=1).tolist()]
    if hasattr(method, "domain_classifier"):
        net = method.domain_classifier(trained_learner(finished))
        for when, x in (("domain right", batch.x), ("domain right moved", moved)):
            columns[when] = (net(x).argmax(dim=1) == batch.domain).tolist()
    return pd.DataFrame(columns)


def _summarize(data: pd.DataFrame) -> str:
    sentences = [f"inputs are moved by {data['mean shift'].mean():.2g} on average"]
    before, after = (
        100 * float((data[name] == data["label"]).mean()) for name in ("answer", "answer moved")
    )
    sentences.append(f"label accuracy {before:.1f} %, {after:.1f} % when perturbed")
    if "domain right" in data:
        before, after = (
            100 * float(cast("pd.Series[bool]", data[name]).mean())
            for name in ("domain right", "domain right moved")
        )
        sentences.append(f"domain accuracy {before:.1f} %, {after:.1f} % when perturbed")
    return "; ".join(sentences)


def _compare(
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    added: NDArray[np.float32],
    scale: float = 0.0,
) -> NDArray[np.float32]:
    """Show two versions of a sample on one scale, and their difference: blue below 0, red above.

    A difference of `scale` has the full color; by default, the largest one of this sample.
    """
    low, high = float(before.min()), float(before.max())
    scale = max(1e-12, scale or float(np.abs(added).max()))
    pair = [((x - low) / max(1e-6, high - low)).clip(0, 1) for x in (before, after)]
    first, second = (_three_channels(x).transpose(1, 2, 0) for x in pair)
    change = _three_channels(added / scale).mean(axis=0)
    up, down = change.clip(min=0), -change.clip(max=0)
    difference = np.stack([1 - down, 1 - up - down, 1 - up], axis=2)
    gap = np.ones((before.shape[1], max(1, before.shape[2] // 14), 3), dtype=np.float32)
    return np.concatenate([first, gap, second, gap, difference], axis=1).astype(np.float32)


def _three_channels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first three channels; with fewer than three, the first one repeated."""
    return x[:3] if len(x) >= 3 else np.repeat(x[:1], 3, axis=0)
