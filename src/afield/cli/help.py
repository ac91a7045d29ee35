"""Help texts without types and ranges in the notation of Python.

The placeholder of an option says what it takes, and an error names the limits of a number.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]


class Command(TyperCommand):
    """A command whose help shows placeholders such as NAMES, but no types such as <str>."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, including --help, without a type to display."""
        return [_without_type(param) for param in super().get_params(ctx)]


class Group(TyperGroup):
    """The same for a command that has commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, including --help, without a type to display."""
        return [_without_type(param) for param in super().get_params(ctx)]


def _without_type(param: Any) -> Any:
    # Options with a placeholder show that. Older versions of typer do not read the attribute.
    if param.param_type_name == "argument" or param.metavar is None:
        param.display_type_rich = _no_text
    # The same holds for this one, which returns a range such as 1<=x<=10000.
    param._get_number_range_help_str = _no_text
    return param


def _no_text(*_: Any, **__: Any) -> None:
    """Leave the column empty."""
