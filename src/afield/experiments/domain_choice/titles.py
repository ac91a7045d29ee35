"""What records share that belong into one table, and what its title says about their domains."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from afield.experiments.domain_choice.folds import TARGETS

if TYPE_CHECKING:
    from afield.experiments.record import Record

__all__ = ["choice_identity", "describe_choice", "is_held_out_share", "is_single_source"]
__all__ += ["named_targets"]

# Titles name at most this many domains, and count more of them.
MAX_NAMED = 6


def is_held_out_share(record: "Record") -> bool:
    """Whether a share of many domains is held out, other domains in every trial."""
    return bool(record.run.tested) and TARGETS not in record.run.given


def is_single_source(record: "Record") -> bool:
    """Whether a run trains on one domain and tests on all others, except validation domains."""
    run = record.run
    named = TARGETS in run.given and not run.unused
    return named and len(run.sources) == 1 and len(run.tested) > 1


def named_targets(records: "Sequence[Record]") -> set[str]:
    """The targets of these records; empty unless all were chosen by name."""
    choices = [record.run.given.get(TARGETS) for record in records]
    if None in choices:
        return set()
    return {name for groups in choices for group in groups or () for name in group}


def choice_identity(record: "Record") -> str:
    """What records share that belong into one table; empty for runs that leave one domain out."""
    if is_single_source(record):
        return f"one source{_validating(record, most=None)}"
    return _describe(record, most=None)


def describe_choice(records: "Sequence[Record]") -> str:
    """What the title of a table says about the choice of domains and of their splits."""
    runs = [record.run for record in records]
    words = _describe_domains(records)
    words += ", on whole domains" if all(run.report for run in runs) else ""
    return words + (", split at random" if all(run.split for run in runs) else "")


def _describe_domains(records: "Sequence[Record]") -> str:
    first = records[0]
    if is_single_source(first) and len({record.run.sources for record in records}) > 1:
        return f", by the only source, mean over the others{_validating(first, most=MAX_NAMED)}"
    if first.run.tested:
        return _describe(first, most=MAX_NAMED)
    named = named_targets(records)
    targets = [name for name in first.domains if name in named]
    if not targets or len(targets) == len(first.domains):
        return ""
    return f", tested on {_listed(targets, MAX_NAMED)}" + " in turn" * (len(targets) > 1)


def _describe(record: "Record", *, most: int | None) -> str:
    run = record.run
    if not run.tested:
        return ""
    if is_held_out_share(record):
        validating = len(record.unseen) - len(run.tested)
        text = f", {len(run.tested)} domain{'s' * (len(run.tested) > 1)} held out"
        return text + f", {validating} validating" * bool(validating)
    words = f", trained on {_listed(run.sources, most)}" if run.unused else ""
    words += f", tested on {_listed(run.tested, most)}" if len(run.tested) > 1 else ""
    return words + _validating(record, most)


def _validating(record: "Record", most: int | None) -> str:
    names = [name for name in record.unseen if name not in record.run.tested]
    return f", validated on {_listed(names, most)}" if names else ""


def _listed(names: Sequence[str], most: int | None) -> str:
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
