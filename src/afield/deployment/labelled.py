"""Labelled samples for a model: a folder by class, a table, an array file, or a list of files.

    DATA/<class>/<file>, DATA/<domain>/<class>/<file>   images, audio files or texts
    table with a column of labels                       rows of numbers or texts, by their columns
    labels.csv with the columns file and label          files, by paths relative to the list, or
                                                        samples of array files, as new.npz[3]
    .npz with X and y, and perhaps domain               arrays

Domains are optional: without them, all samples belong to one. Empty labels are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield.data.file_batches import find_files
from afield.data.frames import USUAL_NAMES, is_table, read_frame
from afield.data.inputs import Inputs
from afield.data.sources.arrays import translate_numpy_errors
from afield.errors import DataError, SpecError
from afield.files import check_regular_file

if TYPE_CHECKING:
    import pandas as pd

# The name of the only domain of data without domains.
ONE_DOMAIN = "all samples"
# Files of arrays, of which a name in brackets is one sample.
ARRAY_SUFFIXES = (".npz", ".npy")
# Columns that `afield estimate --to-label` writes beside the files.
WEIGHT, STRATUM = "weight", "stratum"


@dataclass(frozen=True)
class LabelledSamples:
    """Samples with the names of their classes and domains.

    Attributes
    ----------
    samples
        Paths of files, an array, or a data frame.
    names, labels, domains
        Of every sample.
    weights, strata
        The weight of every sample and the number of its stratum, if some samples of the data were
        chosen to be labelled; otherwise empty.
    """

    samples: Any
    names: Sequence[str]
    labels: Sequence[str]
    domains: Sequence[str]
    weights: Sequence[float] = ()
    strata: Sequence[str] = ()

    def take(self, rows: Sequence[int]) -> Any:
        """The samples of some rows, as a model takes them."""
        import pandas as pd

        if isinstance(self.samples, pd.DataFrame):
            return self.samples.iloc[list(rows)]
        if isinstance(self.samples, np.ndarray):
            return self.samples[list(rows)]
        return [self.samples[row] for row in rows]


def read_labelled(
    data: Any, inputs: Inputs, *, label: str = "", domain: str = ""
) -> LabelledSamples:
    """Labelled samples from a path, or from arrays (X, y) or (X, y, domain).

    Parameters
    ----------
    data
        A folder, table, list of files or array file; or a tuple of arrays.
    inputs
        What the model takes.
    label, domain
        The columns of a table with the class and the domain of each sample; by default those with
        a usual name.
    """
    if isinstance(data, tuple):
        return _from_arrays(dict(zip(("X", "y", "domain"), data, strict=False)), "the arrays")
    path = Path(data).expanduser()
    if path.is_dir():
        return _from_folder(path, inputs)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; give labelled samples")
    if is_table(path):
        return _from_table(path, inputs, label, domain)
    if path.suffix == ".npz":
        return _from_arrays(_load(path), str(path))
    raise DataError(
        f"{path}: not labelled samples; give a folder DATA/<class>/, a table, an .npz file with X "
        "and y, or a list of files with the columns file and label"
    )


def _from_folder(root: Path, inputs: Inputs) -> LabelledSamples:
    if not inputs.modality.decodes_files and not inputs.modality.has_tokens:
        raise DataError(f"{root}: is a folder, and the model takes {inputs.summary}")
    suffixes = inputs.modality.suffixes
    files = [file for file in find_files([root], suffixes) if not is_table(file)]
    if not files:
        raise DataError(f"{root}: no {inputs.modality.noun}s in it ({', '.join(suffixes)})")
    parts = [file.relative_to(root).parts for file in files]
    stray = next((file for file, each in zip(files, parts, strict=True) if len(each) < 2), None)
    if stray is not None:
        raise DataError(f"{stray}: in no folder of a class; give {root.name}/<class>/{stray.name}")
    by_domain = all(len(each) > 2 for each in parts)
    if not by_domain and any(len(each) > 2 for each in parts):
        raise DataError(
            f"{root}: some files are in <class>/ and others in <domain>/<class>/; use one of both"
        )
    return LabelledSamples(
        files,
        [str(file) for file in files],
        [each[1] if by_domain else each[0] for each in parts],
        [each[0] if by_domain else ONE_DOMAIN for each in parts],
    )


def _from_table(path: Path, inputs: Inputs, label: str, domain: str) -> LabelledSamples:
    frame = read_frame(path)
    of_label = _column(frame, "label", label, path)
    if not of_label:
        raise DataError(
            f"{path}: no column with the label; name it with --label COLUMN (the columns are "
            f"{', '.join(frame.columns[:20])})"
        )
    of_domain = _column(frame, "domain", domain, path)
    known = frame[of_label].notna() & (frame[of_label].astype(str).str.strip() != "")
    if not known.any():
        raise DataError(f"{path}: the column {of_label!r} is empty; fill it in")
    frame = frame[known].reset_index(drop=True)
    samples: Any = frame
    names = [f"{path.name}[{row}]" for row in np.flatnonzero(known)]
    if not _has_samples(frame, inputs):
        of_file = _column(frame, "path", "", path)
        if not of_file:
            raise DataError(f"{path}: no column with the files; call it file")
        names = [str(cell) for cell in frame[of_file]]
        samples = _listed_samples(names, path, inputs)
    weighted = WEIGHT in frame.columns and STRATUM in frame.columns
    return LabelledSamples(
        samples,
        names,
        [_text(cell) for cell in frame[of_label]],
        [_text(cell) for cell in frame[of_domain]] if of_domain else [ONE_DOMAIN] * len(frame),
        _weights(frame, path) if weighted else (),
        [_text(cell) for cell in frame[STRATUM]] if weighted else (),
    )


def _has_samples(frame: "pd.DataFrame", inputs: Inputs) -> bool:
    """Whether the rows of a table are the samples, and do not name their files."""
    if inputs.modality.has_tokens:
        texts = {inputs.column, *USUAL_NAMES["text"]}
        return "file" not in frame.columns or any(name in texts for name in frame.columns)
    return inputs.modality.has_columns


def _listed_samples(names: Sequence[str], path: Path, inputs: Inputs) -> Any:
    """The paths of files, or the rows of array files such as ``new.npz[3]``, as one array."""
    rows = [split_row(str(path.parent / name)) for name in names]
    if not any(file is not None and file.suffix in ARRAY_SUFFIXES for file, _ in rows):
        return [path.parent / name for name in names]
    arrays: dict[Path, tuple[Any, dict[str, int]]] = {}
    for file in {file for file, _ in rows if file is not None}:
        x, own = inputs.read_array_file(file)
        arrays[file] = x, {name.removeprefix(str(file))[1:-1]: n for n, name in enumerate(own)}
    samples = []
    for name, (found, row) in zip(names, rows, strict=True):
        if found is None or row not in arrays[found][1]:
            raise DataError(f"{path}: {name}: no such sample; name files as new.npz[3]")
        x, numbers = arrays[found]
        samples.append(x[numbers[row]])
    return torch.stack(samples).numpy()


def split_row(name: str) -> tuple[Path | None, str]:
    """The file and the row that a name such as ``new.npz[3]`` stands for; None for a file.

    >>> split_row("new.npz[3]")
    (PosixPath('new.npz'), '3')
    """
    file, bracket, row = name.removesuffix("]").rpartition("[")
    if not bracket or not name.endswith("]") or Path(name).exists():
        return None, ""
    return Path(file), row


def _weights(frame: "pd.DataFrame", path: Path) -> list[float]:
    import pandas as pd

    weights = pd.to_numeric(frame[WEIGHT], errors="coerce")
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise DataError(f"{path}: the column {WEIGHT!r} must hold numbers above 0")
    return [float(weight) for weight in weights]


def _column(frame: "pd.DataFrame", kind: str, asked: str, path: Path) -> str:
    """The column that was asked for, or the first with a usual name; empty if there is none."""
    if asked and asked not in frame.columns:
        columns = ", ".join(frame.columns[:20])
        raise DataError(f"{path}: no column {asked!r} ({kind}); it has {columns}")
    by_name = {name.lower(): name for name in reversed(frame.columns)}
    return asked or next((by_name[name] for name in USUAL_NAMES[kind] if name in by_name), "")


def _text(cell: Any) -> str:
    """A label as a class is called: whole numbers have no decimal point."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with translate_numpy_errors(path):
        check_regular_file(path)
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in ("X", "y", "domain") if key in archive.files}


def _from_arrays(arrays: dict[str, Any], where: str) -> LabelledSamples:
    if "X" not in arrays or "y" not in arrays:
        raise DataError(f"{where}: no arrays X and y; give the samples and their labels")
    x, y = arrays["X"], np.asarray(arrays["y"])
    domain = arrays.get("domain")
    domains = [ONE_DOMAIN] * len(y) if domain is None else [_name(cell) for cell in domain]
    if not len(x) == len(y) == len(domains) or not len(y):
        raise SpecError(f"{where}: X, y and domain must have the same length, above 0")
    names = [f"[{row}]" for row in range(len(y))]
    return LabelledSamples(x, names, [_name(cell) for cell in y], domains)


def _name(cell: Any) -> str:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else _text(cell)
