"""The errors raised on purpose: each says what, where, and what to do instead."""

__all__ = [
    "AfieldError",
    "DataError",
    "DivergedError",
    "IncompatibleMethodError",
    "MergeError",
    "SpecError",
    "UnknownNameError",
]


class AfieldError(Exception):
    """Something the user can mend; the command line prints it in one line."""


class UnknownNameError(AfieldError, LookupError):
    """A name that no file and no entry point has."""


class SpecError(AfieldError, ValueError):
    """A setting that is not understood or cannot be."""


class IncompatibleMethodError(SpecError):
    """A method cannot be trained on so many source domains."""

    def __init__(self, message: str, method: str = "") -> None:
        super().__init__(message)
        self.method = method


class DataError(AfieldError, FileNotFoundError):
    """Data that are missing, broken or not what they should be."""


class DivergedError(AfieldError, ArithmeticError):
    """Training that left the finite numbers."""


class MergeError(AfieldError, ValueError):
    """Models that cannot be merged, or not in this way."""
