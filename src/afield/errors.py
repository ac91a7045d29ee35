"""Errors raised on purpose. A message says what is wrong, where, and what to do instead."""


class AfieldError(Exception):
    """An error that the user can fix; the command line prints it in one line."""


class UnknownNameError(AfieldError, LookupError):
    """A name that no file of the registry and no entry point has."""


class SpecError(AfieldError, ValueError):
    """A setting that is unknown, malformed or not possible here."""


class IncompatibleMethodError(SpecError):
    """A method that cannot be trained on this number of source domains."""

    def __init__(self, message: str, method: str = "") -> None:
        super().__init__(message)
        self.method = method


class DataError(AfieldError, FileNotFoundError):
    """Data that are missing, broken or not in the expected form."""


class DivergedError(AfieldError, ArithmeticError):
    """Training whose loss or weights became NaN or infinite."""


class MergeError(AfieldError, ValueError):
    """Models that cannot be merged, at all or by this merge."""
