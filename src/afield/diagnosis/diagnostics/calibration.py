"""Are confidences calibrated on an unseen domain? As trained, and with two temperatures.

    afield bench DATA --methods erm --rules all       # --rules all: with runs that leave out two
    afield diagnose calibration runs

    none      softmax(logits)
    sources   softmax(logits / T), T fitted on the validation splits of the sources
    left out  the same with T fitted on the validation split of each source, with the logits of the
              run that leaves out this source as well

For every target, the model that was trained on the other domains is evaluated on the target's test
split: expected calibration error (15 bins), and accuracy on the most confident 90 % of the samples.
No temperature uses the target. `afield fit` fits the third kind, with runs that leave out one
domain instead of two: it has no target to exclude.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from afield.diagnosis.diagnostic import Diagnostic, Finding, Reopen
from afield.diagnosis.figure_style import legend_below
from afield.errors import SpecError
from afield.progress import track
from afield.runs.finished import FinishedRun
from afield.runs.record import Record
from afield.runs.row import Row, common_settings
from afield.training.calibration import (
    calibration_error,
    fit_temperature,
    reliability_bins,
    selective_accuracy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Calibration"]

# The figure leaves out bins with fewer samples: their accuracies are mostly noise.
MIN_BIN = 10
KINDS = ("none", "sources", "left out")
COLUMNS = ["method", "trial", "target", "temperature of", "temperature", "error", "accuracy",
           "accuracy at 90 %"]  # fmt: skip

LogitsAndLabels = tuple[Tensor, Tensor]


@dataclass
class _Outputs:
    """Logits and labels of a trial by target: of the target, its sources, and left-out sources."""

    targets: dict[str, LogitsAndLabels] = field(default_factory=dict)
    sources: dict[str, list[LogitsAndLabels]] = field(default_factory=dict)
    left_out: dict[str, list[LogitsAndLabels]] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration(Diagnostic):
    """Calibration error and selective accuracy on unseen domains, with three temperatures."""

    takes: ClassVar[Literal["runs", "records", "store"]] = "store"

    def diagnose_store(self, records: Sequence[Record], reopen: Reopen) -> Finding:
        """Examine every method and trial with all runs that leave out one or two domains."""
        trials = _trials(records)
        if not trials:
            raise SpecError(
                "calibration needs runs that leave out every pair of domains as well; "
                "`afield bench … --rules all` makes them"
            )
        count = sum(len(of_trial) for of_trial in trials.values())
        reopened = iter(track(_reopen_all(trials, reopen), "runs", count))
        rows: list[tuple[object, ...]] = []
        bins: dict[tuple[str, str], list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}
        for (method, trial), of_trial in trials.items():
            outputs = _collect([next(reopened) for _ in of_trial])
            for target, target_outputs in outputs.targets.items():
                for kind, temperature in _temperatures(outputs, target).items():
                    confidence, hits = _confidences(target_outputs, temperature)
                    bins.setdefault((method, kind), []).append((confidence, hits))
                    numbers = _numbers(confidence, hits)
                    rows.append((method, trial, target, kind, temperature, *numbers))
        data = pd.DataFrame(rows, columns=COLUMNS)
        curves = _curves(bins)
        plot = partial(_plot, curves=curves, data=data)
        return Finding(data, _summarize(data), plot, len(KINDS), {"reliability": curves})


def _trials(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """The records of each complete method and trial: every domain and every pair is left out."""
    by_unseen: dict[tuple[str, int], dict[frozenset[str], Record]] = {}
    names: dict[str, str] = {}
    common = common_settings(record.run for record in records)
    for record in records:
        run = record.run
        if run.role in ("", "classical") and not run.tested and len(record.unseen) in (1, 2):
            recipe = replace(run, trial=0).recipe
            draw = f" draw={run.draw}" if run.draw else ""
            names.setdefault(recipe, Row.of(run).without(common).label + draw)
            by_unseen.setdefault((recipe, run.trial), {})[frozenset(record.unseen)] = record
    complete = {}
    for (recipe, trial), of_trial in sorted(by_unseen.items(), key=lambda item: item[0][1]):
        domains = next(iter(of_trial.values())).domains
        needed = [frozenset((name,)) for name in domains]
        needed += [frozenset(pair) for pair in combinations(domains, 2)]
        if set(needed) <= of_trial.keys():
            complete[names[recipe], trial] = [of_trial[unseen] for unseen in needed]
    return complete


def _reopen_all(
    trials: Mapping[tuple[str, int], list[Record]], reopen: Reopen
) -> Iterator[FinishedRun]:
    """Reopen the runs one at a time: they would not all fit into memory."""
    for records in trials.values():
        yield from map(reopen, records)


def _collect(runs: Sequence[FinishedRun]) -> _Outputs:
    outputs = _Outputs()
    for finished in runs:
        unseen = finished.record.unseen
        if len(unseen) == 1:
            (target,) = unseen
            outputs.targets[target] = _outputs_of(finished, "domains", target)
            sources = finished.record.run.sources
            outputs.sources[target] = [_outputs_of(finished, "probes", name) for name in sources]
        else:
            for target, source in (unseen, unseen[::-1]):
                of_source = _outputs_of(finished, "probes", source)
                outputs.left_out.setdefault(target, []).append(of_source)
    return outputs


def _outputs_of(
    finished: FinishedRun, split: Literal["domains", "probes"], name: str
) -> LogitsAndLabels:
    samples = getattr(finished, split)[name]
    return finished.logits(samples), samples.y.cpu()


def _temperatures(outputs: _Outputs, target: str) -> dict[str, float]:
    seen, unseen = outputs.sources[target], outputs.left_out[target]
    values = (1.0, *(fit_temperature(*zip(*pairs, strict=True)) for pairs in (seen, unseen)))
    return dict(zip(KINDS, values, strict=True))


def _confidences(
    outputs: LogitsAndLabels, temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The confidence of every prediction, and whether the prediction is right."""
    logits, y = outputs
    best = (logits.double() / temperature).softmax(dim=1).max(dim=1)
    return best.values.numpy(), (best.indices == y).numpy()


