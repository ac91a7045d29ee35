"""Training algorithms, one a file; `afield.training.method` says what they are."""
