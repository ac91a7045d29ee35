"""Is a confidence worth its number on an unseen domain? As trained, and with two temperatures.

    afield bench DATA --methods erm --rules all       # --rules all: with the twins
    afield diagnose calibration runs

    none      softmax(logits)
    sources   softmax(logits / T), T fitted on the probe parts of the sources, by the model itself
    left out  the same with T fitted on each source's probe part by the twin that left it out too

For every target, the model that was trained on the others is read on the target's main part:
expected calibration error (15 bins), and accuracy on the 90 % of the samples that it is surest of.
No temperature has anything of the target in it. `afield fit` fits the third kind, with one domain
left out where twins leave out two: it has no target to be kept out of it.
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
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.experiments.record import Record
from afield.progress import track
from afield.reporting.results import common_settings, row_label
from afield.training.calibration import (
    calibration_error,
    fit_temperature,
    reliability_bins,
    selective_accuracy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Calibration"]

KINDS = ("none", "sources", "left out")
COLUMNS = ["method", "trial", "target", "temperature of", "temperature", "error", "accuracy",
           "accuracy at 90 %"]  # fmt: skip

LogitsAndLabels = tuple[Tensor, Tensor]


@dataclass
class _Readings:
    """Logits and classes: a trial's targets, their sources, and sources that twins left out."""

    targets: dict[str, LogitsAndLabels] = field(default_factory=dict)
    sources: dict[str, list[LogitsAndLabels]] = field(default_factory=dict)
    left_out: dict[str, list[LogitsAndLabels]] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration(Diagnostic):
    """Calibration error and coverage on unseen domains, with three temperatures."""

    takes: ClassVar[Literal["runs", "records", "store"]] = "store"

    def diagnose_store(self, records: Sequence[Record], revive: Reopen) -> Finding:
        """Every recipe and trial of which each target has all its twins."""
        trials = _trials(records)
        if not trials:
            raise SpecError(
                "no target here has all its twins, which leave out another domain as well; "
                "`afield bench … --rules all` makes them"
            )
        needed = sum(len(own) for own in trials.values())
        revived = iter(track(_revived(trials, revive), "reading", needed))
        rows: list[tuple[object, ...]] = []
        bins: dict[tuple[str, str], list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}
        for (method, trial), own in trials.items():
            readings = _read([next(revived) for _ in own])
            for target, portion in readings.targets.items():
                for kind, temperature in _temperatures(readings, target).items():
                    confidence, hits = _judged(portion, temperature)
                    bins.setdefault((method, kind), []).append((confidence, hits))
                    numbers = _numbers(confidence, hits)
                    rows.append((method, trial, target, kind, temperature, *numbers))
        data = pd.DataFrame(rows, columns=COLUMNS)
        curves = _curves(bins)
        paint = partial(_paint, curves=curves, data=data)
        return Finding(data, _told(data), paint, len(KINDS), {"reliability": curves})


def _trials(records: Sequence[Record]) -> dict[tuple[str, int], list[Record]]:
    """The records of each recipe and trial that is whole: each domain, and each pair, left out."""
    found: dict[tuple[str, int], dict[frozenset[str], Record]] = {}
    names: dict[str, str] = {}
    common = common_settings(record.run for record in records)
    for record in records:
        run = record.run
        if not run.role and not run.tested and len(record.unseen) in (1, 2):
            recipe = replace(run, trial=0).recipe
            draw = f" draw={run.draw}" if run.draw else ""
            names.setdefault(recipe, row_label(run, exclude=common) + draw)
            found.setdefault((recipe, run.trial), {})[frozenset(record.unseen)] = record
    whole = {}
    for (recipe, trial), own in sorted(found.items(), key=lambda item: item[0][1]):
        domains = next(iter(own.values())).domains
        needed = [frozenset((name,)) for name in domains]
        needed += [frozenset(pair) for pair in combinations(domains, 2)]
        if set(needed) <= own.keys():
            whole[names[recipe], trial] = [own[each] for each in needed]
    return whole


