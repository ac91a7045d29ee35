"""Records grouped into results: one table per dataset, one row per method and chosen settings.

Runs that were trained only to be merged (bases and experts) have no row of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from statistics import fmean
from typing import Any

from afield.runs.record import Record, describe_size, format_days
from afield.runs.row import Row, common_settings
from afield.runs.run import Run, name_without_path
from afield.runs.selection import RULES, Pick
from afield.studies import protocol
from afield.training.metrics import DEFAULT_METRIC

# The attributes of a pick that depend on its target.
MEANS_OVER_TARGETS = (
    *("accuracy", "calibration_error", "accuracy_at_90"),
    *("unseen_classes", "unseen_confidence"),
)

# The pick for each trial and unseen domain; None where the rule could not pick.
Picks = dict[int, dict[str, Pick | None]]


@dataclass(frozen=True)
class Results:
    """The records of one dataset by the label of their row.

    Attributes
    ----------
    name
        The dataset.
    title
        The name, and which domains are tested on unless each is left out in turn.
    domains
        The domains with a column of their own: the tested ones, or with `by_source` the sources.
    methods
        The records of every row, by its label.
    rows
        What the rows are, by their labels.
    many_held_out
        Whether a share of many domains is held out, instead of leaving each out in turn.
    metric
        The metric that picks show in place of the accuracy; empty means accuracy.
    by_source
        Whether every run trains on one domain. The picks of a source are then means over all
        domains that its model is tested on.
    together
        Whether one model is tested on several domains.
    is_older
        Whether the store has results of a newer version of the same data.
    """

    name: str
    title: str
    domains: Sequence[str]
    methods: Mapping[str, Sequence[Record]]
    rows: Mapping[str, Row]
    many_held_out: bool
    metric: str = ""
    by_source: bool = False
    together: bool = False
    is_older: bool = False
    _picks: dict[str, dict[str, Picks]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def data(self) -> str:
        """The name or path of the dataset, as in its runs."""
        return next(iter(self.methods.values()))[0].run.dataset

    def picks(self, rule: str) -> dict[str, Picks]:
        """The picks of a rule for every method, trial and domain."""
        if rule not in self._picks:
            self._picks[rule] = {
                method: self._pick(rule, records) for method, records in self.methods.items()
            }
        return self._picks[rule]

    def _pick(self, rule: str, records: Sequence[Record]) -> Picks:
        picks: Picks = {}
        for trial in sorted({record.run.trial for record in records}):
            of_trial = [record for record in records if record.run.trial == trial]
            by_domain = _by_unseen_domain(of_trial)
            picks[trial] = {
                name: self._pick_one(rule, of_trial if self.by_source else by_domain[name], name)
                for name in self.domains
            }
        return picks

    def _pick_one(self, rule: str, records: Sequence[Record], domain: str) -> Pick | None:
        if not self.by_source:
            return RULES[rule].pick(records, domain, self.metric)
        of_source = [record for record in records if record.run.sources == (domain,)]
        targets = of_source[0].tests if of_source else ()
        return _mean_pick([RULES[rule].pick(of_source, name, self.metric) for name in targets])


def _by_unseen_domain(records: Sequence[Record]) -> defaultdict[str, list[Record]]:
    """The records that test on a domain, alone or beside others; rules read no other records."""
    by_domain: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        for name in {*record.run.tested, *record.unseen}:
            by_domain[name].append(record)
    return by_domain


def _mean_pick(picks: Sequence[Pick | None]) -> Pick | None:
    """The pick of one model for several domains, with its mean scores on them."""
    complete = [pick for pick in picks if pick is not None]
    if not complete or len(complete) < len(picks):
        return None
    means: dict[str, Any] = {"score": None}
    for name in MEANS_OVER_TARGETS:
        values = [getattr(pick, name) for pick in complete]
        means[name] = None if None in values else fmean(values)
    return replace(complete[0], **means)


def group_records(records: Iterable[Record], metric: str = "") -> list[Results]:
    """Results for each dataset, and for each other choice of the domains to test on."""
    datasets: dict[str, list[Record]] = {}
    for record in records:
        if not record.run.is_auxiliary:
            data = record.run.content or record.run.dataset
            identity = f"{data}{protocol.choice_identity(record)}"
            datasets.setdefault(identity, []).append(record)
    shown = "" if metric == DEFAULT_METRIC else metric
    return [
        replace(_results(name, of_dataset, shown), is_older=is_older)
        for name, is_older, of_dataset in _by_version(list(datasets.values()))
    ]


def _results(name: str, records: Sequence[Record], metric: str) -> Results:
    sources = {record.run.sources: None for record in records}
    by_source = protocol.is_single_source(records[0]) and len(sources) > 1
    described = [record for record in records if not Row.of(record.run).is_bound] or records
    rows = _rows(records)
    return Results(
        name=name,
        title=name + protocol.describe_choice(described),
        domains=[source for (source,) in sources] if by_source else _targets(records),
        methods={row.label: of_row for row, of_row in rows},
        rows={row.label: row for row, _ in rows},
        many_held_out=protocol.is_held_out_share(records[0]),
        metric=metric,
        by_source=by_source,
        together=not by_source and any(len(record.run.tested) > 1 for record in records),
    )


def _by_version(datasets: Sequence[Sequence[Record]]) -> list[tuple[str, bool, list[Record]]]:
    """Name, whether a newer version of the same data exists, and records of every dataset.

    Datasets come in the order of their first records, versions of one dataset with the newest
    first.
    """
    runs = [records[0].run for records in datasets]
    by_name: dict[str, list[Sequence[Record]]] = {}
    for run, records in zip(runs, datasets, strict=True):
        others = [other for other in runs if other.data_name == run.data_name]
        by_name.setdefault(_origin_name(run, others), []).append(records)
    return [each for name, versions in by_name.items() for each in _named_versions(name, versions)]


def _origin_name(run: Run, others: Sequence[Run]) -> str:
    """The name of a run's data, told apart from other files and other networks' features."""
    # Older records do not say which images the features were computed from.
    if run.encoder and not run.images and len({other.encoder for other in others}) > 1:
        return f"{run.data_name} ({name_without_path(run.encoder)})"
    folders = {PurePath(other.dataset.partition("?")[0]).parent for other in others}
    folder = PurePath(run.dataset.partition("?")[0]).parent.name
    is_file_among_several = bool(folder) and not run.folder and len(folders) > 1
    return f"{folder}/{run.data_name}" if is_file_among_several else run.data_name


def _named_versions(
    name: str, datasets: Sequence[Sequence[Record]]
) -> list[tuple[str, bool, list[Record]]]:
    """Datasets of one name, told apart by what is in them and when they were used."""
    contents = [records[0].run.content for records in datasets]
    if not all(contents) or len(set(contents)) == 1:
        return [(name, False, list(records)) for records in datasets]
    last = dict.fromkeys(contents, 0.0)
    for data, records in zip(contents, datasets, strict=True):
        last[data] = max(last[data], *(record.at for record in records))
    sizes = {records[0].run.content: describe_size(records) for records in datasets}
    days = format_days(last)
    shown = {data: ", ".join(filter(None, [sizes[data], days[data]])) for data in last}
    alike = {data for data in shown if list(shown.values()).count(shown[data]) > 1}
    shown |= {data: ", ".join(filter(None, [shown[data], data[:6]])) for data in alike}
    newest = max(last.values())
    ordered = sorted(datasets, key=lambda records: -last[records[0].run.content])
    return [
        (f"{name} ({shown[data]})", last[data] < newest, list(records))
        for records in ordered
        for data in [records[0].run.content]
    ]


def _targets(records: Sequence[Record]) -> list[str]:
    """The domains that are tested on; where one is left out, all of them, so that a gap is visible.

    If every run was asked for by the names of its targets, only these.
    """
    if protocol.is_held_out_share(records[0]):
        return list(dict.fromkeys(name for record in records for name in record.run.tested))
    leaves_one_out = any(len(record.unseen) == 1 for record in records)
    if not records[0].run.tested and not leaves_one_out:
        return []
    named = protocol.named_targets(records)
    return [name for name in records[0].domains if not named or name in named]


def _rows(records: Sequence[Record]) -> list[tuple[Row, list[Record]]]:
    """The rows of a table, with their records."""
    common = common_settings(record.run for record in records)
    by_label: dict[str, tuple[Row, list[Record]]] = {}
    for record in records:
        row = Row.of(record.run).without(common)
        by_label.setdefault(row.label, (row, []))[1].append(record)
    rows = [each for row, of_row in by_label.values() for each in _by_features(row, of_row)]
    return [each for row, of_row in rows for each in _by_classes(row, of_row)]


def _by_features(row: Row, records: list[Record]) -> list[tuple[Row, list[Record]]]:
    """One row for the features of each version, where several look alike."""
    by_data: dict[str, list[Record]] = {}
    for record in records:
        by_data.setdefault(record.run.data if record.run.images else "", []).append(record)
    if len(by_data) == 1:
        return [(row, records)]
    return [(row.with_features(data[:6]), of_data) for data, of_data in by_data.items()]


def _by_classes(row: Row, records: list[Record]) -> list[tuple[Row, list[Record]]]:
    """Two rows if targets were tested both with the classes of their sources and with all.

    Targets without a class of their own are in both rows: their runs are the same.
    """
    dropping = {record.tests for record in records if record.run.classes and record.is_tested}
    closed = {
        record.run.key: record
        for record in records
        if not record.run.classes and record.tests in dropping and record.is_tested
    }
    if not closed:
        return [(row, records)]
    open_or_same = [record for record in records if record.run.key not in closed]
    same = [record for record in open_or_same if not record.run.classes]
    return [(row, open_or_same), (row.with_all_classes(), [*closed.values(), *same])]
