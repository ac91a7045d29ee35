"""Facts about the data and the network, images of the data, and classes that are confused."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from afield.data.groups import describe_group
from afield.files import read_text
from afield.reporting.results import Results
from afield.reporting.sentences import bidi_isolate, escape_invisible
from afield.runs.record import Record, domain_sizes
from afield.runs.run import name_without_path
from afield.runs.run_files import thumbnail_file
from afield.training.scores import score_at

log = logging.getLogger(__name__)

# Far more than the strips of a dataset need.
MAX_BYTES = 500_000
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_ADAPTER = TypeAdapter(dict[str, str])


def kept_thumbnails(
    roots: Sequence[Path], records: Sequence[Record]
) -> dict[str, Mapping[str, str]]:
    """For each dataset of the records, strips of images in base64 by domain, if a store has any."""
    runs = {(record.run.dataset, record.run.data): record.run for record in records}
    files = {thumbnail_file(run): run.dataset for run in runs.values()}
    paths = [root / name for root in roots for name in files]
    strips = {files[path.name]: _read(path) for path in paths if path.is_file()}
    return {dataset: of_domain for dataset, of_domain in strips.items() if of_domain}


def _read(path: Path) -> Mapping[str, str]:
    """The strips in a file; a file that is broken or far too large is skipped."""
    try:
        content = read_text(path) if path.stat().st_size <= MAX_BYTES else ""
        strips = _ADAPTER.validate_json(content)
    except (OSError, ValueError):
        strips = {"": ""}
    if all(map(BASE64.fullmatch, strips.values())):
        return strips
    log.warning("skipped %s: not readable thumbnails", path)
    return {}


# With more domains than this, only the range of their sizes is stated.
MAX_NAMED = 12


def describe_data(results: Results) -> str:
    """Domains with their samples, classes, lengths of texts, backbones and weights, in a line."""
    records = [record for of_method in results.methods.values() for record in of_method]
    classes = [f"{len(record.class_names)} classes" for record in records if record.class_names]
    parts = [_describe_domains(records), *classes[:1], *_describe_texts(records)]
    networks = {_describe_network(record): None for record in records if not record.run.experts}
    return "; ".join([*parts, *networks]) + "."


def describe_groups(records: Iterable[Record]) -> list[str]:
    """How many groups each tested domain has, and their sizes: one line per dataset and group."""
    sizes: dict[tuple[str, str], dict[str, list[int]]] = {}
    for record in records:
        for name in record.tests:
            score = score_at(record.checkpoints, -1, name, "main")
            if score is not None and score.groups:
                key = (record.run.data_name, describe_group(record.run.group))
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
    sizes = domain_sizes(records)
    names = records[0].domains
    counted = f"{len(names)} domain{'s' * (len(names) != 1)}"
    if not sizes:
        return counted
    if len(sizes) > MAX_NAMED:
        return f"{counted} of {min(sizes.values())} to {max(sizes.values())} samples"
    return f"{counted}: " + ", ".join(
        f"{bidi_isolate(name)} {sizes[name]}" for name in names if name in sizes
    )


def _describe_texts(records: Sequence[Record]) -> list[str]:
    """The lengths of texts; the median is over the sources, so it differs between runs."""
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
    features = "features of " if any(record.embedded_tokens for record in texts) else ""
    is_bag = all(record.run.backbone.startswith("bag:") for record in texts)
    unit = "different n-grams" if is_bag else "tokens"
    lengths = [f"{features}texts of {ends} {unit} (median)"] if ends else []
    return [", ".join([*lengths, *cut])]


def _describe_network(record: Record) -> str:
    run = record.run
    backbone = name_without_path(run.backbone)
    if run.encoder:
        return f"features of {name_without_path(run.encoder)}, then {backbone}"
    if not run.weights:
        return f"{backbone} from random weights"
    digest = f" [{run.start[:6]}]" if run.start else ""
    return f"{backbone} from {escape_invisible(Path(run.weights).name)}{digest}"


# With more classes, the matrix is too small to read; the worst classes are still listed.
MAX_MATRIX = 20
MAX_LISTED = 5


@dataclass(frozen=True)
class WorstClass:
    """A class, its accuracy, its samples, and the class that it is most often taken for."""

    name: str
    accuracy: float
    samples: int
    taken_for: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class ClassErrors:
    """The worst classes of a method, and the shares of its confusion matrix (empty: too large)."""

    method: str
    worst: Sequence[WorstClass]
    names: Sequence[str]
    shares: Sequence[Sequence[float]] = ()


def class_errors(results: Results, rule: str, method: str) -> ClassErrors | None:
    """The confusions of a method's picked checkpoints; None if the records have none."""
    matrices, classes = [], set()
    for by_domain in results.picks(rule).get(method, {}).values():
        for pick in by_domain.values():
            if pick is not None and pick.score is not None and pick.score.confusion is not None:
                matrices.append(pick.score.confusion.matrix)
                classes.add(pick.run.classes)
    # Folds that drop different classes have other numbers for them.
    if len(classes) != 1:
        return None
    total = sum((matrix for matrix in matrices if matrix is not None), np.zeros(1))
    if total.ndim != 2 or any(matrix is None for matrix in matrices):
        return None
    names = _class_names(results, method, classes.pop(), len(total))
    samples = total.sum(axis=1, keepdims=True)
    shares = total / np.maximum(samples, 1)
    shown = shares.tolist() if len(total) <= MAX_MATRIX else []
    return ClassErrors(method, _worst(shares, samples[:, 0], names), names, shown)


def _class_names(
    results: Results, method: str, classes: Sequence[str], count: int
) -> Sequence[str]:
    known = classes or results.methods[method][0].class_names
    return known if len(known) == count else [f"class {number}" for number in range(count)]


def _worst(
    shares: NDArray[np.float64], samples: NDArray[np.float64], names: Sequence[str]
) -> list[WorstClass]:
    accuracies = np.where(samples > 0, np.diag(shares), np.inf)
    worst = []
    for index in np.argsort(accuracies, kind="stable")[:MAX_LISTED]:
        if samples[index] > 0 and accuracies[index] < 1:
            others = shares[index].copy()
            others[index] = -1
            other = int(others.argmax())
            worst.append(
                WorstClass(
                    names[index],
                    float(accuracies[index]),
                    int(samples[index]),
                    names[other] if others[other] > 0 else "",
                    float(others[other]),
                )
            )
    return worst
