"""Backbones by name, and ways to look into any network."""
