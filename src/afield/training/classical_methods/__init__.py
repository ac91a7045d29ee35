"""Classical methods, one per file; `afield.training.classical_method` defines what one is."""
