"""Datasets of domains, one a file; `afield.domains` says what they are."""
