"""What samples are like before any network: sizes, levels, lengths and missing values.

`fit` keeps the mean of every statistic for each training domain. `estimate` compares new samples
with them: a statistic differs if it lies outside the range of the training domains by more than a
tenth of that range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from afield.data.domains import Domain, ReadOptions, data_root
from afield.data.inputs import Inputs
from afield.data.lookup import find_dataset
from afield.errors import AfieldError
from afield.networks.pretrained import Encoder
from afield.runs.run import Run
from afield.runs.run_setup import load_domains

# Samples and files of a domain that are measured, and columns of a table.
SAMPLES, FILES, COLUMNS = 500, 100, 50
# Outside the range by less than this share of it, samples are as those of a training domain.
SLACK = 0.1


@dataclass(frozen=True)
class InputChange:
    """The mean of a statistic on new samples, and its range over the training domains."""

    name: str
    new: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether it is outside the range."""
        slack = SLACK * (self.high - self.low) + 1e-9
        return not self.low - slack <= self.new <= self.high + slack


def measure_training_data(
    inputs: Inputs, run: Run, encoder: Encoder | None
) -> dict[str, dict[str, float]]:
    """The statistics of every training domain; empty if the samples themselves are gone.

    With an encoder, they are those of the images or texts whose features were trained on.
    """
    dataset = find_dataset(run.dataset)
    if encoder is None:
        return measure_domains(inputs, load_domains(dataset, run))
    options = ReadOptions(
        data_root(),
        side=0 if encoder.tokens else inputs.stored[-1],
        skip_broken=True,
        tokenizer=inputs.tokenizer,
        tokens=encoder.tokens,
    )
    try:
        original = find_dataset(str(dataset.provenance.get("dataset", "")))
        return measure_domains(inputs, original.load(options))
    except AfieldError:
        return {}


def measure_domains(inputs: Inputs, domains: Mapping[str, Domain]) -> dict[str, dict[str, float]]:
    """The statistics of every domain."""
    measured = {}
    for name, domain in domains.items():
        rows = np.random.default_rng(0).permutation(len(domain.y))[:SAMPLES]
        folder = domain.folder
        chosen = [domain.names[row] for row in rows[:FILES]] if folder else []
        files = [folder / each for each in chosen] if folder else []
        measured[name] = measure_samples(inputs, domain.x[torch.from_numpy(np.sort(rows))], files)
    return measured


def measure_samples(inputs: Inputs, x: Tensor, files: Sequence[Path]) -> dict[str, float]:
    """The mean of every statistic of samples as stored, and of their files."""
    modality = inputs.modality
    values = {name: each.double().numpy() for name, each in modality.statistics(x).items()}
    for number, fitted in enumerate(inputs.table[:COLUMNS]):
        column, cells = fitted.column, x[:, number].double().numpy()
        values[f"missing: {column.name}"] = np.isnan(cells)
        if column.categories is None:
            values[f"mean: {column.name}"] = cells
    rows = [modality.file_statistics(file) for file in files]
    for name in rows[0] if rows else ():
        values[name] = np.array([row.get(name, np.nan) for row in rows])
    return {
        name: float(np.nanmean(each)) for name, each in values.items() if not np.isnan(each).all()
    }


def compare(
    new: Mapping[str, float], domains: Mapping[str, Mapping[str, float]]
) -> tuple[InputChange, ...]:
    """The statistics of new samples beside those of the training domains; what differs first."""
    changes = []
    for name, value in new.items():
        known = [each[name] for each in domains.values() if name in each]
        if known:
            changes.append(InputChange(name, value, min(known), max(known)))
    return tuple(sorted(changes, key=lambda change: not change.differs))
