"""Merging: the weights of several models become those of one, without data."""