def _numbers(confidence: NDArray[np.float64], hits: NDArray[np.bool_]) -> tuple[float, ...]:
    error = calibration_error(confidence, hits)
    return error, float(hits.mean()), selective_accuracy(confidence, hits)


def _curves(
    bins: Mapping[tuple[str, str], list[tuple[NDArray[np.float64], NDArray[np.bool_]]]],
) -> pd.DataFrame:
    """Accuracy by confidence, pooled over all targets and trials."""
    rows = [
        (method, kind, *cells)
        for (method, kind), parts in bins.items()
        for cells in reliability_bins(*map(np.concatenate, zip(*parts, strict=True)))
    ]
    columns = ["method", "temperature of", "confidence", "accuracy", "samples"]
    return pd.DataFrame(rows, columns=columns)


def _summarize(data: pd.DataFrame) -> str:
    means = data.groupby(["method", "temperature of"], sort=False)[
        ["error", "accuracy", "accuracy at 90 %"]
    ].mean()
    lines = []
    for method in data["method"].unique():
        of_method = means.loc[method]
        errors, covered = (
            ", ".join(f"{100 * of_method.loc[kind, column]:.1f} % ({kind})" for kind in KINDS)
            for column in ("error", "accuracy at 90 %")
        )
        accuracy = 100 * of_method.loc["none", "accuracy"]
        lines.append(
            f"{method} on unseen domains: calibration error {errors}; accuracy {accuracy:.1f} %, "
            f"on the most confident 90 % {covered}"
        )
    trials = data["trial"].nunique()
    fitted = f"in parentheses: what the temperature was fitted on; {trials} trial"
    return "\n".join([*lines, fitted + "s" * (trials > 1)])


def _plot(axes: Sequence["Axes"], *, curves: pd.DataFrame, data: pd.DataFrame) -> None:
    for panel, kind in zip(axes, KINDS, strict=True):
        panel.plot([0, 1], [0, 1], color="gray", linewidth=1, linestyle="--")
        shown = curves[(curves["temperature of"] == kind) & (curves["samples"] >= MIN_BIN)]
        for method, rows in shown.groupby("method", sort=False):
            sizes = 10 + 120 * rows["samples"] / rows["samples"].max()
            panel.plot(rows["confidence"], rows["accuracy"], label=f" {method}")
            panel.scatter(rows["confidence"], rows["accuracy"], s=sizes)
        error = 100 * data[data["temperature of"] == kind]["error"].mean()
        panel.set_title(f"temperature fitted on: {kind} (error {error:.1f} %)", fontsize=10)
        panel.set_xlabel("confidence")
        panel.set_ylabel("accuracy on unseen domains")
        panel.set_xlim(0, 1.02)
        panel.set_ylim(0, 1.02)
        legend_below(panel, columns=3)
