"""Rows with named columns of numbers and categories, which are preprocessed for each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from afield.data.domains import Domain
from afield.data.file_batches import FileBatch, split_files
from afield.data.frames import TABLE_SUFFIXES, Column, encode_rows, is_table, read_frame
from afield.data.modality import Modality
from afield.data.samples import Rows
from afield.data.scaling import TableScaling, names_rows
from afield.data.training_settings import Training
from afield.errors import DataError, SpecError

if TYPE_CHECKING:
    import pandas as pd

    from afield.data.inputs import Inputs

__all__ = ["Table"]


@dataclass(frozen=True)
class Table(Modality):
    """Rows of a table; NaN stands for a missing value."""

    columns: tuple[Column, ...] = ()

    name = "table"
    noun = "table"
    suffixes = TABLE_SUFFIXES
    task = "tabular-classification"
    example = "new.csv"
    python_example = "new.csv"
    # Tables have hundreds of rows rather than thousands: dropout, weight decay, two checkpoints.
    # Of more, the rows for validation choose an early one, which knows the most frequent class and
    # little else: that is accurate where the sources have the same class. AdamW's weight decay of 3
    # keeps every weight within about a third (a step of Adam is at most lr, and 3 · lr · w back).
    training = Training(
        steps=300,
        every=150,
        batch=32,
        weight_decay=3.0,
        optimizer="adamw",
        backbone="small:table",
    )
    has_columns = True
    classical_methods = ("logistic", "extra_trees", "boosted_trees")
    no_export = (
        "takes tables, whose categories an exported function of numbers cannot encode; use afield "
        "predict"
    )

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """The share of the cells that are empty."""
        return {"missing values": x.isnan().double().mean(dim=1)}

    def fit_scaling(
        self, x: Rows, *, by_sources: bool = False, robust: bool = False
    ) -> TableScaling:
        """Fit the preprocessing of every column."""
        return TableScaling.fit(x, self.columns, by_sources=by_sources, robust=robust)

    def remarks(self, domains: Mapping[str, Domain]) -> list[str]:
        """Cells of each domain that do not fit the columns of the other domains."""
        lines = []
        for name, domain in domains.items():
            others = Rows([other.x for each, other in domains.items() if each != name])
            try:
                lines += self.fit_scaling(others, by_sources=True).misfits({name: domain})
            except SpecError as error:
                lines.append(f"without {name!r}, {error}")
        return lines

    def summary(self, inputs: "Inputs") -> str:
        """The names of the columns."""
        return f"tables with the columns {_names(inputs)}"

    def to_stored(self, inputs: "Inputs", values: Any, where: str = "") -> Tensor:
        """Rows of a data frame as numbers, with NaN for a missing value."""
        import pandas as pd

        if not isinstance(values, pd.DataFrame):
            raise DataError(
                f"{where or 'samples'}: give a table or data frame with {_names(inputs)}"
            )
        columns = [column.column for column in inputs.table]
        return torch.from_numpy(encode_rows(values, columns, where or "data frame"))

    def read_batches(
        self, inputs: "Inputs", files: Sequence[Path], size: int
    ) -> Iterator[FileBatch]:
        """Read the rows of tables in order, in batches of at most `size`."""

        def read(file: Path) -> tuple[Tensor, list[str], list[str] | None]:
            if not is_table(file):
                raise DataError(f"{file}: not a table; give one of {', '.join(TABLE_SUFFIXES)}")
            frame = read_frame(file)
            x = self.to_stored(inputs, frame, str(file))
            declared = {column.name for column in inputs.table if column.column.declared}
            return x, [f"{file}[{row}]" for row in range(len(x))], _row_ids(frame, declared)

        return split_files(read, files, size)


def _row_ids(frame: "pd.DataFrame", declared: set[str]) -> list[str] | None:
    """Names of the rows: the first column named like one, if possible with a name per row."""
    names = [name for name in frame.columns if names_rows(name) and name not in declared]
    if not names:
        return None
    chosen = next((name for name in names if frame[name].is_unique), names[0])
    return frame[chosen].astype(str).where(frame[chosen].notna(), "").tolist()


def _names(inputs: "Inputs") -> str:
    return ", ".join(column.name for column in inputs.table)
