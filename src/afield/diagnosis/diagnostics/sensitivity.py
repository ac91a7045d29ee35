"""How much does a setting matter? Accuracy against its values (Arith, Fig. 5; DMG, Figs. 3, 5, 6).

    afield bench DATA --methods arith --set arith.steps_per_domain=3     # and with 1, 2, 5
    afield diagnose sensitivity runs --set of=steps_per_domain

Each point is a mean over unseen domains and trials, ± its standard error, read off the records of a
store by the selection rule `rule`, by default the one that knows nothing of the tested domains;
nothing is trained. The accuracy on the sources stands beside
it, and where runs have masks, what these share at the end, layer by layer. Runs that differ in
other settings as well are other lines. `of=domains` is the number of domains that were trained on
(`afield bench … --hold-out 0.25 --train-on 5,10,all`; CrossGrad, Table 8).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pandas as pd

from afield.diagnosis.diagnostic import Diagnostic, Finding
from afield.errors import SpecError
from afield.experiments.record import Record, Run
from afield.hyperparameters import Variant
from afield.reporting.table import tabulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Sensitivity"]

# At most so many values are all named on the axis.
MAX_TICKS = 8
# Settings of runs that are worth a curve, beside those of methods.
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
    """Accuracy against the setting `of`; without it, against the one that has several values."""

    of: Annotated[str, Variant(("steps_per_domain", "lr"))] = ""
    rule: Annotated[str, Variant(("", "target"))] = ""

    takes: ClassVar[Literal["runs", "records"]] = "records"

    def read(self, records: Sequence[Record]) -> Finding:
        """One table for every value; methods that lack the setting have one row for all."""
        records = [each for each in records if each.run.role not in ("base", "expert")]
        datasets = sorted({record.run.dataset for record in records})
        if len(datasets) > 1:
            raise SpecError(f"these records are of {', '.join(datasets)}; give one store for each")
        name = self.of or _varied([record.run for record in records])
        groups: dict[str | float | None, list[Record]] = {}
        for record in records:
            value = _value(record.run, name)
            groups.setdefault(value, []).append(_without(record, name))
        if not groups.keys() - {None}:
            raise SpecError(f"no run in this store has a setting {name!r}")
        if any(isinstance(value, str) for value in groups):
            # Words have no place between numbers.
            groups = {value if value is None else _word(value): g for value, g in groups.items()}
        rule = self.rule or _usual_rule(records)
        frames = [
            tabulate(group, rules=rule).assign(value=value) for value, group in groups.items()
        ]
        tables = pd.concat(frames).dropna(subset="accuracy")
        data, home = (_rows(tables, domain) for domain in ("mean", "in-domain"))
        if data.empty:
            raise SpecError(
                f"the records do not suffice for the rule {rule}: a mean takes runs that "
                "leave out each domain, as `afield bench` makes them"
            )
        shared = pd.DataFrame(
            [(*row, value) for value, group in groups.items() for row in _shared(group)],
            columns=["method", "layer", "iou", "value"],
        )

        def paint(axes: Sequence["Axes"]) -> None:
            _paint(axes[0], data, name, "accuracy on unseen domains (%)")
            _paint(axes[1], home, name, "accuracy on the sources (%)")
            for each in axes[2:]:
                _paint_shared(each, shared, name)

        more = {"in_domain": home} | ({"shared": shared} if len(shared) else {})
        return Finding(data, _told(data, name), paint, 1 + len(more), more)


def _usual_rule(records: Sequence[Record]) -> str:
    """The rule that picks by what is neither trained nor tested on."""
    return "validation" if all(record.tests != record.unseen for record in records) else "sources"


def _rows(tables: pd.DataFrame, domain: str) -> pd.DataFrame:
    own = tables[tables["domain"] == domain]
    columns = own[["method", "value", "accuracy", "stderr", "trials"]]
    return columns.sort_values(["method", "value"], ignore_index=True)


def _shared(records: Sequence[Record]) -> Iterator[tuple[str, str, float]]:
    """The mean over runs of what masks share at the end, for each method and layer."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for log, value in record.checkpoints[-1].logs.items():
            if log.startswith("iou "):
                found.setdefault((record.run.method, log.removeprefix("iou ")), []).append(value)
    for (method, layer), values in found.items():
        yield method, layer, sum(values) / len(values)


