"""How much does a setting matter? Accuracy by its values (Arith, Fig. 5; DMG, Figs. 3, 5, 6).

    afield bench DATA --methods arith --set arith.steps_per_domain=3     # and with 1, 2, 5
    afield diagnose sensitivity runs --set of=steps_per_domain

Each point is a mean over unseen domains and trials, ± its standard error. It comes from the records
of a store and the selection rule `rule`, by default the one that does not use the tested domains;
nothing is trained. Further panels show the accuracy on the sources and, if runs have masks, the
overlap of the masks at the end, layer by layer. Runs that differ in other settings as well are
separate lines. `of=domains` is the number of training domains
(`afield bench … --hold-out 0.25 --train-on 5,10,all`; CrossGrad, Table 8).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pandas as pd

from afield.diagnosis.diagnostic import Diagnostic, Finding
from afield.diagnosis.figure_style import color_of, legend_below
from afield.errors import SpecError
from afield.hyperparameters import Variant
from afield.reporting.table import tabulate
from afield.runs.record import Record
from afield.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Sensitivity"]

# The most values that all have a tick.
MAX_TICKS = 8
# Settings of runs that can be plotted, beside those of methods.
RUN_SETTINGS = (
    "lr",
    "weight_decay",
    "batch",
    "steps",
    "size",
    "limit",
    "domains_per_step",
    "domains",
)


@dataclass(frozen=True)
class Sensitivity(Diagnostic):
    """Accuracy by the setting `of`; by default, the only setting with several values."""

    of: Annotated[str, Variant(("steps_per_domain", "lr"))] = ""
    rule: Annotated[str, Variant(("", "target"))] = ""

    takes: ClassVar[Literal["runs", "records"]] = "records"

    def diagnose_records(self, records: Sequence[Record]) -> Finding:
        """Make one table per value; methods without the setting have one row for all values."""
        records = [record for record in records if not record.run.is_auxiliary]
        datasets = sorted({record.run.dataset for record in records})
        if len(datasets) > 1:
            raise SpecError(
                f"these records are of {', '.join(datasets)}; use one store per dataset"
            )
        name = self.of or _varying_setting([record.run for record in records])
        groups: dict[str | float | None, list[Record]] = {}
        for record in records:
            value = _value(record.run, name)
            groups.setdefault(value, []).append(_without(record, name))
        if not groups.keys() - {None}:
            raise SpecError(f"no run in this store has a setting {name!r}")
        if any(isinstance(value, str) for value in groups):
            # Words and numbers do not fit on one axis.
            groups = {v if v is None else _format_value(v): group for v, group in groups.items()}
        rule = self.rule or _default_rule(records)
        frames = [
            tabulate(group, rules=rule).assign(value=value) for value, group in groups.items()
        ]
        tables = pd.concat(frames).dropna(subset="accuracy")
        data, in_domain = (_rows(tables, domain) for domain in ("mean", "in-domain"))
        if data.empty:
            raise SpecError(
                f"the rule {rule} needs more records: a mean needs runs that leave out each "
                "domain, as `afield bench` makes them"
            )
        shared = pd.DataFrame(
            [(*row, value) for value, group in groups.items() for row in _mask_overlaps(group)],
            columns=["method", "layer", "iou", "value"],
        )

        def plot(axes: Sequence["Axes"]) -> None:
            _plot(axes[0], data, name, "accuracy on unseen domains (%)")
            _plot(axes[1], in_domain, name, "accuracy on the sources (%)")
            for panel in axes[2:]:
                _plot_shared(panel, shared, name)

        extra = {"in_domain": in_domain} | ({"shared": shared} if len(shared) else {})
        return Finding(data, _summarize(data, name), plot, 1 + len(extra), extra)


def _default_rule(records: Sequence[Record]) -> str:
    """The rule that does not use the tested domains."""
    return "validation" if all(record.tests != record.unseen for record in records) else "sources"


def _rows(tables: pd.DataFrame, domain: str) -> pd.DataFrame:
    rows = tables[tables["domain"] == domain]
    columns = rows[["method", "value", "accuracy", "stderr", "trials"]]
    return columns.sort_values(["method", "value"], ignore_index=True)


def _mask_overlaps(records: Sequence[Record]) -> Iterator[tuple[str, str, float]]:
    """The overlap of masks at the end of training, a mean over runs for each method and layer."""
    overlaps: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for log, value in record.checkpoints[-1].logs.items():
            if log.startswith("iou "):
                key = record.run.method, log.removeprefix("iou ")
                overlaps.setdefault(key, []).append(value)
    for (method, layer), values in overlaps.items():
        yield method, layer, sum(values) / len(values)


def _varying_setting(runs: Sequence[Run]) -> str:
    """The only setting with several values among the runs of one method."""
    values: dict[str, set[tuple[str, str]]] = {}
    for run in runs:
        for name in (*run.params, *RUN_SETTINGS):
            values.setdefault(name, set()).add((run.method, str(_value(run, name))))
    several = [
        name for name, pairs in values.items() if len(pairs) > len({method for method, _ in pairs})
    ]
    if len(several) != 1:
        if not several:
            raise SpecError(
                "every setting has only one value in this store; run `afield bench` with other "
                "values first, e.g. --set lr=0.001"
            )
        names = ", ".join(several)
        raise SpecError(f"several settings vary in this store: {names}; choose with of=NAME")
    return several[0]


def _value(run: Run, name: str) -> str | float | None:
    """The value of a setting as a number or a word; None if the run lacks the setting."""
    if name == "domains":
        return len(run.sources) if run.tested else None
    if name not in run.params and name not in RUN_SETTINGS:
        return None
    value = run.params.get(name, getattr(run, name, None))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number else str(value).lower()


def _format_value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _without(record: Record, name: str) -> Record:
    """The record without the setting among those chosen by hand, so that labels omit it."""
    given = {key: v for key, v in record.run.given.items() if key.rpartition(".")[2] != name}
    return replace(record, run=replace(record.run, given=given))


def _summarize(data: pd.DataFrame, name: str) -> str:
    """The best and the worst value for every method."""
    sentences = []
    for method, rows in data.dropna(subset="value").groupby("method"):
        ranked = rows.sort_values("accuracy")
        worst, best = ranked.iloc[0], ranked.iloc[-1]
        values = _format_value(best["value"]), _format_value(worst["value"])
        sentences.append(
            f"{method}: best at {name}={values[0]} ({100 * best['accuracy']:.1f} %), "
            f"worst at {values[1]} ({100 * worst['accuracy']:.1f} %)"
        )
    one_trial = data["trials"].max() < 2
    return "; ".join(sentences) + " (one trial: this may be chance)" * bool(one_trial)


def _plot_shared(axes: "Axes", shared: pd.DataFrame, name: str) -> None:
    ordered = shared.sort_values("value")
    for (method, layer), rows in ordered.groupby(["method", "layer"], sort=False):
        axes.plot(rows["value"], rows["iou"], marker="o", label=f" {method}: {layer}")
    axes.set_ylabel("IoU of two domains' masks")
    axes.set_ylim(0, 1)
    _format_axis(axes, shared, name)


def _plot(axes: "Axes", data: pd.DataFrame, name: str, quantity: str) -> None:
    for number, (method, rows) in enumerate(data.groupby("method")):
        if rows["value"].isna().all():
            level = 100 * rows["accuracy"].iloc[0]
            axes.axhline(level, linestyle="--", color=color_of(number), label=f" {method}")
            continue
        error = 100 * rows["stderr"].fillna(0)
        axes.errorbar(
            rows["value"], 100 * rows["accuracy"], error, marker="o", capsize=3,
            color=color_of(number), label=f" {method}",
        )  # fmt: skip
    axes.set_ylabel(quantity)
    _format_axis(axes, data, name)


def _format_axis(axes: "Axes", data: pd.DataFrame, name: str) -> None:
    """Scale and label the axis of the setting, and add the legend."""
    values = sorted(data["value"].dropna())
    words = isinstance(values[0], str)
    if not words and values[-1] > 30 * min([v for v in values if v > 0], default=values[-1]):
        smallest = min(v for v in values if v > 0)
        # The axis is linear between zero and the smallest positive value.
        scale: dict[str, Any] = {"linthresh": smallest} if values[0] <= 0 else {}
        axes.set_xscale("symlog" if scale else "log", **scale)
    if not words and len(set(values)) <= MAX_TICKS:
        axes.set_xticks(sorted(set(values)), [f"{value:.3g}" for value in sorted(set(values))])
        axes.minorticks_off()
    axes.set_xlabel(name, parse_math=False)
    legend_below(axes)
