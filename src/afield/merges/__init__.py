"""Merges of fine-tuned models, one a file; `afield.merging` says what they are."""
