"""The results table: its rows, its columns, and a table over several datasets."""

from afield.reporting.table.columns import (
    COLUMNS,
    Column,
    display_order,
    find_column,
    format_number,
    format_value,
)
from afield.reporting.table.datasets import ALL_DATASETS
from afield.reporting.table.tabulation import (
    ranks,
    shown_metric,
    table_caption,
    tabulate,
    tabulate_results,
)

__all__ = ["ALL_DATASETS", "COLUMNS", "Column", "display_order", "find_column"]
__all__ += ["format_number", "format_value", "ranks", "shown_metric", "table_caption", "tabulate"]
__all__ += ["tabulate_results"]
