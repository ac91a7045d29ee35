"""Pools, one per file; `afield.runs.pool` defines what a pool is."""

from afield.runs.pool import Pool
from afield.runs.pools.local import Local

__all__ = ["Local", "Pool"]
