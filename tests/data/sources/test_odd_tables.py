"""Tables of strangers: odd cells, odd metadata and huge labels are read, or refused in one line."""

import json
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal

import pandas as pd
import pytest
import torch

from afield.compute import track_peak_memory
from afield.data.lookup import find_dataset
from afield.errors import DataError

pytest.importorskip("pyarrow")

ROWS = 12
SOUND = {
    "x": [float(row) for row in range(ROWS)],
    "label": ["a", "b"] * (ROWS // 2),
    "domain": ["p"] * (ROWS // 2) + ["q"] * (ROWS // 2),
}
ODD_CELLS = {
    "list": [[1, 2]],
    "nested list": [[[1]], [[]]],
    "dict": [{"a": 1}],
    "mixed": [[1], "a", {"b": 2}, None],
    "bytes": [b"\xff"],
    "missing": [None],
    "huge numbers": [10**30],
    "long numbers": ["9" * 400],
    "decimals": [Decimal("1.5")],
    "spans of time": [timedelta(1)],
    "first day": [datetime(1, 1, 1)],
    "long names of files": ["a" * 5000 + ".png"],
    "zeros": ["a\0.png"],
}


@pytest.mark.parametrize("column", ["label", "domain", "split", "group", "text", "path", "x"])
def test_odd_cells_are_read_or_refused_in_one_line(tmp_path, column):
    import pyarrow
    from pyarrow import parquet

    file, read = tmp_path / "t.parquet", 0
    for cells in ODD_CELLS.values():
        with suppress(pyarrow.ArrowException, OverflowError):
            columns = {**SOUND, column: (cells * ROWS)[:ROWS]}
            parquet.write_table(pyarrow.table(columns), file)
            with suppress(DataError):
                find_dataset(file).load()
                read += 1
                continue
            with pytest.raises(DataError) as error:
                find_dataset(file).load()
            assert "\n" not in str(error.value)
            assert len(str(error.value)) < 1000
    assert read < len(ODD_CELLS)


@pytest.mark.parametrize("cells", [[0, 1], ["a", "b"], [0.5, 1.0], [[0], [1]], [True, False], [-5]])
@pytest.mark.parametrize("names", [5, None, {"a": 1}, ["a"], [["x"], None], "ab", [1, 2]])
def test_odd_metadata_of_classes_is_one_line_or_without_effect(tmp_path, cells, names):
    import pyarrow
    from pyarrow import parquet

    kind = {"_type": "ClassLabel", "names": names}
    metadata = json.dumps({"info": {"features": {"label": kind}}})
    table = pyarrow.table({**SOUND, "label": (cells * ROWS)[:ROWS]})
    table = table.replace_schema_metadata({"huggingface": metadata})
    parquet.write_table(table, tmp_path / "t.parquet")
    try:
        classes = find_dataset(tmp_path / "t.parquet").classes
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017  either is right
    else:
        stated = [str(name) for name in names] if isinstance(names, list) else ["0", "1"]
        assert classes in {("a", "b"), tuple(sorted(stated)), ("False", "True")}


def test_metadata_of_pandas_that_contradicts_the_file_is_one_line(tmp_path):
    import pyarrow
    from pyarrow import parquet

    for metadata in ("[]", '{"index_columns": ["nothing"], "columns": []}'):
        table = pyarrow.table(SOUND).replace_schema_metadata({"pandas": metadata})
        parquet.write_table(table, tmp_path / "t.parquet")
        with pytest.raises(DataError, match="cannot be read as a data frame"):
            find_dataset(tmp_path / "t.parquet")


def test_one_huge_label_takes_no_memory_for_every_row(tmp_path):
    frame = pd.DataFrame({**SOUND, "label": ["h" * 200_000, *SOUND["label"][1:]]})
    frame = pd.concat([frame] * 2000, ignore_index=True)
    frame.loc[12:, "label"] = "a"
    frame.to_csv(tmp_path / "t.csv", index=False)
    with track_peak_memory(torch.device("cpu")) as peak:
        before = peak()
        with pytest.raises(DataError, match="a label in column 'label' has 200,000 characters"):
            find_dataset(tmp_path / "t.csv")
        assert peak() - before < 2**29  # 19 GB with numpy's texts of one width


def test_a_small_file_of_too_many_rows_is_refused_before_it_is_read(tmp_path, monkeypatch):
    pd.DataFrame(SOUND).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr("afield.data.frames.machine_memory", lambda: 8 * 3 * ROWS - 1)
    with pytest.raises(DataError, match="12 rows of 3 columns do not fit into the memory"):
        find_dataset(tmp_path / "t.parquet")
