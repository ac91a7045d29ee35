"""The command line: read arguments, call one function, print."""

from afield.cli.app import main

__all__ = ["main"]
