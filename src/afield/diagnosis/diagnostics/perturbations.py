"""What does the method imagine? Inputs beside their moved versions and the difference.

Looks at methods that move inputs along a gradient (CrossGrad, LabelGrad), with the networks as they
were deployed. In each strip: the input, the input as moved in a batch of training, and what was
added, blue for less and red for more, on the scale that is told above, strip by strip. The numbers
say of every sample how far it is moved, in units of what the network sees, and whether it is still
told right, by its label and, where there is a domain net, by its domain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.images import compare_images
from afield.diagnosis.diagnostic import (
    Diagnostic,
    Finding,
    single_run,
    trained_learner,
)
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform
from afield.progress import track
from afield.training.method import Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Perturbations"]

# Domains that are shown.
MAX_DOMAINS = 6


@dataclass(frozen=True)
class Perturbations(Diagnostic):
    """So many `strips` of every source that is shown, and numbers from so many `samples` of it."""

    strips: Annotated[int, LogUniform(1, 8)] = 3
    samples: Annotated[int, LogUniform(16, 4096)] = 128

    def __post_init__(self) -> None:
        for name in ("strips", "samples"):
            if getattr(self, name) < 1:
                raise SpecError(f"perturbations.{name}={getattr(self, name)}: must be above 0")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Move samples of the sources."""
        subject = single_run(subjects, "perturbations")
        method: Any = subject.method
        if not hasattr(method, "perturbed_inputs"):
            raise SpecError(
                f"perturbations looks at runs of crossgrad or labelgrad; "
                f"{subject.record.run.method} moves no inputs"
            )
        names = [name for name in subject.record.run.sources if name in subject.domains][
            :MAX_DOMAINS
        ]
        rows, strips = [], []
        for name in track(names, "moved inputs", len(names)):
            index = subject.sample_indices(name, max(self.samples, self.strips))
            batch = _batch(subject, name, index)
            moved = method.perturbed_inputs(trained_learner(subject), batch, subject.stream.total)
            called = [subject.sample_names[name][i] for i in index.tolist()]
            rows.append(_numbers(subject, batch, moved).assign(domain=name, sample=called))
            shown = (x[: self.strips].float().cpu() for x in (batch.x, moved))
            pair = (subject.modality.upright(x).numpy() for x in shown)
            strips.append(_Strips(name, *pair))
        data = pd.concat(rows, ignore_index=True)
        data = data[["domain", "sample", *(c for c in data if c not in ("domain", "sample"))]]

        def paint(axes: Sequence["Axes"]) -> None:
            for each, strip in zip(axes, strips, strict=True):
                strip.paint(each)

        return Finding(data, _told(data), paint, len(strips))


@dataclass(frozen=True)
class _Strips:
    """Some inputs of a domain and their moved versions."""

    domain: str
    before: NDArray[np.float32]
    after: NDArray[np.float32]

    def paint(self, axes: "Axes") -> None:
        """The three pictures side by side, a row for each sample; of arrays the first, as lines."""
        added = self.after - self.before
        scales = [f"±{np.abs(each).max():.2g}" for each in added]
        if self.before.ndim == 4:
            rows = zip(self.before, self.after, added, strict=True)
            axes.imshow(np.concatenate([compare_images(*row) for row in rows]))
            axes.set_axis_off()
        else:
            scales = scales[:1]
            axes.plot(self.before[0].reshape(-1), color="tab:grey", label="input")
            axes.plot(self.after[0].reshape(-1), color="tab:red", label="moved", linewidth=0.8)
            axes.legend(fontsize=7)
        title = f"{self.domain}: input, moved, difference\n({', '.join(scales)})"
        axes.set_title(title, fontsize=9, parse_math=False)


def _batch(subject: FinishedRun, name: str, index: Tensor) -> Batch:
    samples, sources = subject.domains[name], subject.record.run.sources
    batch = samples.batch(index.to(samples.y.device))
    return batch._replace(domain=torch.full_like(batch.y, sources.index(name)))


@torch.no_grad()
def _numbers(subject: FinishedRun, batch: Batch, moved: Tensor) -> pd.DataFrame:
    """A row for each sample: how far it is moved, and what is read before and after."""
    method: Any = subject.method
    classes = subject.learner.task.classes
    added = (moved - batch.x).flatten(1).abs()
    found = {
        "label": [classes[i] for i in batch.y.tolist()],
        "mean shift": added.mean(dim=1).tolist(),
        "largest shift": added.amax(dim=1).tolist(),
    }
    for when, x in (("answer", batch.x), ("answer moved", moved)):
        found[when] = [classes[i] for i in subject.model(x).argmax(dim=1).tolist()]
    if hasattr(method, "domain_classifier"):
        net = method.domain_classifier(trained_learner(subject))
        for when, x in (("domain right", batch.x), ("domain right moved", moved)):
            found[when] = (net(x).argmax(dim=1) == batch.domain).tolist()
    return pd.DataFrame(found)


def _told(data: pd.DataFrame) -> str:
    told = [f"inputs are moved by {data['mean shift'].mean():.2g} on average"]
    right, then = (
        100 * float((data[name] == data["label"]).mean()) for name in ("answer", "answer moved")
    )
    told.append(f"labels are told right {right:.1f} % of the time, {then:.1f} % when moved")
    if "domain right" in data:
        own, away = (
            100 * float(cast("pd.Series[bool]", data[name]).mean())
            for name in ("domain right", "domain right moved")
        )
        told.append(f"domains {own:.1f} %, and {away:.1f} %")
    return "; ".join(told)
