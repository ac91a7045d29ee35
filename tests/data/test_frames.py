"""What cells stand for, and what the user says about columns."""

import math

import numpy as np
import pandas as pd
import pytest

from afield.data.frames import Column, ColumnChoice, encode_rows, name_columns, text_values
from afield.errors import SpecError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1.5", 1.5), (" 7 ", 7.0), ("-1e3", -1000.0), ("1970-01-03", 2.0)],
        *[("1970-01-01T12:00:00", 0.5), ("1970-01-02 12:00:00+12:00", 1.0)],
        *[("n/d", None), ("", None), ("inf", None), ("2024-13-45", None), ("2024", 2024.0)],
    ],
)
def test_texts_stand_for_numbers_and_dates(text, value):
    (actual,) = text_values([text])
    assert math.isnan(actual) if value is None else actual == value


def test_dates_of_a_data_frame_are_days():
    frame = pd.DataFrame({"seen": pd.to_datetime(["1970-01-02", None, "1971-01-01"])})
    rows = encode_rows(frame, [Column("seen")], "frame")
    np.testing.assert_array_equal(rows[:, 0], [1.0, np.nan, 365.0])


def test_a_lenient_column_takes_what_is_not_a_number_as_missing():
    frame = pd.DataFrame({"age": ["61", "n/d", None]})
    rows = encode_rows(frame, [Column("age", lenient=True)], "frame")
    np.testing.assert_array_equal(rows[:, 0], [61.0, np.nan, np.nan])


def test_types_and_dropped_columns_are_part_of_the_name_of_a_dataset():
    spec = name_columns("a.csv", label="y", types="age=number, thal=category", drop="name,town")
    assert spec.startswith("a.csv?drop=name%2Ctown&label=y&types=")
    choice = ColumnChoice(label="y", types="age=number, thal=category", drop="name, town")
    assert choice.declared == {"age": "number", "thal": "category"}
    assert choice.names == ("y", "name", "town")


@pytest.mark.parametrize("types", ["age", "age=text", "=number", "age=number,thal"])
def test_a_type_is_number_or_category(types):
    with pytest.raises(SpecError, match="write NAME=number or NAME=category"):
        _ = ColumnChoice(types=types).declared
