"""Datasets of domains, one a file; `afield.data.domains` says what they are."""
