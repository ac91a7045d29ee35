"""Groups of samples finer than a domain, such as the slides of a hospital.

A group is a column of the data (``slide`` of camelyon17, the array `group` of an .npz file), or a
CSV file with a header and one row per sample: the column ``path``, relative to the dataset's
folder, and the column ``group``. ``slides.csv:slide`` reads another column than ``group``. A sample
in several groups has their names, separated by `GROUP_SEPARATOR`.
"""

import csv
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from afield.errors import DataError, UnknownNameError
from afield.files import file_digest
from afield.registry import hint

if TYPE_CHECKING:
    from afield.data.domains import Domain


# Between the name of a file and the digest of its content.
DIGEST_MARK = "@"
DEFAULT_COLUMN = "group"
# Between the names of several groups of one sample: the unit separator, which no name contains.
GROUP_SEPARATOR = "\x1f"


def canonical_group(group: str) -> str:
    """The group as a run has it: a column, or the path of a file with a digest of its content."""
    path, column = _file(group)
    if path is None:
        return group
    if not path.is_file():
        raise DataError(f"{path}: no such file; --group takes a column of the data or a CSV file")
    return f"{path.resolve()}:{column}{DIGEST_MARK}{file_digest(path)}"


def describe_group(group: str) -> str:
    """The name of a group without the folder and digest of its file.

    >>> describe_group("slide"), describe_group("/data/slides.csv:slide@0123")
    ('slide', 'slides.csv:slide')
    """
    return Path(group.partition(DIGEST_MARK)[0]).name


def group_labels(group: str, domains: "Mapping[str, Domain]", where: str) -> dict[str, list[str]]:
    """The group of every sample of every domain."""
    path, column = _file(group)
    if path is None:
        return {name: _column(domain, group, where) for name, domain in domains.items()}
    rows = _read_rows(path, column, group.partition(DIGEST_MARK)[2])
    if not all(domain.names for domain in domains.values()):
        raise DataError(f"{path}: the samples of {where} have no file names; give a column instead")
    names = [PurePosixPath(name).as_posix() for d in domains.values() for name in d.names]
    missing = [name for name in names if name not in rows]
    if missing:
        more = f" and {len(missing) - 1} more samples" if len(missing) > 1 else ""
        raise DataError(f"{path}: no row for {missing[0]}{more} of {where}; add the missing rows")
    return {name: [rows[file] for file in domain.names] for name, domain in domains.items()}


def _file(group: str) -> tuple[Path | None, str]:
    """The CSV file of a group and the column in it; None for a column of the data."""
    name, _, column = group.partition(DIGEST_MARK)[0].partition(".csv:")
    if column or name.endswith(".csv"):
        return Path(f"{name.removesuffix('.csv')}.csv"), column or DEFAULT_COLUMN
    return None, group


def _column(domain: "Domain", column: str, where: str) -> list[str]:
    if column not in domain.columns:
        known = list(domain.columns)
        advice = hint(column, known) if known else "give a CSV file with the columns path and group"
        raise UnknownNameError(f"{where} has no column {column!r}; {advice}")
    return [str(value) for value in domain.columns[column]]


def _read_rows(path: Path, column: str, digest: str) -> dict[str, str]:
    try:
        if digest and file_digest(path) != digest:
            raise DataError(f"{path}: the file changed after the run was planned; plan it again")
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    for name in ("path", column):
        if not rows or name not in rows[0]:
            # DictReader calls the cells beyond the last column None.
            found = ", ".join(filter(None, rows[0])) if rows else "no rows"
            raise DataError(f"{path}: no column {name!r}; it has {found}")
    labels = {PurePosixPath(row["path"]).as_posix(): row[column] for row in rows}
    empty = next((name for name, label in labels.items() if not label), None)
    if empty is not None:
        raise DataError(f"{path}: no {column} for {empty}; give every sample a group")
    return labels
