"""Pools, one per file; `afield.runs.pool` defines what a pool is."""
