"""Whose gradient does an Adam step contain? The domains' shares of its momentum (Arith, Fig. 4).

    m_t = Σ_s (1 - β) βᵗ⁻ˢ g_s;   the share of a domain is the norm of its terms of the sum

The network of the run is trained from its initial weights, on one source domain after the other
and round again (on the first ten, if there are more). A plain gradient step would contain only the
domain of that step: this is why Arith takes its inner steps without momentum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd
import torch
import torch.nn.functional as F

from afield.diagnosis.diagnostic import Diagnostic, Finding, check_unmasked, single_run
from afield.diagnosis.figure_style import legend_below
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.progress import track
from afield.runs.finished import FinishedRun
from afield.tensors import flatten, set_gradients

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GradientShares"]

# The most colors of bars that can be distinguished.
MAX_DOMAINS = 10


@dataclass(frozen=True)
class GradientShares(Diagnostic):
    """Shares of the first `steps` of Adam, with `beta` as its first coefficient."""

    steps: Annotated[int, LogUniform(3, 60)] = 15
    beta: Annotated[float, Uniform(0.0, 0.99)] = 0.9

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"gradient_shares.steps={self.steps}: must be at least 1")
        if not 0 <= self.beta < 1:
            raise SpecError(f"gradient_shares.beta={self.beta:g}: must be at least 0 and below 1")

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Train for a few steps, and track the momentum of each domain separately."""
        finished = single_run(runs, "gradient_shares")
        check_unmasked(finished, "gradient_shares")
        learner, run = finished.learner, finished.record.run
        names = list(run.sources[:MAX_DOMAINS])
        if len(names) < 2:
            raise SpecError("gradient_shares needs two source domains or more; this run has one")
        parameters, model = learner.parameters(), learner.model.train()
        optimizer = torch.optim.Adam(parameters, lr=run.lr, betas=(self.beta, 0.999))
        momenta = [torch.zeros_like(flatten(parameters)) for _ in names]
        rows, batches = [], [finished.batches(name) for name in names]
        for step in track(range(self.steps), "steps", self.steps):
            present = step % len(names)
            batch = next(batches[present])
            loss = F.cross_entropy(model(batch.x), batch.y)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
            momenta = [self.beta * momentum for momentum in momenta]
            momenta[present] += (1 - self.beta) * flatten(gradient)
            set_gradients(parameters, gradient)
            optimizer.step()
            norms = torch.stack([momentum.norm() for momentum in momenta])
            shares = zip(names, (norms / norms.sum()).tolist(), strict=True)
            rows += [(step + 1, name, share, name == names[present]) for name, share in shares]
        data = pd.DataFrame(rows, columns=["step", "domain", "share", "present"])
        return Finding(data, _summarize(data), lambda axes: _plot(axes[0], data, names))


def _summarize(data: pd.DataFrame) -> str:
    shares = data[data["present"]].set_index("step")["share"]
    late = shares.iloc[-min(3, len(shares)) :].mean()
    return (
        f"the domain of the step has a share of {100 * shares.iloc[0]:.0f} % of Adam's first step "
        f"and {100 * late:.0f} % of the last steps (100 % of a plain gradient step)"
    )


def _plot(axes: "Axes", data: pd.DataFrame, names: list[str]) -> None:
    bottom = pd.Series(0.0, index=sorted(set(data["step"])))
    for name in names:
        rows = data[data["domain"] == name].set_index("step")
        widths = [1.6 if present else 0.0 for present in rows["present"]]
        style: dict[str, Any] = {"edgecolor": "k", "linewidth": widths}
        axes.bar(rows.index, rows["share"], bottom=bottom, label=f" {name}", **style)
        bottom = bottom + rows["share"]
    axes.set(xlabel="step (its domain is framed)", ylabel="share of Adam's momentum", ylim=(0, 1))
    axes.set_xticks(bottom.index[:: -(-len(bottom) // 15)])
    for patch in legend_below(axes, fontsize=8, columns=3).get_patches():
        patch.set_linewidth(0)
    axes.set_title("whose gradient a step contains", fontsize=10)
