"""Test-time adaptations, one per file; `afield.training.adaptation` defines what one is."""
