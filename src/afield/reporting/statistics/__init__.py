"""What differences between methods mean: noise, comparisons, claims and power."""
