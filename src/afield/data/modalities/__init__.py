"""Kinds of samples: the name of a file is the name of a modality."""
