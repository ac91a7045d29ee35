"""The report page of a store: the best method, all tables, curves, costs, and what was run.

The page is a single file that loads nothing: it contains its style, script, data and images, and
its content security policy forbids anything else. The same store gives the same bytes.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from afield import registry
from afield.compute import pause_cycle_search
from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output
from afield.reporting.charts.samples import kept_thumbnails
from afield.reporting.findings import KeptFinding, embed_findings, kept_findings
from afield.reporting.paper import KeptComparison, kept_comparisons
from afield.reporting.results import group_records
from afield.reporting.sections import Section, build_overviews, build_section
from afield.reporting.sentences import escape_invisible, format_points
from afield.reporting.table import format_number
from afield.runs.record import Failure, Record
from afield.runs.row import REFERENCE
from afield.runs.run import name_without_path
from afield.runs.store import Store, open_store
from afield.studies.commands import write_command
from afield.training.metrics import DEFAULT_METRIC, find_metric, metric_value
from afield.training.scores import PARTS

REPORT_FILE = "report.html"
TEMPLATE_FOLDER = Path(__file__).parent / "templates"


@pause_cycle_search()
def write_report(
    store: str | Path | Store | Sequence[str | Path | Store],
    out: str | Path | None = None,
    *,
    rules: Sequence[str] = (),
    metric: str = DEFAULT_METRIC,
    thumbnails: bool = True,
    overwrite: bool = False,
) -> str:
    """Write the report page of a store and return its path; by default report.html in the store.

    Parameters
    ----------
    store
        One store, or several: the page then begins with a mean over datasets, and `out` is needed.
    out
        The HTML file to write.
    rules
        The selection rules to show; by default all that never look at the target.
    metric
        What tables and comparisons show in place of the accuracy; see `afield.training.metrics`.
    thumbnails
        Whether to show a few small images of each domain, if the data are images.
    overwrite
        Whether `out` may replace an existing file. The report in the store is always replaced.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = afield.bench("spirals", ["erm"], trials=1, store=folder)
    ...     afield.write_report(folder) == f"{folder}/report.html"
    True
    """
    if not find_metric(metric).is_share:
        raise SpecError(
            f"a report compares in percentage points, and {metric} is no percentage; use "
            f"`afield table --metric {metric}`"
        )
    if out is not None:
        check_output(Path(out), overwrite=overwrite)
    stores = [open_store(s) for s in ([store] if isinstance(store, str | Path | Store) else store)]
    if out is None and len(stores) > 1:
        raise SpecError("a report on several stores needs a place; give --out FILE")
    records = {record.run.key: record for opened in stores for record in _read_records(opened)}
    _check_metric(metric, list(records.values()))
    roots = [opened.root for opened in stores]
    text = render_page(
        list(records.values()),
        [failure for opened in stores for failure in opened.failures()],
        # The page may be published: no path or address of a machine belongs in it.
        store=Path(stores[0].where()).resolve().name,
        findings=[finding for root in roots for finding in kept_findings(root)],
        papers=kept_comparisons(roots),
        thumbnails=kept_thumbnails(roots, list(records.values())) if thumbnails else {},
        rules=rules,
        metric=metric,
        over_datasets=len(stores) > 1,
    )
    path = Path(out) if out is not None else Path(stores[0].where()) / REPORT_FILE
    try:
        if out is None:
            return stores[0].put_file(REPORT_FILE, text.encode())
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path} ({error.strerror}); use another --out") from None
    return str(path)


def _check_metric(name: str, records: Sequence[Record]) -> None:
    """Raise unless some record has the metric; one of groups is in few records."""
    metric = find_metric(name)
    checkpoints = (record.checkpoints[n] for record in records for n in record.candidate_numbers)
    scores = (
        getattr(of_domain, part)
        for checkpoint in checkpoints
        for of_domain in checkpoint.scores.values()
        for part in PARTS
    )
    known = any(score is not None and metric_value(score, name) is not None for score in scores)
    if records and not known:
        raise SpecError(f"no record has {name}: {metric.lacking}")


def _read_records(store: Store) -> list[Record]:
    records = list(store)
    if not records and not store.failures():
        where = store.where()
        raise DataError(f"{where}: no records there; run `afield bench --store {where}`")
    return records


def render_page(
    records: Sequence[Record],
    failures: Sequence[Failure] = (),
    *,
    store: str = "runs",
    findings: Sequence[tuple[Path, KeptFinding]] = (),
    papers: Sequence[KeptComparison] = (),
    thumbnails: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    rules: Sequence[str] = (),
    metric: str = DEFAULT_METRIC,
    over_datasets: bool = False,
) -> str:
    """The HTML of the page about all records of a store.

    `thumbnails` are strips of images in base64, by dataset and domain. With `over_datasets` the
    page begins with a table of all datasets and their mean.
    """
    rerun_store = f"{store}-again" if Path(store).name else "again"
    sections = [
        build_section(number, results, records, store, rerun_store, rules)
        for number, results in enumerate(group_records(records, metric))
    ]
    shown, omitted = embed_findings(findings)
    style, script = (
        (TEMPLATE_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    template = jinja_environment().get_template("page.html.jinja")
    rerun = [("like", f"{store}/KEY"), ("store", rerun_store)]
    return template.render(
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        version=version("afield"),
        name=Path(store).name or str(Path(store).resolve()),
        sections=sections,
        overviews=build_overviews(records, metric, rules) if over_datasets else [],
        reference=REFERENCE,
        findings=shown,
        papers=papers,
        thumbnails={each.id: thumbnails.get(each.results.data, {}) for each in sections},
        omitted=omitted,
        run_counts=_count_runs(records, failures),
        total_seconds=sum(record.seconds for record in records),
        environment=_environment_facts(records),
        warnings=_warnings(records, sections),
        runs=[_run_row(record) for record in records],
        rerun_command=write_command("train", options=rerun),
        failures=failures,
    )


def jinja_environment() -> Environment:
    """The environment of all templates, with their filters."""
    environment: Any = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # NaN is not valid JSON: a browser would reject all of the data.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {
        "visible": escape_invisible,
        "points": lambda share: "–" if _unknown(share) else format_points(share),
        "points_plain": lambda share: "–" if _unknown(share) else format_points(share, sign=False),
        "number": lambda value: "" if _unknown(value) else f"{value:.6g}",
        "percent": format_number,
        "time": _format_time,
        "ratio": lambda ratio: "–" if _unknown(ratio) else f"{ratio:.2f}",
        "bytes": lambda count: f"{count / 2**20:,.0f} MiB" if count else "–",
        "zip": lambda one, two: zip(one, two, strict=True),
        "lines": lambda text: "\n".join(escape_invisible(line) for line in text.splitlines()),
    }
    return environment


def _unknown(value: float | None) -> bool:
    return value is None or math.isnan(value)


def content_policy(style: str, script: str) -> str:
    """The content security policy: only this script, this style and embedded images."""
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _count_runs(records: Sequence[Record], failures: Sequence[Failure]) -> str:
    text = f"{len(records)} finished run{'s' * (len(records) != 1)}, {len(failures)} failed"
    auxiliary = sum(record.run.role in ("base", "expert") for record in records)
    members = sum(record.run.role == "member" for record in records)
    text += f"; {auxiliary} of them bases and experts of merged models" if auxiliary else ""
    return text + (f"; {members} of them further members of ensembles" if members else "")


def _environment_facts(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The backbones, devices and versions of all records, by title."""
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.versions.items():
            if name != "code":
                versions.setdefault(name, set()).add(value)
    facts = {
        "Features": {name_without_path(record.run.encoder or "") for record in records} - {""},
        "Backbone": {name_without_path(record.run.backbone) for record in records},
        "Device": {record.device for record in records},
        "Versions": {f"{name} {' and '.join(sorted(values))}" for name, values in versions.items()},
    }
    return [(name, ", ".join(sorted(values))) for name, values in facts.items() if values]


