"""The last weights, without averaging.

Differs from the papers: nothing.
"""

from dataclasses import dataclass

from afield.training.average import Average

__all__ = ["Last"]


@dataclass
class Last(Average):
    """Deploy the weights as trained."""
