"""Runs that are made from finished runs: which there are, and how they are executed."""
