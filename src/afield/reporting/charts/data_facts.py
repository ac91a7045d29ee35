"""What the data and the network are, from records alone."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from afield.data.groups import describe_group
from afield.reporting.results import Results
from afield.reporting.sentences import bidi_isolate, escape_invisible
from afield.runs.record import Record
from afield.runs.run import name_without_path
from afield.training.scores import score_at

__all__ = ["describe_data", "describe_groups"]

# With more domains than this, only the range of their sizes is stated.
MAX_NAMED = 12


def describe_data(results: Results) -> str:
    """Domains with their samples, classes, lengths of texts, backbones and weights, in a line."""
    records = [record for of_method in results.methods.values() for record in of_method]
    parts = [_describe_domains(records), *_describe_classes(records)]
    parts += _describe_texts(records)
    networks = {_describe_network(record): None for record in records if not record.run.experts}
    return "; ".join([*parts, *networks]) + "."


def describe_groups(records: Iterable[Record]) -> list[str]:
    """How many groups each tested domain has, and their sizes: one line per dataset and group."""
    sizes: dict[tuple[str, str], dict[str, list[int]]] = {}
    for record in records:
        for name in record.tests:
            score = score_at(record.checkpoints, -1, name, "main")
            if score is not None and score.groups:
                key = (Path(record.run.dataset).name, describe_group(record.run.group))
                counts = [size for _, size in score.groups.values()]
                sizes.setdefault(key, {}).setdefault(name, counts)
    return [
        f"groups of {dataset} by {group}: "
        + "; ".join(
            f"{name} {len(counts)} of {min(counts)} to {max(counts)} samples"
            for name, counts in by_domain.items()
        )
        for (dataset, group), by_domain in sizes.items()
    ]


def _describe_domains(records: Sequence[Record]) -> str:
    sizes = _samples(records)
    names = records[0].domains
    counted = f"{len(names)} domain{'s' * (len(names) != 1)}"
    if not sizes:
        return counted
    if len(sizes) > MAX_NAMED:
        return f"{counted} of {min(sizes.values())} to {max(sizes.values())} samples"
    return f"{counted}: " + ", ".join(
        f"{bidi_isolate(name)} {sizes[name]}" for name in names if name in sizes
    )


def _samples(records: Sequence[Record]) -> dict[str, int]:
    """The samples of each tested domain, from the sizes of its splits in the last evaluation."""
    sizes: dict[str, int] = {}
    for record in records:
        for name in record.tests:
            if name in sizes:
                continue
            main, probe = (score_at(record.checkpoints, -1, name, p) for p in ("main", "probe"))
            if main is not None:
                sizes[name] = main.size + (probe.size if probe and not record.run.report else 0)
    return sizes


def _describe_classes(records: Sequence[Record]) -> list[str]:
    for record in records:
        if record.class_names:
            return [f"{len(record.class_names)} classes"]
    return []


def _describe_texts(records: Sequence[Record]) -> list[str]:
    """The lengths of texts; the median is that of the sources, so it differs between runs."""
    texts = [record for record in records if record.run.tokens or record.embedded_tokens]
    if not texts:
        return []
    medians = sorted({record.median_tokens for record in texts if record.median_tokens})
    ends = " to ".join(str(end) for end in dict.fromkeys(medians[:1] + medians[-1:]))
    # Derived runs, such as merged models, read no training data and count no texts.
    counts: dict[int, int] = {}
    for record in texts:
        tokens = record.run.tokens or record.embedded_tokens
        counts[tokens] = max(counts.get(tokens, 0), record.truncated)
    cut = [f"{count or 'none'} cut at {tokens}" for tokens, count in counts.items()]
    features = "features of " * any(record.embedded_tokens for record in texts)
    return [f"{features}texts of {ends} tokens (median), " * bool(ends) + ", ".join(cut)]


def _describe_network(record: Record) -> str:
    run = record.run
    backbone = name_without_path(run.backbone)
    if not run.weights:
        return f"{backbone} from random weights"
    digest = f" [{run.start[:6]}]" * bool(run.start)
    return f"{backbone} from {escape_invisible(Path(run.weights).name)}{digest}"
