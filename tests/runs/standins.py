"""Stand-ins for the named datasets: their domains, with ten samples each and no files."""

from dataclasses import replace
from pathlib import Path

import torch

from afield.data import lookup
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.modalities.array import Array

__all__ = ["use_standins"]

# Datasets whose domains are those of the files, and how many the paper has.
COUNTED = {"fonts": 109, "speech_commands": 1888}
# No column of a paper's table names these domains; a few of them keep plans short.
SHORTENED = ("imagenet_r", "nico_pp", "fed_isic", "retina_domains")


def use_standins(monkeypatch, sizes=None):
    """Let every named dataset be a stand-in.

    With `sizes`, all domains are there, and have these numbers of samples (pairs: on the train and
    on the test list; a number: of all domains, divided evenly).
    """
    real = lookup._named_dataset

    def standin(name: str, root: Path) -> DomainSet:
        dataset = real(name, root)
        domains = dataset.domains[: 3 if name in SHORTENED and sizes is None else None]
        if name in COUNTED:
            domains = tuple(f"domain{number}" for number in range(COUNTED[name]))

        def read(options: ReadOptions) -> dict[str, Domain]:
            if sizes and name in sizes:
                return _sized(domains, sizes[name])
            return {n: Domain(x=torch.zeros(10, 1, 8, 8), y=torch.arange(10) % 2) for n in domains}

        return replace(
            dataset,
            domains=domains,
            classes=("a", "b"),
            reader=read,
            needs=(),
            sizes={},
            modality=Array(),
            class_names={},
            templates=(),
            fingerprint=name,
        )

    monkeypatch.setattr(lookup, "_named_dataset", standin)


def _sized(domains, sizes):
    if isinstance(sizes, int):
        share, rest = divmod(sizes, len(domains))
        sizes = {name: share + (place < rest) for place, name in enumerate(domains)}
    made = {}
    for name in domains:
        train, tested = sizes[name] if isinstance(sizes[name], tuple) else (sizes[name], 0)
        y = torch.arange(train + tested) % 2
        test = torch.arange(len(y)) >= train if tested else None
        made[name] = Domain(x=torch.zeros(len(y), 1, 1, 1), y=y, test=test)
    return made
