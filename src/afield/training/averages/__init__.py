"""Weight averages, one per file; `afield.training.average` defines what an average is."""
