"""Recipes: the tables and figures of papers as benchmarks, and what they cost."""