def _varied(runs: Sequence[Run]) -> str:
    """The setting that has several values among the runs of one method."""
    found: dict[str, set[tuple[str, str]]] = {}
    for run in runs:
        for name in (*run.params, *RUN_SETTINGS):
            found.setdefault(name, set()).add((run.method, str(_value(run, name))))
    several = [
        name for name, pairs in found.items() if len(pairs) > len({method for method, _ in pairs})
    ]
    if len(several) != 1:
        if not several:
            raise SpecError("every setting has one value in this store; bench with others first")
        told = ", ".join(several)
        raise SpecError(f"settings with several values in this store: {told}; choose with of=NAME")
    return several[0]


def _value(run: Run, name: str) -> str | float | None:
    """A run's value of a setting, a number where it is one; None where the run has no such."""
    if name == "domains":
        return len(run.sources) if run.tested else None
    if name not in run.params and name not in RUN_SETTINGS:
        return None
    value = run.params.get(name, getattr(run, name, None))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if number else str(value).lower()


def _word(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _without(record: Record, name: str) -> Record:
    """The record as if the setting had not been chosen by hand: it is no part of the label."""
    given = {key: v for key, v in record.run.given.items() if key.rpartition(".")[2] != name}
    return replace(record, run=replace(record.run, given=given))


def _told(data: pd.DataFrame, name: str) -> str:
    """The best value of every method, and how much it is above the worst."""
    told = []
    for method, own in data.dropna(subset="value").groupby("method"):
        ranked = own.sort_values("accuracy")
        worst, best = ranked.iloc[0], ranked.iloc[-1]
        told.append(
            f"{method}: best at {name}={_word(best['value'])} ({100 * best['accuracy']:.1f} %), "
            f"worst at {_word(worst['value'])} ({100 * worst['accuracy']:.1f} %)"
        )
    alone = data["trials"].max() < 2
    return "; ".join(told) + (" (one trial: no spread is known)" if alone else "")


def _paint_shared(axes: "Axes", shared: pd.DataFrame, name: str) -> None:
    ordered = shared.sort_values("value")
    for (method, layer), own in ordered.groupby(["method", "layer"], sort=False):
        axes.plot(own["value"], own["iou"], marker="o", label=f" {method}: {layer}")
    axes.set_ylabel("IoU of two domains' masks")
    axes.set_ylim(0, 1)
    _settle(axes, shared, name)


def _paint(axes: "Axes", data: pd.DataFrame, name: str, what: str) -> None:
    for number, (method, own) in enumerate(data.groupby("method")):
        if own["value"].isna().all():
            level = 100 * own["accuracy"].iloc[0]
            axes.axhline(level, linestyle="--", color=f"C{number}", label=f" {method}")
            continue
        error = 100 * own["stderr"].fillna(0)
        axes.errorbar(
            own["value"], 100 * own["accuracy"], error, marker="o", capsize=3,
            color=f"C{number}", label=f" {method}",
        )  # fmt: skip
    axes.set_ylabel(what)
    _settle(axes, data, name)


def _settle(axes: "Axes", data: pd.DataFrame, name: str) -> None:
    """The axis of the setting, and the legend."""
    values = sorted(data["value"].dropna())
    words = isinstance(values[0], str)
    if not words and values[-1] > 30 * min([v for v in values if v > 0], default=values[-1]):
        least = min(v for v in values if v > 0)
        # From zero on to the least other value the axis is linear.
        scale: dict[str, Any] = {"linthresh": least} if values[0] <= 0 else {}
        axes.set_xscale("symlog" if scale else "log", **scale)
    if not words and len(set(values)) <= MAX_TICKS:
        axes.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
        axes.minorticks_off()
    axes.set_xlabel(name, parse_math=False)
    for text in axes.legend(fontsize=8).get_texts():
        text.set_parse_math(False)
