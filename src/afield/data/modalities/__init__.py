"""Kinds of samples: how files of each are decoded."""
