"""The outline of a dataset whose files are missing: made-up samples in the published numbers.

Costs are counted on it by the same code that plans runs. An outline is never trained on: it has one
value per sample, which is 0, and takes no memory.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from afield.data.domains import Domain, DomainSet, ReadOptions

__all__ = ["outline", "published_size", "published_sizes"]


def published_size(dataset: DomainSet) -> int | None:
    """The number of samples of a dataset as published; None if it is not known."""
    if dataset.sizes:
        return sum(dataset.sizes.values())
    samples = dataset.published.samples
    return (samples if isinstance(samples, int) else sum(samples.values())) or None


def published_sizes(dataset: DomainSet) -> dict[str, int]:
    """The number of samples of each domain; 0 if it is not known.

    Domains count as equally large if only their sum is known.
    """
    samples = dataset.sizes or dataset.published.samples
    count = dataset.published.domains
    names = dataset.domains or tuple(f"domain{number}" for number in range(count))
    if not isinstance(samples, int):
        return {name: samples.get(name, 0) for name in names}
    share, rest = divmod(samples, max(1, len(names)))
    return {name: share + (number < rest) for number, name in enumerate(names)}


def outline(dataset: DomainSet) -> DomainSet:
    """The dataset with made-up samples in place of its files."""
    sizes, tested = published_sizes(dataset), dataset.published.tested
    domains = {name: _domain(size, tested.get(name, 0)) for name, size in sizes.items()}

    def read(_: ReadOptions) -> Mapping[str, Domain]:
        return domains

    return replace(
        dataset,
        domains=tuple(sizes),
        reader=read,
        needs=(),
        sizes={},
        # Read from here, and not found again by its name.
        provenance={**dataset.provenance, "planned": True},
    )


def _domain(size: int, tested: int) -> Domain:
    numbers = torch.zeros(1, 1, dtype=torch.uint8).expand(size, 1)
    labels = torch.zeros(1, dtype=torch.int64).expand(size)
    return Domain(numbers, labels, test=torch.arange(size) < tested if tested else None)
