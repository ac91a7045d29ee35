"""Whose gradient does an Adam step contain? Shares in its momentum (Arith, Fig. 4).

    m_t = Σ_s (1 - β) βᵗ⁻ˢ g_s;   the share of a domain is the norm of its part of the sum

The run's network is trained from its beginning, one domain after the other and round again (of many
source domains, the first ten). Plain gradient steps would have the domain of the step alone: that
is why Arith walks without momentum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
import torch.nn.functional as F

from afield.diagnosis.diagnostic import Diagnostic, Finding, check_unmasked, single_run
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.hyperparameters import LogUniform, Uniform
from afield.progress import track
from afield.tensors import flatten, set_gradients

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GradientShares"]

# Bars in so many colours can be told apart.
MAX_DOMAINS = 10


@dataclass(frozen=True)
class GradientShares(Diagnostic):
    """Shares in the first `steps` of Adam with this `beta` (its first)."""

    steps: Annotated[int, LogUniform(3, 60)] = 15
    beta: Annotated[float, Uniform(0.0, 0.99)] = 0.9

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps={self.steps}: must be above 0")
        if not 0 <= self.beta < 1:
            raise SpecError(f"beta={self.beta:g}: from 0 to below 1")

    def diagnose_runs(self, subjects: Sequence[FinishedRun]) -> Finding:
        """Train for a few steps, and keep each domain's part of the momentum apart."""
        subject = single_run(subjects, "gradient_shares")
        check_unmasked(subject, "gradient_shares")
        learner, run = subject.learner, subject.record.run
        names = list(run.sources[:MAX_DOMAINS])
        if len(names) < 2:
            raise SpecError("gradient_shares is about two source domains or more; this run has one")
        parameters, model = learner.parameters(), learner.model.train()
        optimizer = torch.optim.Adam(parameters, lr=run.lr, betas=(self.beta, 0.999))
        parts = [torch.zeros_like(flatten(parameters)) for _ in names]
        rows, batches = [], [subject.batches(name) for name in names]
        for step in track(range(self.steps), "steps", self.steps):
            present = step % len(names)
            batch = next(batches[present])
            loss = F.cross_entropy(model(batch.x), batch.y)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
            parts = [self.beta * part for part in parts]
            parts[present] += (1 - self.beta) * flatten(gradient)
            set_gradients(parameters, gradient)
            optimizer.step()
            norms = torch.stack([part.norm() for part in parts])
            shares = zip(names, (norms / norms.sum()).tolist(), strict=True)
            rows += [(step + 1, name, share, name == names[present]) for name, share in shares]
        data = pd.DataFrame(rows, columns=["step", "domain", "share", "present"])
        return Finding(data, _told(data), lambda axes: _paint(axes[0], data, names))


def _told(data: pd.DataFrame) -> str:
    own = data[data["present"]].set_index("step")["share"]
    late = own.iloc[-min(3, len(own)) :].mean()
    return (
        f"the domain of the step has {100 * own.iloc[0]:.0f} % of Adam's first step and "
        f"{100 * late:.0f} % of the last ones (of a plain gradient step it has all)"
    )


def _paint(axes: "Axes", data: pd.DataFrame, names: list[str]) -> None:
    bottom = pd.Series(0.0, index=sorted(set(data["step"])))
    for name in names:
        own = data[data["domain"] == name].set_index("step")
        lines = [1.6 if present else 0.0 for present in own["present"]]
        axes.bar(
            own.index, own["share"], bottom=bottom, label=f" {name}", edgecolor="k", linewidth=lines
        )
        bottom = bottom + own["share"]
    axes.set(xlabel="step (its domain is framed)", ylabel="share of Adam's momentum", ylim=(0, 1))
    axes.set_xticks(bottom.index[:: -(-len(bottom) // 15)])
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncol": 3}
    legend = axes.legend(fontsize=8, **below)
    for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True):
        text.set_parse_math(False)
        patch.set_linewidth(0)
    axes.set_title("whose gradient a step contains", fontsize=10)
