"""Do the domains agree? Cosines between the gradients of their losses.

    cosine(a, b) = ∇L_a · ∇L_b / (|∇L_a| |∇L_b|)   at the deployed weights

The diagonal shows the cosine between two halves of a domain's own samples, which is about the
highest that this number of samples allows. Gradient matching (Fish, Arith) is meant to raise the
other entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.diagnosis.diagnostic import Diagnostic, Finding, single_run
from afield.diagnosis.figure_style import signed
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.progress import track
from afield.runs.finished import FinishedRun
from afield.tensors import flatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Agreement"]

CHUNK = 64
# Domains shown: each keeps two gradients in memory.
MAX_DOMAINS = 12


@dataclass(frozen=True)
class Agreement(Diagnostic):
    """Cosines of gradients from `samples` of each domain, `at` the end or the start of the run."""

    samples: Annotated[int, LogUniform(16, 4096)] = 256
    at: Annotated[Literal["end", "start"], Variant(("end", "start"))] = "end"

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise SpecError(f"agreement.samples={self.samples}: must be at least 2, one per half")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Compute two gradients per domain, one for each half of its samples."""
        finished = single_run(runs, "agreement")
        model = finished.model if self.at == "end" else finished.learner.model.eval()
        names = finished.shown(MAX_DOMAINS)
        halves = {}
        for name in track(names, "gradients", len(names)):
            both = finished.sample_indices(name, self.samples).tensor_split(2)
            halves[name] = [_gradient(model, finished.domains[name], index) for index in both]
        seen = set(finished.record.run.sources)
        rows = [
            (a, b, _cosine(halves[a], halves[b], same=a == b), a in seen and b in seen)
            for a in names
            for b in names
        ]
        data = pd.DataFrame(rows, columns=["first", "second", "cosine", "seen"])
        return Finding(data, _summarize(data, seen), lambda axes: _plot(axes[0], data, names, seen))


def _gradient(model: nn.Module, samples: Samples, index: Tensor) -> Tensor:
    """The gradient of the mean loss as a unit vector."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros_like(flatten(parameters))
    for chunk in index.split(CHUNK):
        batch = samples.batch(chunk.to(samples.y.device))
        loss = F.cross_entropy(model(batch.x), batch.y, reduction="sum")
        total += flatten(torch.autograd.grad(loss, parameters, materialize_grads=True))
    return F.normalize(total, dim=0)


def _cosine(first: list[Tensor], second: list[Tensor], *, same: bool) -> float:
    """Cosine between the halves of the `same` domain, or the mean over the halves of two."""
    if same:
        return float(first[0] @ first[1])
    return float(torch.stack([a @ b for a in first for b in second]).mean())


def _summarize(data: pd.DataFrame, seen: set[str]) -> str:
    other = data[data["first"] != data["second"]]
    unseen = other[other["first"].isin(seen) & ~other["second"].isin(seen)]
    within = data[data["first"] == data["second"]]
    summary = f"mean cosine of gradients: {within['cosine'].mean():.2f} within a domain"
    if other["seen"].any():
        summary += f", {other[other['seen']]['cosine'].mean():.2f} between two sources"
    if len(unseen):
        summary += f", {unseen['cosine'].mean():.2f} between a source and an unseen domain"
    return summary


def _plot(axes: "Axes", data: pd.DataFrame, names: list[str], seen: set[str]) -> None:
    square = data.pivot_table(index="first", columns="second", values="cosine").loc[names, names]
    axes.imshow(square.to_numpy(), cmap="RdBu", vmin=-1, vmax=1)
    labels = [name if name in seen else f"{name} (unseen)" for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(names)), labels, parse_math=False)
    for i, row in enumerate(square.to_numpy()):
        for j, value in enumerate(row):
            color = "white" if abs(value) > 0.6 else "black"
            axes.text(j, i, signed(value), ha="center", va="center", color=color, fontsize=8)
    axes.set_title("cosine of gradients", fontsize=10)
    axes.set_xlabel("diagonal: two halves of a domain's samples", fontsize=8)
