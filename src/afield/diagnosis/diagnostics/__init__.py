"""Looks into what was trained, one a file; `afield.diagnosis.diagnostic` says what they are."""
