"""Training algorithms, one per file; `afield.training.method` defines what a method is."""
