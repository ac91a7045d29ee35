"""Domains: where their files come from, and how they become batches of samples."""
