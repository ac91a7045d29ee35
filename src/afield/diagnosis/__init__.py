"""Diagnostics: what finished runs have learned."""
