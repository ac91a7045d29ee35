"""Runs of a benchmark of merges: which there are, and how merged models are executed."""
