"""Training algorithms, one a file; `afield.method` says what they are."""
