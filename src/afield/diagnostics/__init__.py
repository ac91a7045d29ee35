"""Looks into what was trained, one a file; `afield.diagnostic` says what they are."""
