"""A page about one model and one set of samples: a headline, next steps, and tables.

`afield evaluate` and `afield estimate` write such pages. Like the report, a page is a single file
that loads nothing, and the same numbers give the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from markupsafe import Markup

from afield.reporting.page import TEMPLATE_FOLDER, content_policy, jinja_environment
from afield.reporting.sentences import Step, Tile


@dataclass(frozen=True)
class Part:
    """A part of a page: a title, a text, a table, and images in base64 by their names.

    The first cell of a row is its name.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    images: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """The content of a page; `kind` says what it is, `title` what it is about."""

    kind: str
    title: str
    headline: str
    sentences: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    steps: Sequence[Step] = ()
    parts: Sequence[Part] = ()


def render_sheet(sheet: Sheet) -> str:
    """The HTML of the page."""
    style = (TEMPLATE_FOLDER / "page.css").read_text(encoding="utf-8")
    template = jinja_environment().get_template("sheet.html.jinja")
    return template.render(
        policy=content_policy(style, ""),
        style=Markup(style),
        version=version("afield"),
        sheet=sheet,
    )


def percent(share: float | None) -> str:
    """A share in percent, or a dash.

    >>> percent(0.123), percent(None)
    ('12.3 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"