def _warnings(records: Sequence[Record], sections: Sequence[Section]) -> list[str]:
    """Reasons why rows are less comparable than they look."""
    warnings = []
    codes: dict[str, set[str]] = {}
    for record in records:
        if record.versions.get("code", "").startswith(registry.CODE_FORM):
            codes.setdefault(record.run.method, set()).add(record.versions["code"])
    mixed = sorted(method for method, digests in codes.items() if len(digests) > 1)
    if mixed:
        warnings.append(f"Made with several versions of their code: {', '.join(mixed)}.")
    dropped = max((record.dropped for record in records), default=0)
    if dropped:
        warnings.append(f"Broken files were skipped: up to {dropped} in a run.")
    incomplete = [each.title for each in sections if any(rule.incomplete for rule in each.rules)]
    if incomplete:
        titles = ", ".join(escape_invisible(title) for title in incomplete)
        warnings.append(f"Some runs are missing, so their numbers are too (–): {titles}.")
    return warnings


def _run_row(record: Record) -> Mapping[str, Any]:
    run = record.run
    return {"key": run.key, "dataset": run.data_name, "unseen": record.unseen[:4],
            "trial": run.trial, "draw": run.draw, "steps": record.steps[-1],
            "seconds": record.seconds}  # fmt: skip


def _format_time(seconds: float) -> str:
    """A duration in the largest unit that fits.

    >>> _format_time(0.94), _format_time(75), _format_time(7200)
    ('0.9 s', '1.2 min', '2.0 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
