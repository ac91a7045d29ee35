"""Python objects as input of a benchmark: data, methods and networks of the user."""

from afield.experiments.own.objects import accept_objects
from afield.experiments.own.samples import dataset_spec

__all__ = ["accept_objects", "dataset_spec"]
