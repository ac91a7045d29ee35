"""Merges of fine-tuned models, one per file; `afield.merging.scopes` defines what a merge is."""
