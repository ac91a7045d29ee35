"""Merges of fine-tuned models, one a file; `afield.merging.scopes` says what they are."""
