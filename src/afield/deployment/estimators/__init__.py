"""Estimators of the accuracy on a domain without labels, one per file."""
