"""One page for a store: what does best, all tables, curves, costs, and what was run.

The page is a single file that asks for nothing: style, script, data and pictures are in it, and a
policy in its head forbids the rest. The same store gives the same bytes.
"""

import base64
import hashlib
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from afield import registry
from afield.errors import DataError, SpecError
from afield.experiments.record import Failure, Record
from afield.experiments.remote_store import open_store
from afield.experiments.store import Store
from afield.files import atomic_write
from afield.reporting.comparison import REFERENCE
from afield.reporting.findings import KeptFinding, kept_findings
from afield.reporting.headline import escape_invisible, format_points
from afield.reporting.reproduce import shell_quote
from afield.reporting.results import group_records
from afield.reporting.sections import Section, build_section

__all__ = ["REPORT_FILE", "render_page", "write_report"]

REPORT_FILE = "report.html"
TEMPLATE_FOLDER = Path(__file__).parent / "templates"
# Bytes of all pictures together: the page shall open at once.
MAX_IMAGE_BYTES = 3_000_000


def write_report(store: str | Path | Store, out: str | Path | None = None) -> str:
    """Write the page of a store; by default into it, as report.html. Returns where it is.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = afield.bench("spirals", ["erm"], trials=1, store=folder)
    ...     afield.write_report(folder) == f"{folder}/report.html"
    True
    """
    place = open_store(store)
    records, failures = list(place), place.failures()
    if not records and not failures:
        where = place.where()
        raise DataError(f"{where}: no records there; run `afield bench --store {where}`")
    text = render_page(records, failures, store=place.where(), findings=kept_findings(place.root))
    path = Path(out) if out is not None else Path(place.where()) / REPORT_FILE
    try:
        if out is None:
            return place.put_file(REPORT_FILE, text.encode())
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot write {path} ({error.strerror}); use another --out") from None
    return str(path)


def render_page(
    records: Sequence[Record],
    failures: Sequence[Failure] = (),
    *,
    store: str = "runs",
    findings: Sequence[tuple[Path, KeptFinding]] = (),
) -> str:
    """The page of records and failures; `store` is where they lie, `gallery` has findings."""
    again = f"{store}-again" if Path(store).name else "again"
    sections = [
        build_section(number, benchmark, records, again)
        for number, benchmark in enumerate(group_records(records))
    ]
    shown, left_out = _shown(findings)
    style, script = (
        (TEMPLATE_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            version=version("afield"),
            name=Path(store).name or str(Path(store).resolve()),
            sections=sections,
            reference=REFERENCE,
            gallery=shown,
            left_out=left_out,
            counted=_counted(records, failures),
            made=_made(records),
            warnings=_warnings(records, sections),
            runs=[_listed(record) for record in records],
            repeat=f"afield train --like {shell_quote(store)}/KEY --store {shell_quote(again)}",
            failures=failures,
        )
    )


def _environment() -> Environment:
    made: Any = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # NaN is no JSON: a browser would refuse the whole of it.
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    made.filters |= {
        "visible": escape_invisible,
        "points": lambda share: "–" if _unknown(share) else format_points(share),
        "points_plain": lambda share: "–" if _unknown(share) else format_points(share, sign=False),
        "number": lambda value: "" if _unknown(value) else f"{value:.6g}",
        "time": _time,
        "times": lambda ratio: "–" if _unknown(ratio) else f"{ratio:.2f}",
        "bytes": _bytes,
        "zip": lambda one, two: zip(one, two, strict=True),
        "lines": lambda text: "\n".join(escape_invisible(line) for line in text.splitlines()),
    }
    return made


def _unknown(value: float | None) -> bool:
    return value is None or math.isnan(value)


def _policy(style: str, script: str) -> str:
    """What a browser may do with the page: run this script, use this style, show its pictures."""
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _shown(gallery: Iterable[tuple[Path, KeptFinding]]) -> tuple[list[dict[str, Any]], list[str]]:
    """The findings with their pictures, as long as there is room; and the paths of the others."""
    shown: list[dict[str, Any]] = []
    left_out, used = [], 0
    for path, exhibit in gallery:
        content = path.read_bytes()
        picture = base64.b64encode(content).decode()
        if used + len(picture) > MAX_IMAGE_BYTES:
            left_out.append(str(path))
            continue
        used += len(picture)
        # In a PNG they stand behind the signature and the header's length and name.
        width, height = struct.unpack(">II", content[16:24])
        settings = ", ".join(f"{name}={value}" for name, value in exhibit.settings.items())
        shown.append(
            {"name": exhibit.diagnostic, "told": exhibit.told, "runs": list(exhibit.runs),
             "settings": settings, "picture": picture, "width": width, "height": height}
        )  # fmt: skip
    return shown, left_out


def _counted(records: Sequence[Record], failures: Sequence[Failure]) -> str:
    told = f"{len(records)} finished run{'s' * (len(records) != 1)}, {len(failures)} failed"
    helping = sum(record.run.role in ("base", "expert") for record in records)
    return told + f"; {helping} of them bases and experts of merged models" * bool(helping)


def _made(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the records were made with: devices and versions, each kind with all its values."""
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.versions.items():
            if name != "code":
                versions.setdefault(name, set()).add(value)
    known = {
        "Network": {record.run.backbone for record in records},
        "Device": {record.device for record in records},
        "Versions": {f"{name} {' and '.join(sorted(own))}" for name, own in versions.items()},
    }
    return [(name, ", ".join(sorted(values))) for name, values in known.items() if values]


def _warnings(records: Sequence[Record], sections: Sequence[Section]) -> list[str]:
    """What makes rows less comparable than they look."""
    found = []
    codes: dict[str, set[str]] = {}
    for record in records:
        if record.versions.get("code", "").startswith(registry.CODE_FORM):
            codes.setdefault(record.run.method, set()).add(record.versions["code"])
    mixed = sorted(method for method, own in codes.items() if len(own) > 1)
    if mixed:
        found.append(f"Made with several states of the code: {', '.join(mixed)}.")
    dropped = max((record.dropped for record in records), default=0)
    if dropped:
        found.append(f"Broken files were left out: up to {dropped} in a run.")
    missing = [each.title for each in sections if any(rule.incomplete for rule in each.rules)]
    if missing:
        told = ", ".join(escape_invisible(title) for title in missing)
        found.append(f"Runs are missing, and so are their numbers (–): {told}.")
    return found


def _listed(record: Record) -> Mapping[str, Any]:
    run = record.run
    return {"key": run.key, "dataset": Path(run.dataset).name, "unseen": record.unseen[:4],
            "trial": run.trial, "draw": run.draw, "steps": record.checkpoints[-1].step,
            "seconds": record.seconds}  # fmt: skip


def _time(seconds: float) -> str:
    """A time as people say it.

    >>> _time(0.94), _time(75), _time(7200)
    ('0.9 s', '1.2 min', '2.0 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _bytes(count: int) -> str:
    return "–" if not count else f"{count / 2**20:,.0f} MiB"
