"""Readers of a user's own data and of the file formats of datasets."""