def _revived(
    trials: Mapping[tuple[str, int], list[Record]], revive: Reopen
) -> Iterator[FinishedRun]:
    """One after the other: they would not all fit into memory."""
    for records in trials.values():
        yield from map(revive, records)


def _read(subjects: Sequence[FinishedRun]) -> _Readings:
    found = _Readings()
    for subject in subjects:
        unseen = subject.record.unseen
        if len(unseen) == 1:
            (target,) = unseen
            found.targets[target] = _portion(subject, "domains", target)
            sources = subject.record.run.sources
            found.sources[target] = [_portion(subject, "probes", name) for name in sources]
        else:
            for target, source in (unseen, unseen[::-1]):
                own = _portion(subject, "probes", source)
                found.left_out.setdefault(target, []).append(own)
    return found


def _portion(
    subject: FinishedRun, part: Literal["domains", "probes"], name: str
) -> LogitsAndLabels:
    samples = getattr(subject, part)[name]
    return subject.logits(samples), samples.y.cpu()


def _temperatures(readings: _Readings, target: str) -> dict[str, float]:
    seen, unseen = readings.sources[target], readings.left_out[target]
    values = (1.0, *(fit_temperature(*zip(*own, strict=True)) for own in (seen, unseen)))
    return dict(zip(KINDS, values, strict=True))


def _judged(
    portion: LogitsAndLabels, temperature: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    logits, y = portion
    best = (logits.double() / temperature).softmax(dim=1).max(dim=1)
    return best.values.numpy(), (best.indices == y).numpy()


def _numbers(confidence: NDArray[np.float64], hits: NDArray[np.bool_]) -> tuple[float, ...]:
    error = calibration_error(confidence, hits)
    return error, float(hits.mean()), selective_accuracy(confidence, hits)


def _curves(
    bins: Mapping[tuple[str, str], list[tuple[NDArray[np.float64], NDArray[np.bool_]]]],
) -> pd.DataFrame:
    """Confidence against accuracy, all targets and trials together."""
    rows = [
        (method, kind, *cells)
        for (method, kind), parts in bins.items()
        for cells in reliability_bins(*map(np.concatenate, zip(*parts, strict=True)))
    ]
    columns = ["method", "temperature of", "confidence", "accuracy", "samples"]
    return pd.DataFrame(rows, columns=columns)


def _told(data: pd.DataFrame) -> str:
    means = data.groupby(["method", "temperature of"], sort=False)[
        ["error", "accuracy", "accuracy at 90 %"]
    ].mean()
    told = []
    for method in data["method"].unique():
        own = means.loc[method]
        errors = ", ".join(f"{kind} {100 * own.loc[kind, 'error']:.1f} %" for kind in KINDS)
        covered = ", ".join(
            f"{kind} {100 * own.loc[kind, 'accuracy at 90 %']:.1f} %" for kind in KINDS
        )
        accuracy = 100 * own.loc["none", "accuracy"]
        told.append(
            f"{method} on unseen domains: calibration error {errors}; accuracy {accuracy:.1f} %, "
            f"on the surest 90 % {covered}"
        )
    trials = data["trial"].nunique()
    return "; ".join(told) + f" (temperature of: {', '.join(KINDS)}; {trials} trial(s))"


def _paint(axes: Sequence["Axes"], *, curves: pd.DataFrame, data: pd.DataFrame) -> None:
    for each, kind in zip(axes, KINDS, strict=True):
        each.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
        for method, own in curves[curves["temperature of"] == kind].groupby("method", sort=False):
            sizes = 10 + 120 * own["samples"] / own["samples"].max()
            each.plot(own["confidence"], own["accuracy"], label=f" {method}")
            each.scatter(own["confidence"], own["accuracy"], s=sizes)
        error = 100 * data[data["temperature of"] == kind]["error"].mean()
        each.set_title(f"temperature of: {kind} (error {error:.1f} %)", fontsize=10)
        each.set_xlabel("confidence")
        each.set_ylabel("accuracy on unseen domains")
        each.set_xlim(0, 1.02)
        each.set_ylim(0, 1.02)
        for text in each.legend(fontsize=8).get_texts():
            text.set_parse_math(False)
