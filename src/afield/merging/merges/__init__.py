"""Merges of fine-tuned models, one a file; `afield.merging.state_dicts` says what they are."""
