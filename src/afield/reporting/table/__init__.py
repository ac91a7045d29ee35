"""The results table: its rows, its columns, and a table over several datasets."""

from afield.reporting.table.columns import (
    COLUMNS,
    Column,
    find_column,
    format_number,
    format_value,
)
from afield.reporting.table.datasets import ALL_DATASETS
from afield.reporting.table.tabulation import ranks, shown_metric, table_caption, tabulate

__all__ = ["ALL_DATASETS", "COLUMNS", "Column", "find_column", "format_number", "format_value"]
__all__ += ["ranks", "shown_metric", "table_caption", "tabulate"]
